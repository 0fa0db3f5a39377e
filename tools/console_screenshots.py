"""Writes pictures of the console into the documentation, from a cluster with a day's worth of data.

    python -m tools.console_screenshots [DIRECTORY]

Needs Chromium: the one of the system is found by name (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock import Message, RetryLater
from penstock.admin import LetterEdit
from penstock.model.names import Redrive
from penstock.testing.embedded import Embedded, embedded

TARGET = Path(__file__).parent.parent / "docs/images/console"
WIDTHS = (1280, 360)
THEMES = ("light", "dark")
_WAIT_SECONDS = 60.0
_CHART_MS = 25_000
"""How long the overview is open first, so that its chart has points."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The browser of the system."""
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


@contextmanager
def shop() -> Iterator[Embedded]:
    """A cluster with orders, a group behind, dead letters and a working group."""
    with embedded(console=True) as mq:
        mq.admin.create_topic("orders", queues=4)
        mq.admin.create_topic("payments", queues=2)
        billing = _consumer(mq, "billing", fails=lambda total: total % 7 == 3)
        shipping = _consumer(mq, "shipping", fails=lambda total: False)
        audit = _consumer(mq, "audit", fails=lambda total: False)
        with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(60):
                producer.send(_order(number))
            producer.send(Message("payments", b"later", delay="10m"))
            with billing, shipping:
                _wait(lambda: sum(q.pending for q in mq.admin.dead_letter_queues("billing")) >= 8)
                with audit:
                    groups = ("audit", "billing", "shipping")
                    _wait(lambda: all(_committed(mq, group) == 60 for group in groups))
                _repair_one(mq)
                with _consumer(mq, "shipping", fails=lambda total: False):
                    for number in range(60, 400):
                        producer.send(_order(number * 7))
                    _wait(lambda: _committed(mq, "shipping") == 400)
                    with _traffic(producer):
                        yield mq


@contextmanager
def _traffic(producer: penstock.Producer) -> Iterator[None]:
    """Orders that keep coming, so that the charts have something to show."""
    stop = threading.Event()

    def send() -> None:
        for number in itertools.count(400):
            producer.send(_order(number * 7))
            # Some seconds are busier than others.
            if stop.wait(0.03 + 0.05 * (1 + math.sin(number / 60))):
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _order(number: int) -> Message:
    return Message(
        "orders",
        json={
            "id": f"o-{number}",
            "total": number,
            "region": "eu" if number % 3 else "us",
            "customer": {"name": ("Ada", "Grace", "Edsger")[number % 3]},
        },
        tag="paid" if number % 4 else "created",
        keys=[f"o-{number}"],
        properties={"region": "eu" if number % 3 else "us"},
    )


def _consumer(mq: Embedded, group: str, *, fails: object) -> penstock.PushConsumer:
    consumer = penstock.PushConsumer(
        group, namesrv=mq.namesrv, start_from="first", max_retries=2, trace=True
    )

    @consumer.on("orders")
    def handle(message: penstock.StoredMessage) -> None:
        import json

        assert callable(fails)
        total = json.loads(message.body)["total"]
        if fails(total) and message.properties.get(Redrive.FROM) is None:
            reason = "amount cannot be read" if total % 2 else "customer is not in the register"
            raise RetryLater("1s") from ValueError(reason)

    return consumer


def _committed(mq: Embedded, group: str) -> int:
    """How many orders a group has finished."""
    [row] = mq.admin.lag_table([group]).rows
    return sum(queue.committed for queue in row.queues if queue.topic == "orders")


def _repair_one(mq: Embedded) -> None:
    """Redrive the first dead letter, edited."""
    letter = mq.admin.dead_letters("billing")[-1]
    edit = LetterEdit(b'{"id": "o-3", "total": 30}', letter.message.tag, letter.message.keys)
    mq.admin.redrive("billing", [letter], edits={letter.message.offset_msg_id: edit})


def _wait(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the sample data did not come about")
        time.sleep(0.1)


def pages(mq: Embedded) -> dict[str, str]:
    """The main pages by the name of their picture."""
    letter = mq.admin.dead_letters("billing")[-1].message
    return {
        "overview": "",
        "group": "groups/audit",
        "messages": "topics/orders/messages",
        "message": f"messages/{letter.msg_id}?topic=orders",
        "dead-letters": "groups/billing/dead-letters",
        "reset": "groups/shipping/reset?topic=orders&to=first",
    }


def main(arguments: list[str]) -> int:
    """Take all pictures."""
    from playwright.sync_api import sync_playwright

    browser_path = find_chromium()
    if browser_path is None:
        sys.stderr.write("no Chromium found; on Debian: apt-get install chromium\n")
        return 1
    target = Path(arguments[0]) if arguments else TARGET
    target.mkdir(parents=True, exist_ok=True)
    with shop() as mq, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
        )
        first = browser.new_page()
        for path in ("groups/audit", ""):
            first.goto(f"{mq.console}c/local/{path}", wait_until="load")
            first.wait_for_timeout(_CHART_MS)
        first.close()
        for width in WIDTHS:
            for theme in THEMES:
                context = browser.new_context(
                    viewport={"width": width, "height": 800},
                    color_scheme="dark" if theme == "dark" else "light",
                )
                page = context.new_page()
                for name, path in pages(mq).items():
                    page.goto(f"{mq.console}c/local/{path}", wait_until="load")
                    if name in ("overview", "group"):
                        page.wait_for_selector(".chart svg", timeout=30_000)
                    page.screenshot(
                        path=target / f"{name}-{width}-{theme}.png",
                        full_page=width > WIDTHS[-1] and name != "messages",
                    )
                context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
