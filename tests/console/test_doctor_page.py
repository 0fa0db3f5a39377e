"""What keeps messages from a group is on its page, in words, with the command that helps."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.console.browsing import Browser, text_of
from tests.support.waiting import wait_for

import penstock
from penstock import Message, aio, doctor
from penstock.model.names import WRITE
from penstock.testing.embedded import Embedded, embedded


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    """A shop in which several things are wrong, each with a group of its own."""
    with embedded() as running, ExitStack() as stack:
        admin = running.admin
        for topic in ("orders", "locked", "narrow"):
            admin.create_topic(topic, queues=2)
        with penstock.Producer("shop", namesrv=running.namesrv) as producer:
            for number in range(6):
                for topic in ("orders", "locked", "narrow"):
                    producer.send(Message(topic, f"{number}".encode(), tag="paid"))

        def consumer(group: str, topic: str, *, tags: str = "*", fail: bool = False) -> None:
            made = penstock.PushConsumer(
                group, namesrv=running.namesrv, start_from="first", max_retries=0
            )

            @made.on(topic, tags=tags)
            def handle(message: penstock.StoredMessage) -> None:
                if fail:
                    raise ValueError("card declined")

            stack.enter_context(made)

        admin.create_group("absent")
        admin.reset_offsets("absent", "orders", "first")
        consumer("failing", "orders", fail=True)
        consumer("picky", "orders", tags="refunded")
        consumer("shut-out", "locked")
        consumer("half", "narrow")
        for _ in range(3):
            consumer("crowded", "orders")
        consumer("disagreeing", "orders", tags="paid")
        consumer("disagreeing", "orders", tags="created || paid")
        wait_for(lambda: admin.dead_letter_queues("failing"), 60)
        wait_for(lambda: len(admin.clients("disagreeing")) == 2, 60)
        wait_for(lambda: len(admin.clients("crowded")) == 3, 60)
        admin.create_topic("locked", queues=2, permission=WRITE)
        admin.create_topic("narrow", queues=2, read_queues=1)
        yield running


WRONG = {
    "absent": {"no-members"},
    "failing": {"dead-letters"},
    "picky": {"filter-matches-nothing"},
    "shut-out": {"no-read-permission"},
    "half": {"queues-not-read"},
    "crowded": {"too-many-members"},
    "disagreeing": {"subscription-conflict"},
}


@pytest.mark.spec("C14")
async def test_each_finding_is_on_the_page_with_its_way_out(mq: Embedded, browser: Browser) -> None:
    async with aio.Admin(namesrv=mq.namesrv) as admin:
        for group, causes in WRONG.items():
            report = await doctor.examine_group(admin, group)
            found = {finding.cause: finding for finding in report.findings}
            assert causes <= found.keys(), (group, found)
            page = await browser.open("groups", group)
            shown = text_of(page)
            for cause in causes:
                finding = found[cause]
                assert f"{finding.severity.value} {_steady(finding.what)}" in _steady(shown), cause
                for line in finding.way_out:
                    assert _steady(line) in _steady(shown), line
                    if line.startswith("penstock "):
                        assert f'data-copy="{html.escape(line)}"' in page, line
        assert "Nothing keeps messages" not in await browser.read("groups", "absent")
    missing = await browser.read("groups", "absnt", status=404)
    assert "did you mean absent?" in missing


def _steady(text: str) -> str:
    """Without the numbers, which grow between two looks, and with single blanks."""
    return " ".join("".join(c for c in text if not c.isdigit()).split())
