"""The JSON API: a twin of each page, with the fields of the command line, and its description."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner
from fastapi.openapi.models import OpenAPI
from starlette.routing import Route
from tests.console.browsing import HOME, Browser, browsing
from tests.support.waiting import wait_for

import penstock
from penstock import Message
from penstock.cli.main import app as command_line
from penstock.console.pages import PAGES
from penstock.console.visit import Twin
from penstock.testing.embedded import Embedded, embedded

HOME_PAGES = "/api/v1/c/local"
WITHOUT_TWIN = {
    "/settings",
    "/settings/save",
    "/live",
    "/topics/{topic}/messages/tail",
    "/topics/{topic}/send",
}
"""Forms, preferences of a browser, and streams of a page; a send itself has a twin."""


@pytest.fixture(scope="module")
def mq() -> Iterator[Embedded]:
    with embedded() as running:
        running.admin.create_topic("orders", queues=2)
        with penstock.Producer("shop", namesrv=running.namesrv) as producer:
            for number in range(6):
                producer.send(Message("orders", f"{number}".encode(), keys=[f"o-{number}"]))
            producer.send(Message("orders", b"later", delay="7m30s", keys=["timer"]))
        consumer = penstock.PushConsumer(
            "billing", namesrv=running.namesrv, start_from="first", max_retries=0
        )

        @consumer.on("orders")
        def bill(message: penstock.StoredMessage) -> None:
            if message.body == b"3":
                raise ValueError("three")

        with consumer:
            wait_for(lambda: running.admin.dead_letter_queues("billing"), 60)
            wait_for(lambda: _committed(running) == 6, 60)
            yield running


def _committed(mq: Embedded) -> int:
    return sum(row.committed for row in mq.admin.group_lag("billing") if row.topic == "orders")


async def get(browser: Browser, path: str, status: int = 200, **headers: str) -> Any:
    answer = await browser.client.get(HOME_PAGES + path, headers=headers)
    assert answer.status_code == status, (path, answer.text[:600])
    return answer.json()


async def command(mq: Embedded, *words: str) -> Any:
    arguments = [*words, "--json", "--namesrv", mq.namesrv]
    # Some commands have a loop of their own.
    done = await asyncio.to_thread(CliRunner().invoke, command_line, arguments)
    # The doctor ends with 1 where something is wrong.
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


def shapes() -> dict[str, Any]:
    """The type of each twin that is asked for by GET."""
    return {
        route.path: twin.shape
        for family in PAGES
        for route in (*family.ROUTES, *getattr(family, "CHANGES", ()))
        if "GET" in (route.methods or ())
        and isinstance(twin := getattr(route.endpoint, "twin", None), Twin)
    }


@pytest.mark.spec("C33")
async def test_every_page_has_a_twin_that_is_what_its_description_says(
    mq: Embedded, browser: Browser
) -> None:
    described = (await browser.client.get("/api/openapi.json")).json()
    OpenAPI.model_validate(described)
    assert described["openapi"].startswith("3.1")
    pages = {
        route.path
        for family in PAGES
        for route in (*family.ROUTES, *getattr(family, "CHANGES", ()))
        if isinstance(route, Route)
    }
    described_paths = {path.removeprefix("/api/v1/c/{context}") for path in described["paths"]}
    assert pages - WITHOUT_TWIN == described_paths - {"/topics/{topic}/send"}
    text = json.dumps(described)
    for name in re.findall(r"#/components/schemas/([^\"]+)", text):
        assert name in described["components"]["schemas"], name
    letter = mq.admin.dead_letters("billing")[0].message
    client = mq.admin.clients("billing")[0]
    names = {
        "topic": "orders",
        "group": "billing",
        "broker": "broker-a",
        "id": letter.offset_msg_id,
        "client": client.client_id,
    }
    started = await browser.client.post(
        f"{HOME_PAGES}/groups/billing/dead-letters/redrive", json={"all": True, "to": "group"}
    )
    assert started.status_code == 200, started.text
    names["number"] = started.json()["location"].rpartition("/")[2]
    for path, shape in shapes().items():
        if path == "/access":
            continue  # brokers without users refuse it; see test_login
        query = "?q=orders" if path == "/search" else ""
        query = "?topic=orders&to=first" if path.endswith("/reset") else query
        quoted = {key: quote(name, safe="") for key, name in names.items()}
        answer = await get(browser, path.format(**quoted) + query)
        # What is not described would be lost here.
        assert msgspec.to_builtins(msgspec.convert(answer, shape)) == answer, path


@pytest.mark.spec("C33")
async def test_fields_are_those_of_the_command_line(mq: Embedded, browser: Browser) -> None:
    def same(ours: Any, theirs: Any, *, but: tuple[str, ...] = ()) -> None:
        assert theirs
        for one, other in zip(ours, theirs, strict=True):
            assert other.keys() <= one.keys() | set(but)
            assert {k: v for k, v in one.items() if k in other and k not in but} == {
                k: v for k, v in other.items() if k not in but
            }

    same(
        (await get(browser, "/brokers"))["rows"],
        await command(mq, "cluster", "overview"),
        but=("in_per_second", "out_per_second", "out_today", "disk_used"),
    )
    topics = await get(browser, "/topics?q=orders")
    listed = [row for row in await command(mq, "topic", "list") if row["topic"] == "orders"]
    # A type that was not declared is NORMAL; the table does not have it.
    ours = [row for row in topics["rows"] if row["topic"] == "orders"]
    same(ours, listed, but=("message_type",))
    described = await command(mq, "topic", "describe", "orders")
    topic = await get(browser, "/topics/orders")
    assert topic["queues"] == described["queues"]
    assert topic["groups"] == described["groups"]
    group = await get(browser, "/groups/billing")

    def place(row: dict[str, Any]) -> tuple[str, int]:
        return row["topic"], row["queue_id"]

    same(
        sorted(group["queues"], key=place),
        sorted(await command(mq, "group", "lag", "billing"), key=place),
    )
    assert group["doctor"].keys() == (await command(mq, "doctor", "billing")).keys()
    plan = await get(browser, "/groups/billing/reset?topic=orders&to=first")
    reset = ("group", "reset", "billing", "--topic", "orders", "--to", "first", "--dry-run")
    assert plan["moves"] == await command(mq, *reset)
    letters = await get(browser, "/groups/billing/dead-letters?all=1")
    same(letters["rows"], await command(mq, "dlq", "list", "billing", "--all"))
    assert (await get(browser, "/dead-letters"))["rows"] == await command(mq, "dlq", "list")
    assert (await get(browser, "/delays"))["timers"] == await command(mq, "timer", "list")
    [message] = (await get(browser, "/topics/orders/messages?key=o-1"))["rows"]
    assert message == (await command(mq, "query", "orders", "--key", "o-1"))[0]


@pytest.mark.spec("C33")
async def test_errors_are_problems_and_unchanged_answers_are_not_sent_again(
    mq: Embedded, browser: Browser
) -> None:
    answer = await browser.client.get(f"{HOME_PAGES}/topics/ordrs")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == 404
    assert problem["what"] == "there is no topic 'ordrs'"
    assert problem["hint"] == "did you mean orders?"
    assert problem["request_id"]
    for path in (f"{HOME_PAGES}/nowhere", "/api/v1/c/other/topics", "/api/v2"):
        answer = await browser.client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (404, 404), path
    answer = await browser.client.get(f"{HOME_PAGES}/dead-letters")
    again = await browser.client.get(
        f"{HOME_PAGES}/dead-letters", headers={"if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.spec("C24", "C33")
async def test_a_change_by_the_api_must_be_json_and_of_no_other_origin(
    mq: Embedded, browser: Browser
) -> None:
    path = f"{HOME_PAGES}/topics/new"
    fields = {"topic": "by-api", "queues": 3}
    as_form = await browser.client.post(path, data=fields)
    assert as_form.status_code == 403
    # A browser sends this to any site without asking first.
    as_text = await browser.client.post(
        path, content=json.dumps(fields).encode(), headers={"content-type": "text/plain"}
    )
    assert as_text.status_code == 403
    foreign = await browser.client.post(path, json=fields, headers={"origin": "http://evil.test"})
    assert foreign.status_code == 403
    broken = await browser.client.post(
        path, content=b"[1]", headers={"content-type": "application/json"}
    )
    assert broken.status_code == 400
    assert "by-api" not in mq.admin.topics()
    made = await browser.client.post(path, json=fields, headers={"origin": HOME})
    assert made.json() == {"location": f"{HOME_PAGES}/topics/by-api"}
    assert len(mq.admin.topic_stats("by-api")) == 3
    sent = await browser.client.post(f"{HOME_PAGES}/topics/by-api/send", json={"body": "hello"})
    found = await get(browser, f"/messages/{sent.json()['msg_id']}?topic=by-api")
    assert found["message"]["body"] == "hello"
    async with browsing(mq.namesrv, read_only=True, hide_bodies=True) as reader:
        refused = await reader.client.post(path, json={"topic": "not-made", "queues": 1})
        assert refused.status_code == 404
        hidden = await get(reader, f"/messages/{sent.json()['msg_id']}?topic=by-api")
        assert hidden["message"]["body"] is None
        assert "body_base64" not in hidden["message"]
