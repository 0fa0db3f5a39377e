"""Messages: found, shown, exported, sent; hostile bodies stay text."""

from __future__ import annotations

import asyncio
import base64
import csv
import gzip
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.console.browsing import Browser, browsing, text_of

import penstock
from penstock import Message, Receipt
from penstock.console import bodies
from penstock.testing.embedded import Embedded


def send(mq: Embedded, *messages: Message) -> list[Receipt]:
    with penstock.Producer("shop", namesrv=mq.namesrv) as producer:
        return [producer.send(message) for message in messages]


def orders(topic: str) -> list[Message]:
    return [
        Message(
            topic,
            json={"id": f"o-{number}", "total": number * 50},
            keys=[f"o-{number}"],
            tag="paid" if number % 2 else "created",
            properties={"region": "eu" if number > 2 else "us"},
        )
        for number in range(6)
    ]


def rows(page: str) -> list[str]:
    """The keys of the shown messages, in their order."""
    return re.findall(r'data-label="Keys">([^<]*)</td>', page)


@pytest.mark.spec("C6")
async def test_messages_are_found_by_tag_key_text_and_condition(
    mq: Embedded, browser: Browser
) -> None:
    send(mq, *orders("seek"))
    questions: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["o-5", "o-4", "o-3", "o-2", "o-1", "o-0"]),
        ({"tag": "paid"}, ["o-5", "o-3", "o-1"]),
        ({"key": "o-4"}, ["o-4"]),
        ({"text": '"o-2"'}, ["o-2"]),
        ({"where": "$total > 100"}, ["o-5", "o-4", "o-3"]),
        ({"where": "$total > 100 AND tag = 'paid' AND region = 'eu'"}, ["o-5", "o-3"]),
        ({"from": "10m"}, ["o-5", "o-4", "o-3", "o-2", "o-1", "o-0"]),
        ({"to": "10m"}, []),
    ]
    for question, found in questions:
        page = await browser.open("topics", "seek", "messages", **question)
        assert rows(page) == found, question
    # Another browser, the same address: the same rows.
    async with browsing(mq.namesrv) as other:
        page = await other.open("topics", "seek", "messages", where="$total > 100")
        assert rows(page) == ["o-5", "o-4", "o-3"]


async def test_older_messages_follow_page_by_page_without_gap_or_repeat(
    mq: Embedded, browser: Browser
) -> None:
    sent = [f"k-{number}" for number in range(25)]
    send(mq, *(Message("paged", b"x", keys=[key]) for key in sent))
    seen: list[str] = []
    address: str | None = browser.path("topics", "paged", "messages") + "?n=4"
    while address is not None:
        page = (await browser.client.get(address)).text
        seen += rows(page)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        address = older[1].replace("&amp;", "&") if older else None
        assert len(seen) <= len(sent)
    assert sorted(seen) == sorted(sent)


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    "code", ["__import__('os').system('true')", "message.body", "1 if True else 2", "a = b() "]
)
async def test_python_in_a_condition_is_an_error(mq: Embedded, browser: Browser, code: str) -> None:
    send(mq, Message("coded", b"x"))
    shown = await browser.read("topics", "coded", "messages", status=400, where=code)
    assert "That cannot be done" in shown


HOSTILE = b'"><img src=x onerror=alert(1)><script>alert(2)</script>'


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"total": 3, "deep": [1]}', '"total": 3'),
        ("grüße".encode(), "grüße"),
        (b"\x00\x01\xff", "00 01 ff"),
        (gzip.compress(b"inside", mtime=0), "inside"),
        (b"x" * (4 << 20), "the first 65,536 of 4,194,304 characters"),
        (HOSTILE, "<script>alert(2)</script>"),
    ],
)
async def test_bodies_are_shown_as_what_they_are(
    mq: Embedded, browser: Browser, body: bytes, shown: str
) -> None:
    [receipt] = send(mq, Message("bodies", body, tag="<i>", keys=["<b>k</b>"]))
    page = await browser.open("messages", receipt.msg_id, topic="bodies")
    assert shown in text_of(page)
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<b>k</b>" not in page
    listed = await browser.open("topics", "bodies", "messages")
    assert "<script>alert" not in listed
    assert len(listed) < 200_000
    saved = await browser.client.get(browser.path("messages", receipt.msg_id, "body"))
    assert saved.content == body
    assert saved.headers["content-disposition"].startswith("attachment")


