"""Large clusters, a silent broker, closed pages: the console stays useful and asks for little."""

from __future__ import annotations

import asyncio
import html
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.console_page import write_tables
from tests.console.browsing import browsing, text_of

import penstock
from penstock import Message
from penstock.console.pages.search import MAX_TOPICS
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded, embedded

TOPICS, GROUPS = 10_000, 1_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A cluster with many topics and groups, from the files of its broker."""
    data = tmp_path_factory.mktemp("large")
    config = data / "broker-a/config"
    with embedded(data) as mq, penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        mq.admin.create_topic("orders", queues=1)
        for _ in range(0, GROUPS, 100):
            producer.send_batch([Message("orders", b"x")] * 100)
    write_tables(config, TOPICS, GROUPS)
    with embedded(data) as mq:
        yield mq


@pytest.mark.spec("C4")
async def test_ten_thousand_topics_are_listed_filtered_and_sorted_by_the_address(
    large: Embedded,
) -> None:
    async with browsing(large.namesrv) as browser:
        page = await browser.open("topics", n=200)
        assert page.count('data-label="Topic"') == 200
        assert "10,001 topics" in text_of(page)
        assert "page 1 of 51" in text_of(page)
        # Only what is visible was asked for.
        [view] = browser.app.state.console.views.values()
        assert 0 < sum(1 for key in view.asked if key[0] == "stats") <= 200
        first = await browser.open("topics", q="topic-009", sort="-name", page=2, n=30)
        again = await browser.open("topics", q="topic-009", sort="-name", page=2, n=30)
        names = re.findall(r">(topic-\d+)</a>", first)
        assert names == re.findall(r">(topic-\d+)</a>", again)
        assert names == [f"topic-{number:05d}" for number in range(969, 939, -1)]
        assert len(page) < 200_000


@pytest.mark.spec("C11")
async def test_a_key_is_searched_for_in_some_topics_at_a_time(large: Embedded) -> None:
    with penstock.Producer("searched", namesrv=large.namesrv) as producer:
        producer.send(Message("topic-00777", b"found", keys=["needle"]))
    async with browsing(large.namesrv) as browser:
        path = "/api/v1/c/local/search"
        first = await browser.client.get(path, params={"q": "needle"})
        assert first.json()["topics_left"] == TOPICS + 1 - MAX_TOPICS
        page = await browser.open("search", q="needle")
        assert "Nothing found" in page
        [further] = re.findall(r'href="([^"]*after=\d+)"', page)
        found = await browser.client.get(html.unescape(further), follow_redirects=True)
        assert found.status_code == 200
        assert "topic-00777" in str(found.url)
        assert "needle" in text_of(found.text)


@pytest.mark.spec("C5")
async def test_a_thousand_groups_are_sorted_by_lag(large: Embedded) -> None:
    async with browsing(large.namesrv) as browser:
        page = await browser.open("groups", n=200)
        lags = [
            int(text.replace(",", ""))
            for text in re.findall(r'data-live="lag:group-\d+">([\d,]+)<', page)
        ]
        assert len(lags) == 200
        assert lags == sorted(lags, reverse=True)
        assert lags[0] == GROUPS
        worst = re.findall(r">(group-\d+)</a>", page)[0]
        assert sum(row.lag for row in large.admin.group_lag(worst)) == lags[0]


async def test_many_readers_cause_one_request(large: Embedded) -> None:
    async with browsing(large.namesrv) as browser:
        await browser.open("settings")
        await asyncio.gather(*(browser.open("groups") for _ in range(10)))
        [view] = browser.app.state.console.views.values()
        assert view.asked["lags",] == 1


async def test_live_numbers_of_a_list_are_one_request(large: Embedded) -> None:
    async with browsing(large.namesrv) as browser:
        names = [f"lag:group-{number:04d}" for number in range(50)]
        path = browser.path("live")
        answer = await browser.client.get(path, params={"watch": ",".join(names), "once": "1"})
        shown = answer.json()
        assert set(shown) == set(names)
        lag = sum(row.lag for row in large.admin.group_lag("group-0001"))
        assert shown["lag:group-0001"] == str(lag)
        [view] = browser.app.state.console.views.values()
        assert [key for key in view.asked if key[0] == "lags"] == [("lags",)]


@pytest.mark.spec("C3")
async def test_a_silent_broker_leaves_holes_and_the_rest_is_right(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock"]
    ports = ["--nameserver-port", "0", "--broker-port", "0", "--console", "off"]
    main = ChildProcess([*command, "up", "--data", tmp_path / "a", "--other-brokers", *ports])
    with main:
        ready = await asyncio.to_thread(main.wait_for_line, r"^ready namesrv=(\S+) ", 60)
        where = ["--namesrv", ready[1], "--data", str(tmp_path / "b")]
        named = ["--broker-name", "broker-b", "--broker-port", "0"]
        other = ChildProcess([*command, "broker", *where, *named])
        with other:
            await asyncio.to_thread(other.wait_for_line, "^ready broker=", 60)
            async with penstock.aio.Admin(namesrv=ready[1]) as admin:
                await admin.create_topic("orders", queues=1)
                await admin.create_topic("here", queues=1, brokers=["broker-a"])
            async with browsing(ready[1]) as browser:
                await browser.open("topics")
            other.send_signal(signal.SIGSTOP)
            try:
                async with browsing(ready[1]) as browser:
                    shown = await browser.read("topics")
                    assert "broker-b did not answer" in shown
                    assert re.search(r"here \S 1 0 ", shown), shown
                    overview = await browser.read()
                    assert "Part of the cluster does not answer" in overview
                    assert re.search(r"broker-b \S+ \? \? \? \? did not answer", overview)
                    assert re.search(r"broker-a \S+ V5\S+ 0 0 ", overview), overview
            finally:
                other.send_signal(signal.SIGCONT)
