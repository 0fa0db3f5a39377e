"""In a real browser, by clicking and typing as a person does. Needs a Chromium of the system."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tools.console_screenshots import find_chromium

import penstock
from penstock import Message
from penstock.console.live import STEP_SECONDS
from penstock.console.view import View
from penstock.testing.embedded import Embedded, embedded
from penstock.testing.eventually import eventually

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium found; on Debian: apt-get install chromium"
)
PAGES = (
    "",
    "topics",
    "topics/orders",
    "topics/orders/messages",
    "topics/orders/send",
    "groups",
    "groups/billing",
    "groups/billing/reset?topic=orders&to=first",
    "groups/billing/dead-letters",
    "dead-letters",
    "delays",
    "clients",
    "brokers",
    "brokers/broker-a",
    "spark",
    "jobs",
    "search?q=o-1",
    "settings",
    "audit",
)

MAIN_PAGES = (
    "groups/billing",
    "topics/orders/messages",
    "",
    "groups/billing/dead-letters",
    "groups/billing/reset?topic=orders&to=first",
)


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    with embedded(console=True) as running:
        running.admin.create_topic("orders", queues=2)
        with penstock.Producer("shop", namesrv=running.namesrv) as producer:
            for number in range(40):
                body = {"id": f"o-{number}", "total": "?20" if number == 3 else number}
                producer.send(Message("orders", json=body, keys=[f"o-{number}"], tag="paid"))
        consumer = penstock.PushConsumer(
            "billing", namesrv=running.namesrv, start_from="first", max_retries=0
        )

        @consumer.on("orders")
        def bill(message: penstock.StoredMessage) -> None:
            int(json.loads(message.body)["total"])

        with consumer:
            _wait(lambda: running.admin.dead_letter_queues("billing"))
            _wait(lambda: running.admin.lag_table(["billing"]).rows[0].lag == 0)
        yield running


def _wait(condition: Callable[[], object]) -> None:
    # In a thread: Playwright has a loop of its own in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(eventually(condition, 60))).result()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser, mq: Embedded) -> Iterator[BrowserContext]:
    """A fresh browser that notes errors and requests to anywhere else."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    home = urlsplit(mq.console).netloc
    context.on(
        "request",
        lambda request: wrong.append(request.url) if urlsplit(request.url).netloc != home else None,
    )
    context.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    yield context
    context.close()
    assert wrong == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def at(mq: Embedded, path: str = "") -> str:
    return f"{mq.console}c/local/{path}"


@pytest.mark.spec("C25")
def test_no_page_breaks_the_policy_or_asks_another_host(mq: Embedded, page: Page) -> None:
    for path in PAGES:
        answer = page.goto(at(mq, path))
        assert answer is not None
        assert answer.status == 200, path
        assert page.evaluate("document.querySelectorAll('[style], script:not([src])').length") == 0


@pytest.mark.spec("C16")
def test_a_dead_letter_is_repaired_and_redriven(mq: Embedded, page: Page) -> None:
    page.goto(at(mq))
    page.get_by_role("link", name="Repair").first.click()
    page.get_by_role("table").get_by_role("link").first.click()
    editor = page.get_by_label("To be sent")
    expect(editor).to_have_value(re.compile(r"\?20"))
    editor.fill('{"id":"o-3","total":20}')
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dry run: 1 letter would be sent")
    page.get_by_role("button", name="Redrive 1").click()
    expect(page.locator("#progress")).to_contain_text("done 1 of 1", timeout=20_000)
    got: list[bytes] = []
    consumer = penstock.PushConsumer("billing", namesrv=mq.namesrv)

    @consumer.on("orders")
    def bill(message: penstock.StoredMessage) -> None:
        got.append(message.body)

    with consumer:
        _wait(lambda: got)
    assert got == [b'{"id":"o-3","total":20}']
    page.goto(at(mq, "search?q=o-3"))
    page.goto(at(mq, "topics/orders/messages?key=o-3"))
    page.locator("#messages tbody").get_by_role("link").first.click()
    events = page.get_by_role("table", name="Events in the order of time")
    for step in ("stored", "dead", "redriven", "passed"):
        expect(events).to_contain_text(step)