@pytest.mark.spec("C22")
async def test_hidden_bodies_are_in_no_page_and_no_file(mq: Embedded) -> None:
    [receipt] = send(mq, Message("secret", b"the-secret-body", keys=["k"]))
    async with browsing(mq.namesrv, hide_bodies=True) as browser:
        for path in (
            ("topics", "secret", "messages"),
            ("messages", receipt.msg_id),
            ("topics", "secret", "messages", "export"),
        ):
            assert "the-secret-body" not in await browser.open(*path)
        await browser.open("messages", receipt.msg_id, "body", status=404)
        await browser.open("messages", receipt.msg_id, "test", status=404)


@pytest.mark.spec("C10")
async def test_a_message_is_sent_and_another_one_like_it(mq: Embedded, browser: Browser) -> None:
    mq.admin.create_topic("sends", queues=1)
    done = await browser.send(
        "topics", "sends", "send", body="hello", tag="t", keys="k1 k2", properties="region=eu"
    )
    assert done.status_code == 200, text_of(done.text)
    link = re.search(r'Stored as <a href="([^"]+)"', done.text)
    assert link is not None
    page = (await browser.client.get(link[1])).text
    assert "hello" in page
    like = re.search(r'href="([^"]+like=[^"]+)"', page)
    assert like is not None
    form = (await browser.client.get(like[1])).text
    for part in ("hello</textarea>", 'value="t"', 'value="k1 k2"', "region=eu"):
        assert part in form, part
    # What the system has added is not for another message.
    assert not [part for part in ("UNIQ_KEY", "WAIT", "MSG_REGION", "KEYS=") if part in form]
    assert "send sends after={'msg_id': " in await browser.read("audit")


@pytest.mark.spec("C11")
async def test_the_search_box_finds_ids_keys_topics_and_groups(
    mq: Embedded, browser: Browser
) -> None:
    [one] = send(mq, Message("wanted", b"find me", keys=["unique-77"]))
    mq.admin.create_group("finders")
    for text, target in (
        (one.msg_id, "find me"),
        (one.offset_msg_id, "find me"),
        ("unique-77", "find me"),
        ("wanted", "Groups that consume it"),
        ("finders", "Members"),
    ):
        answer = await browser.client.get(
            browser.path("search"), params={"q": text}, follow_redirects=True
        )
        assert target in text_of(answer.text), text
    assert "Nothing found" in await browser.read("search", q="no-such-thing")
    async with browsing("127.0.0.1:1") as lost:
        shown = await lost.read("search", q="no-such-thing")
        assert "Not everything could be asked" in shown


@pytest.mark.spec("C32")
async def test_an_export_has_the_rows_and_quotes_formulas(mq: Embedded, browser: Browser) -> None:
    send(mq, Message("exported", b"=1+1", keys=["a"], tag="x"), Message("exported", b"plain"))
    text = await browser.open("topics", "exported", "messages", "export", tag="x")
    [row] = [json.loads(line) for line in text.splitlines()]
    assert (row["body"], row["keys"], row["tags"]) == ("=1+1", ["a"], "x")
    table = await browser.open("topics", "exported", "messages", "export", format="csv")
    bodies = {row["body"] for row in csv.DictReader(io.StringIO(table))}
    assert bodies == {"'=1+1", "plain"}
    # Parameters of any name lead on.
    address = browser.path("topics", "exported", "messages") + "?tag=x&self=1&format=csv"
    odd = await browser.client.get(address)
    assert "messages/export?tag=x&amp;self=1&amp;format=csv" in odd.text
    async with browsing(mq.namesrv, no_export=True) as other:
        assert "Export" not in await other.open("topics", "exported", "messages")
        await other.open("topics", "exported", "messages", "export", status=404)


async def test_a_message_as_a_test_runs(mq: Embedded, browser: Browser, tmp_path: Path) -> None:
    [one] = send(
        mq,
        Message("copied", b'{"a":1}', tag="t", keys=["k"], properties={"region": "eu"}),
    )
    text = await browser.open("messages", one.msg_id, "test", topic="copied")
    await asyncio.to_thread((tmp_path / "test_copied.py").write_text, text)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_copied.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.spec("C8")
def test_base64_is_the_body_as_it_is_stored() -> None:
    packed = gzip.compress(b'{"total": 1}')
    shown = bodies.show(packed, "base64")
    assert base64.b64decode(shown.text) == packed, "not what is inside it"
    assert bodies.show(packed).view == "json"
    large = bodies.show(bytes(4 << 20), "base64")
    assert len(base64.b64decode(large.text)) < 64 << 10
    assert "of 4,194,304 bytes" in large.note
