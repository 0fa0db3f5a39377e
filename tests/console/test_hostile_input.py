"""Texts that a producer or a visitor made up to be more than text."""

from __future__ import annotations

import ast
import re

import httpx
import pytest
from tests.console.browsing import HOME, browsing
from tests.console.real_server import ask_raw, origin_of, send_raw, served

from penstock.console.message_as_test import as_test
from penstock.testing.embedded import Embedded

HOSTILE_IDS = (
    '"""\nimport os\nos.mkdir("made-by-a-message")\n"""',
    "'''\nimport os\n'''",
    "\\",
    '"\r\nset-cookie: stolen=1; x="',
    "主题-\u202e\u2028",
)


async def _newest_id(client: httpx.AsyncClient, topic: str) -> str:
    """The broker's id of the only message of a topic."""
    answer = await client.get(f"/api/v1/c/local/topics/{topic}/messages")
    [row] = answer.json()["rows"]
    return str(row["offset_msg_id"])


@pytest.mark.parametrize("number", range(len(HOSTILE_IDS)))
async def test_an_id_of_a_producer_stays_text_in_a_test_and_in_a_header(
    mq: Embedded, number: int
) -> None:
    hostile, topic = HOSTILE_IDS[number], f"hostile-{number}"
    mq.admin.create_topic(topic, queues=1)
    await send_raw(
        mq.namesrv, topic, hostile.encode(), UNIQ_KEY=hostile, KEYS=hostile, TAGS=hostile, p=hostile
    )
    async with served(mq.namesrv) as client:
        offset_id = await _newest_id(client, topic)
        text = (await client.get(f"/c/local/messages/{offset_id}/test?topic={topic}")).text
        module = ast.parse(text)
        kinds = [type(one).__name__ for one in module.body]
        assert kinds == ["Expr", "ImportFrom", "FunctionDef", "FunctionDef"], text
        assert text.isascii()
        assert hostile in (ast.get_docstring(module, clean=False) or "")
        saved = await client.get(f"/c/local/messages/{offset_id}/body?topic={topic}")
        assert saved.status_code == 200
        assert "stolen" not in saved.headers.get("set-cookie", "")
        name = saved.headers["content-disposition"]
        assert re.fullmatch(r'attachment; filename="[A-Za-z0-9_-]+\.bin"', name), name


async def test_a_topic_of_digits_that_are_no_letters_gives_a_test_that_can_be_read(
    mq: Embedded,
) -> None:
    mq.admin.create_topic("named", queues=1)
    await send_raw(mq.namesrv, "named", REAL_TOPIC="x")
    async with served(mq.namesrv) as client:
        offset_id = await _newest_id(client, "named")
    message = mq.admin.message(offset_id)
    message.topic = "²-主题"
    ast.parse(as_test(message))


async def test_headers_that_cannot_be_read_are_refused(mq: Embedded) -> None:
    async with served(mq.namesrv) as client:
        path = "/c/local/topics/new"
        for origin in ("http://[", "http://[::1", "null"):
            refused = await client.post(path, data={"topic": "x"}, headers={"origin": origin})
            assert refused.status_code == 403, origin
        answer = await ask_raw(
            client, f"POST {path} HTTP/1.1", f"Content-Length: {'9' * 19}", "Origin: http://["
        )
        assert answer.startswith("HTTP/1.1 403")
        answer = await ask_raw(client, f"POST {path} HTTP/1.1", f"Content-Length: {'9' * 19}")
        assert answer.startswith("HTTP/1.1 413")


async def test_a_length_of_thousands_of_digits_is_refused(mq: Embedded) -> None:
    async with browsing(mq.namesrv) as browser:
        refused = await browser.client.post(
            browser.path("topics", "new"),
            headers={"content-length": "9" * 5000, "origin": HOME},
        )
        assert refused.status_code == 413


async def test_no_link_of_a_missing_page_leads_to_another_host(mq: Embedded) -> None:
    async with served(mq.namesrv) as client:
        for path in ("//evil.example/x", "///evil.example/x", "/\\evil.example/x"):
            page = await ask_raw(client, f"GET {path} HTTP/1.1")
            assert page.startswith("HTTP/1.1 404")
            assert not re.search(r'href="[/\\]{2}', page), path


async def test_a_logout_without_the_token_of_its_page_is_refused(mq: Embedded) -> None:
    async with served(mq.namesrv, login=True) as client:
        await client.get("/login")
        refused = await client.post("/logout", headers={"origin": origin_of(client)})
        assert refused.status_code == 403
        assert "earlier session" in refused.text
