"""Overview, topics, groups, brokers: as HTML, without a browser."""

from __future__ import annotations

import re

import pytest
from tests.console.browsing import Browser, browsing

import penstock
from penstock import Message
from penstock.testing.embedded import Embedded, embedded


def send(mq: Embedded, topic: str, count: int = 1) -> None:
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


@pytest.mark.spec("C2")
async def test_an_empty_cluster_shows_the_command_that_fills_it() -> None:
    with embedded() as mq:
        async with browsing(mq.namesrv) as browser:
            for page in ("", "topics"):
                shown = await browser.read(*filter(None, [page]))
                assert "No topics yet" in shown
                assert f"penstock send orders hello --namesrv {mq.namesrv}" in shown
            assert "No consumer groups yet" in await browser.read("groups")


async def test_a_topic_is_listed_with_its_messages(mq: Embedded, browser: Browser) -> None:
    send(mq, "orders", 7)
    shown = await browser.read("topics", q="ord")
    assert re.search(r"orders \S 4 7 ", shown), shown
    page = await browser.read("topics", "orders")
    assert "4 queues on broker-a" in page
    assert "broker-a:0" in page


async def test_internal_topics_are_shown_on_request(mq: Embedded, browser: Browser) -> None:
    send(mq, "inner")
    assert "SCHEDULE_TOPIC_XXXX" not in await browser.read("topics")
    assert "SCHEDULE_TOPIC_XXXX" in await browser.read("topics", internal=1, n=200)


async def test_a_group_shows_its_lag_by_queue_and_the_doctors_findings(
    mq: Embedded, browser: Browser
) -> None:
    send(mq, "bills", 5)
    mq.admin.create_group("billing")
    mq.admin.reset_offsets("billing", "bills", "first")
    shown = await browser.read("groups")
    assert re.search(r"billing bills 5 ", shown), shown
    page = await browser.read("groups", "billing")
    assert "group 'billing' never had members" in page
    assert "penstock group lag billing" in page
    assert "All is well" in await browser.read()
    assert "bills broker-a:0" in page


@pytest.mark.parametrize(
    ("path", "near"), [(("topics", "ordres"), "orders"), (("groups", "biling"), "billing")]
)
async def test_a_name_that_does_not_exist_suggests_the_nearest(
    mq: Embedded, browser: Browser, path: tuple[str, str], near: str
) -> None:
    send(mq, "orders")
    mq.admin.create_group("billing")
    assert f"did you mean {near}?" in await browser.read(*path, status=404)


@pytest.mark.spec("C31")
async def test_names_with_percent_signs_are_decoded_once(mq: Embedded, browser: Browser) -> None:
    mq.admin.create_topic("%RETRY%orders_of", queues=1)
    page = await browser.open("topics", "%RETRY%orders_of")
    assert "%25RETRY%25orders_of/messages" in page


async def test_a_broker_page_shows_what_it_reports(browser: Browser) -> None:
    assert "broker-a" in await browser.read("brokers")
    page = await browser.read("brokers", "broker-a")
    assert "brokerVersionDesc" in page
    assert "flushDiskType" in page


async def test_a_topic_is_made_and_deleted_with_its_name_typed(
    mq: Embedded, browser: Browser
) -> None:
    made = await browser.send("topics", "new", topic="fresh", queues="3")
    assert made.status_code == 200, made.text
    assert "fresh" in mq.admin.topics()
    kept = await browser.send("topics", "fresh", "delete", name="fres")
    assert kept.status_code == 400
    assert "fresh" in mq.admin.topics()
    await browser.send("topics", "fresh", "delete", name="fresh")
    assert "fresh" not in mq.admin.topics()
    shown = await browser.read("audit")
    assert "create topic fresh after={'queues': 3}" in shown
    assert "delete topic fresh" in shown
