"""What one request may cost: bytes in memory, questions to brokers, and hidden bodies."""

from __future__ import annotations

import csv
import io
import json
import time

import httpx
import pytest
from tests.console.browsing import text_of
from tests.console.real_server import send_raw, served

import penstock
from penstock import Message
from penstock.admin import queue_reading
from penstock.console import browse, message_search
from penstock.model import MessageQueue
from penstock.testing.embedded import Embedded

BODY = 300_000


def fill(mq: Embedded, topic: str, count: int, *, queues: int = 2) -> list[str]:
    """The keys of large messages, oldest first."""
    mq.admin.create_topic(topic, queues=queues)
    keys = [f"k-{number}" for number in range(count)]
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        for key in keys:
            producer.send(Message(topic, b"x" * BODY, keys=[key, "all"]))
    return keys


async def test_pages_and_exports_hold_a_bounded_number_of_bytes(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(mq, "large", 12)
    monkeypatch.setattr(browse, "MAX_BYTES", 5 * BODY)
    async with served(mq.namesrv) as client:
        home = "/c/local/topics/large/messages"
        saved = await client.get(f"{home}/export")
        rows = [json.loads(line) for line in saved.text.splitlines()]
        assert [row["keys"][0] for row in rows] == keys[:-6:-1], "the newest, without a gap"
        assert (
            'filename="large-only-5-for-their-size.jsonl"' in saved.headers["content-disposition"]
        )
        assert saved.headers["x-partial"].startswith("5 messages")
        table = (await client.get(f"{home}/export?format=csv")).text
        csv.field_size_limit(2 * BODY)
        assert len(list(csv.DictReader(io.StringIO(table)))) == 5
        for asked in ("?key=all", "?queue=broker-a:0&offset=0&n=12"):
            part = (await client.get(f"{home}/export{asked}")).text.splitlines()
            assert len(part) <= 6, asked
        page = await client.get(home)
        assert "Only 5 messages" in text_of(page.text)
        # Page by page all of them are reached.
        seen: list[str] = []
        address: str | None = f"/api/v1{home}"
        while address is not None:
            answer = (await client.get(address)).json()
            seen += [row["keys"][0] for row in answer["rows"]]
            address = answer["older"]
            assert len(seen) <= len(keys)
        assert seen == keys[::-1]


def test_a_chunk_of_a_queue_is_bounded(mq: Embedded) -> None:
    fill(mq, "chunks", 12, queues=1)
    queue = MessageQueue("chunks", "broker-a", 0)
    part = mq.admin.messages(queue, 0, count=512, max_bytes=queue_reading.CHUNK_BYTES)
    size = sum(len(message.body) for message in part.messages)
    assert size <= 2 * queue_reading.CHUNK_BYTES
    assert part.next_offset == len(part.messages) < 12
    held = queue_reading.ends(mq.admin, "chunks")
    assert len(list(queue_reading.read(mq.admin, held))) == 12


async def test_hidden_bodies_are_not_guessed_by_searches(mq: Embedded) -> None:
    mq.admin.create_topic("hidden", queues=1)
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("hidden", json={"pin": "1234"}, properties={"price": "5$"}))
    async with served(mq.namesrv, hide_bodies=True) as client:
        for path in ("", "/export", "/tail"):
            home = f"/c/local/topics/hidden/messages{path}"
            for query in (
                {"text": "1234"},
                {"where": "$pin = '1234'"},
                {"where": "'$'='$' OR $pin > 1"},
            ):
                refused = await client.get(home, params=query)
                assert refused.status_code == 400, (path, query)
        answer = await client.get(
            "/api/v1/c/local/topics/hidden/messages", params={"where": "price = '5$'"}
        )
        assert len(answer.json()["rows"]) == 1
        assert "Body has" not in (await client.get("/c/local/topics/hidden/messages")).text


async def _ask(client: httpx.AsyncClient, path: str) -> httpx.Response:
    return await client.get(f"/c/local/{path}")


async def test_only_what_looks_like_an_id_is_searched_in_all_topics(
    mq: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.admin.create_topic("odd", queues=1)
    await send_raw(mq.namesrv, "odd", UNIQ_KEY="an odd id")
    async with served(mq.namesrv) as client:
        for path in ("messages/any text", "messages/any text/body", "topics/odd/send?like=text"):
            refused = await _ask(client, path)
            assert refused.status_code == 400, path
            assert "is not the id of a message" in text_of(refused.text)
        assert (await _ask(client, f"messages/{'A' * 32}")).status_code == 404
        assert (await _ask(client, "messages/an odd id?topic=odd")).status_code == 200
        # A search that finds nothing ends in time.
        for number in range(40):
            mq.admin.create_topic(f"more-{number}", queues=1)
        monkeypatch.setattr(message_search, "SEARCH_SECONDS", 0.001)
        began = time.monotonic()
        late = await _ask(client, f"messages/{'B' * 32}")
        assert late.status_code == 502
        assert time.monotonic() - began < 5
