"""The pages on what Apache RocketMQ 4.9.7 and 5.5.0 stored: topics, offsets, retries, letters.

``make interop`` opens the same pages on Apache's own brokers.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.console.browsing import Browser, browsing, text_of
from tests.store.conftest import SAFE_EXTRACTION
from tests.support.paths import VECTORS

from penstock.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.nameserver import NameServer
from penstock.nameserver.config import NameServerConfig
from penstock.store import StoreConfig

RECORDED = StoreConfig(
    mapped_file_size_commit_log=65536,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=100,
    max_index_num=400,
    file_reserved_hours=24 * 365 * 50,  # the files are as old as the recording
)
EVERY_PAGE: tuple[tuple[str, ...], ...] = (
    (),
    ("topics",),
    ("topics", "golden-one"),
    ("topics", "golden-four", "messages"),
    ("groups",),
    ("groups", "golden-cg"),
    ("groups", "golden-cg", "retries"),
    ("groups", "golden-cg", "dead-letters"),
    ("dead-letters",),
    ("delays",),
    ("clients",),
    ("brokers",),
    ("spark",),
)


class Recorded:
    """A browser before a recorded store, and what Apache says is in it."""

    def __init__(self, browser: Browser, rows: list[dict[str, Any]]) -> None:
        self.browser = browser
        self.rows = [row for row in rows if row["kind"] == "message"]

    def of(self, topic: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["topic"] == topic]


@pytest.fixture(params=["4.9.7", "5.5.0"])
async def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Recorded]:
    version: str = request.param
    with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, **SAFE_EXTRACTION)
    with gzip.open(VECTORS / f"store-{version}.manifest.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(NameServer(NameServerConfig(listen_port=0)))
        config = BrokerConfig(listen_port=0, namesrv_addr=names.address)
        await stack.enter_async_context(Broker(config, tmp_path / "store", store_config=RECORDED))
        browser = await stack.enter_async_context(browsing(names.address))
        yield Recorded(browser, rows)


@pytest.mark.spec("C21")
async def test_every_page_opens_on_what_apache_stored(recorded: Recorded) -> None:
    browser = recorded.browser
    for parts in EVERY_PAGE:
        page = await browser.open(*parts)
        assert "did not answer" not in page, parts
    shown = await browser.read("topics")
    assert "golden-one" in shown
    assert "golden-four" in shown
    assert "SCHEDULE_TOPIC_XXXX" not in shown, "a system topic"
    assert "golden-cg" in await browser.read("groups")


@pytest.mark.spec("C21")
async def test_messages_are_found_by_id_key_and_tag(recorded: Recorded) -> None:
    browser = recorded.browser
    for row in recorded.of("golden-four")[:10]:
        page = await browser.read("messages", row["uniqKey"], topic="golden-four")
        assert f"@{row['queueOffset']}" in page
        # The offset id has the address that the broker had when it stored the message.
        assert row["uniqKey"] in await browser.read("messages", row["msgId"])
        if row["keys"]:
            found = await browser.client.get(
                browser.path("search"), params={"q": row["keys"]}, follow_redirects=True
            )
            assert found.status_code == 200
            assert row["keys"] in text_of(found.text)
    odd = [row for row in recorded.of("golden-four") if row["tags"] == "Odd"]
    shown = await browser.open("topics", "golden-four", "messages", tag="Odd", n=200)
    assert shown.count('data-label="Stored"') == len(odd) > 0


@pytest.mark.spec("C21")
async def test_letters_of_java_consumers_have_no_reason_and_a_life(recorded: Recorded) -> None:
    browser, letters = recorded.browser, recorded.of("%DLQ%golden-cg")
    assert letters
    page = await browser.read("groups", "golden-cg", "dead-letters", all=1)
    assert f"{len(letters)} stored" in page
    assert "not recorded" in page
    for row in letters:
        assert row["keys"] in page
        life = await browser.read("messages", row["uniqKey"], topic=row["topic"])
        assert "Its life" in life
        assert f"died after {row['reconsumeTimes']} attempts" in life
        assert "golden-cg" in life