@pytest.mark.spec("C28")
def test_a_group_is_found_and_reset_by_keyboard_alone(mq: Embedded, page: Page) -> None:
    mq.admin.create_group("typed")
    mq.admin.reset_offsets("typed", "orders", "last")
    page.goto(at(mq))
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("typed")
    _tab_to(page, "Reset offsets")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Reset typed")
    page.get_by_label("a time").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("the first message still stored")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.locator("#sentence")).to_contain_text("40 messages come again, 0 are left out.")
    _tab_to(page, "Move typed: 40 again, 0 left out")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("typed was moved")
    assert mq.admin.lag_table(["typed"]).rows[0].lag == 40


def _tab_to(page: Page, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            return
    raise AssertionError(f"no way to {name!r} by keyboard")


@pytest.mark.spec("C13")
def test_the_lag_moves_while_a_consumer_works(mq: Embedded, page: Page) -> None:
    mq.admin.create_group("moving")
    mq.admin.reset_offsets("moving", "orders", "first")
    page.goto(at(mq, "groups/moving"))
    shown = page.locator('dl [data-live="lag:moving"]')
    expect(shown).to_have_text("40")
    consumer = penstock.PushConsumer("moving", namesrv=mq.namesrv)

    @consumer.on("orders")
    def take(message: penstock.StoredMessage) -> None:
        pass

    with consumer:
        expect(shown).to_have_text("0", timeout=30_000)
    expect(page.locator(".chart svg polyline")).to_have_count(1, timeout=30_000)
    expect(page.locator(".axis b")).to_have_text("0")
    expect(page.locator("#queues tbody tr").first).to_contain_text("20", timeout=20_000)


@pytest.mark.spec("C2")
def test_a_topic_appears_without_a_reload(mq: Embedded, page: Page) -> None:
    page.goto(at(mq, "topics"))
    page.evaluate("window.wasHere = true")
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("appears", b"x"))
    expect(page.get_by_role("link", name="appears")).to_be_visible(timeout=20_000)
    assert page.evaluate("window.wasHere") is True


@pytest.mark.spec("C9")
def test_new_messages_come_while_following(mq: Embedded, page: Page) -> None:
    page.goto(at(mq, "topics/orders/messages"))
    page.get_by_role("button", name="Follow live").click()
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:

        def sent_and_seen() -> bool:
            producer.send(Message("orders", b"followed", keys=["live-1"]))
            page.wait_for_timeout(300)
            return page.get_by_text("live-1").count() > 0

        for _ in range(60):
            if sent_and_seen():
                break
        expect(page.get_by_text("live-1").first).to_be_visible()
        for _ in range(300):
            producer.send(Message("orders", b"many", keys=["many"]))
        expect(page.locator("#tail-note")).to_contain_text("skipped", timeout=20_000)
    # A hidden tab follows no more.
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.get_by_role("button", name="Follow live")).to_be_visible()


@pytest.mark.spec("C30")
def test_seven_tabs_of_one_browser_stay_fresh_and_ask_nothing_once_closed(
    mq: Embedded, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[View] = []
    get = View.get

    async def noted(view: View, *question: Any) -> Any:
        if view not in views:
            views.append(view)
        return await get(view, *question)

    monkeypatch.setattr(View, "get", noted)
    mq.admin.create_group("tabs")
    mq.admin.reset_offsets("tabs", "orders", "last")
    context = chromium.new_context()
    pages = [context.new_page() for _ in range(7)]
    for page in pages:
        page.goto(at(mq, "groups/tabs"))
        expect(page.locator('dl [data-live="lag:tabs"]')).to_have_text("0")
    # The first tabs have lost their streams to the last ones, and ask instead.
    end = sum(row.count for row in mq.admin.topic_stats("orders"))
    mq.admin.reset_offsets("tabs", "orders", "first")
    for page in pages:
        shown = page.locator('dl [data-live="lag:tabs"]')
        expect(shown).to_have_text(str(end), timeout=20_000)
    # A console without open pages asks the cluster nothing.
    context.close()

    def asked() -> int:
        return sum(view.asked.total() for view in views)

    assert asked() > 0
    for _ in range(20):
        before = asked()
        time.sleep(2 * STEP_SECONDS)
        if asked() == before:
            return
    raise AssertionError("questions go on after all tabs were closed")


@pytest.mark.spec("C27")
def test_dark_and_light_follow_the_switch_and_the_system(mq: Embedded, chromium: Browser) -> None:
    context = chromium.new_context(color_scheme="dark")
    page = context.new_page()
    colour = "getComputedStyle(document.body).backgroundColor"
    page.goto(at(mq, "topics"))
    dark = page.evaluate(colour)
    page.get_by_role("button", name="Theme: auto").click()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    light = page.evaluate(colour)
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(colour) == dark != light
    assert urlsplit(page.url).path == "/c/local/topics"
    context.close()


AXE = Path(__file__).with_name("axe.min.js")


@pytest.mark.spec("C27")
@pytest.mark.parametrize(("scheme", "paths"), [("light", MAIN_PAGES), ("dark", MAIN_PAGES[:2])])
def test_axe_finds_nothing(
    mq: Embedded, chromium: Browser, scheme: str, paths: tuple[str, ...]
) -> None:
    context = chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light", bypass_csp=True
    )
    page = context.new_page()
    for path in paths:
        page.goto(at(mq, path))
        page.add_script_tag(path=AXE)
        found = page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
        assert found == [], path
    context.close()


_TOO_WIDE = """() => document.documentElement.scrollWidth <= 360 ? [] :
    [...document.querySelectorAll("main *")].filter(one => one.getBoundingClientRect().right > 361)
    .map(one => one.outerHTML.slice(0, 200))"""


@pytest.mark.spec("C28")
def test_360_pixels_need_no_sideways_scroll(mq: Embedded, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    for path in (*MAIN_PAGES, "topics", "groups", "topics/orders/send", "brokers/broker-a"):
        page.goto(at(mq, path))
        assert page.evaluate(_TOO_WIDE) == [], path
    context.close()


_BROKEN_WORDS = """() => {
    const broken = [];
    for (const cell of document.querySelectorAll("main td:not(.body), main th")) {
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        for (let text; (text = texts.nextNode()); )
            for (const word of text.data.matchAll(/[\\w.:-]+/g)) {
                if (word[0].length > 8) continue;
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                const lines = [...range.getClientRects()].filter(line => line.width > 0);
                if (new Set(lines.map(line => Math.round(line.top))).size > 1) broken.push(word[0]);
            }
    }
    return document.documentElement.scrollWidth > innerWidth ? [...broken, "too wide"] : broken;
}"""


@pytest.mark.parametrize("width", [660, 700, 1000])
def test_short_words_stay_whole_beside_long_ones(chromium: Browser, width: int) -> None:
    long_name = "topic-of-a-very-long-name-" * 4
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    with embedded(console=True) as mq:
        for topic in ("refunds", long_name):
            mq.admin.create_topic(topic, queues=2)
            with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
                body = {"city": "Amsterdam", "note": "the parcel was late", "more": "x" * 200}
                keys = ["3d6f0a52-9c1b-4f0e-8a77-0123456789ab", "order-1"]
                for tag in ("refund", "a-tag-of-some-length" * 3):
                    producer.send(Message(topic, json=body, tag=tag, keys=keys))
        paths = ("topics", "topics/refunds/messages", f"topics/{long_name}/messages", "brokers")
        for path in (*paths, "search?q=order-1"):
            page.goto(at(mq, path))
            assert page.evaluate(_BROKEN_WORDS) == [], path
    context.close()


@pytest.mark.spec("C29")
def test_without_scripts_lists_search_reset_and_repair_work(
    mq: Embedded, chromium: Browser
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(at(mq, "topics?internal=1&n=5"))
    page.get_by_role("link", name="Next →").click()
    expect(page.get_by_text("page 2 of")).to_be_visible()
    page.goto(at(mq, "topics/orders/messages"))
    page.get_by_label("Condition").fill("$total > 37")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#messages tbody tr")).to_have_count(2)
    page.get_by_role("searchbox").fill("o-39")
    page.get_by_role("searchbox").press("Enter")
    expect(page.get_by_role("heading", name="Its life")).to_be_visible()
    mq.admin.create_group("plain")
    mq.admin.reset_offsets("plain", "orders", "last")
    page.goto(at(mq, "groups/plain/reset?topic=orders&to=first"))
    page.get_by_role("button", name=re.compile("Move plain")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("plain was moved")
    context.close()


@pytest.mark.spec("C34")
def test_the_zone_changes_every_time_and_no_address(mq: Embedded, page: Page) -> None:
    page.goto(at(mq, "settings"))
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    page.get_by_role("button", name="Save").click()
    page.goto(at(mq, "topics/orders/messages"))
    titles = page.locator("time").evaluate_all("all => all.map(one => one.title)")
    assert titles
    assert all("JST" in title for title in titles)
    assert "zone" not in page.url


def test_the_overview_keeps_fresh_and_leads_to_letters_that_are_chosen_at_once(
    chromium: Browser,
) -> None:
    context = chromium.new_context()
    page = context.new_page()
    with embedded(console=True) as mq:
        page.goto(mq.console)
        expect(page.get_by_role("heading", level=1)).to_have_text("All is well")
        expect(page.get_by_role("heading", name="No topics yet")).to_have_count(1)
        before = page.locator("#as-of").text_content()
        mq.admin.create_topic("late", queues=1)
        with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
            for _ in range(2):
                producer.send(Message("late", b"no number"))
        consumer = penstock.PushConsumer(
            "billing", namesrv=mq.namesrv, start_from="first", max_retries=0
        )

        @consumer.on("late")
        def bill(message: penstock.StoredMessage) -> None:
            raise ValueError("no number")

        with consumer:
            _wait(lambda: sum(q.pending for q in mq.admin.dead_letter_queues("billing")) == 2)
        expect(page.get_by_role("heading", level=1)).to_contain_text("1 thing", timeout=30_000)
        expect(page.get_by_role("heading", name="No topics yet")).to_have_count(0)
        assert page.locator("#as-of").text_content() != before
        page.get_by_role("link", name="Repair").click()
        every = page.get_by_role("checkbox", name="Choose all with this reason")
        boxes = page.get_by_role("checkbox", name=re.compile("Choose [0-9A-F]{32}"))
        expect(boxes).to_have_count(2)
        every.check()
        assert all(box.is_checked() for box in boxes.all())
        every.uncheck()
        assert not any(box.is_checked() for box in boxes.all())
    context.close()


def test_a_phone_shows_every_entry_of_the_menu(mq: Embedded, chromium: Browser) -> None:
    context = chromium.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(mq.console)
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    assert links.count() >= 9
    for link in links.all():
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360, link.text_content()
        assert box["height"] >= 24
    context.close()


def test_a_stream_that_is_refused_is_asked_for_from_time_to_time(
    mq: Embedded, chromium: Browser
) -> None:
    context = chromium.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.route("**/live?watch=*", lambda route: route.fulfill(status=429, body="too many"))

    def once(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"in": "4,711"})

    page.route("**/live?*once=1", once)
    page.goto(mq.console)
    expect(page.locator('[data-live="in"]')).to_have_text("4,711", timeout=20_000)
    assert asked
    context.close()


def test_a_key_tells_all_keys_and_they_can_be_off(mq: Embedded, page: Page) -> None:
    page.goto(at(mq, "groups"))
    page.keyboard.press("?")
    shown = page.get_by_role("dialog", name="Keys")
    expect(shown).to_be_visible()
    expect(shown).to_contain_text("dead letters")
    page.keyboard.press("Escape")
    expect(shown).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    page.goto(at(mq, "settings"))
    page.get_by_role("combobox", name="Keys").select_option("off")
    page.get_by_role("button", name="Save").click()
    page.goto(at(mq, "groups"))
    page.keyboard.press("?")
    expect(shown).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_label("Search", exact=True)).not_to_be_focused()


def test_a_growing_lag_is_named_in_the_list(mq: Embedded, page: Page) -> None:
    page.goto(at(mq, "groups"))
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="billing", exact=True))
    with penstock.Producer("growing", namesrv=mq.namesrv) as producer:
        for _ in range(20):
            producer.send(Message("orders", json={"total": 1}))
            page.wait_for_timeout(200)
    expect(row).to_contain_text("grows", timeout=20_000)
