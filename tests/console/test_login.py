"""Login with users of the cluster: the broker decides."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from tests.console.browsing import HOME, text_of
from tests.support.waiting import wait_for

from penstock import Admin, Message, Producer, PushConsumer, StoredMessage
from penstock.client.cluster_access import ClusterAccess
from penstock.console.app import running_app
from penstock.console.options import ConsoleOptions
from penstock.console.pages import PAGES
from penstock.console.security import MAX_SESSIONS
from penstock.console.shapes import AccessJson
from penstock.errors import NoPermission
from penstock.runtime.child_process import ChildProcess

SECRET = "a-secret-of-the-admin"


@pytest.fixture
def namesrv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    ports = ["--nameserver-port", "0", "--broker-port", "0", "--console", "off"]
    command = [sys.executable, "-m", "penstock", "up", "--data", str(tmp_path / "data"), *ports]
    with ChildProcess([*command, "--auth", "--admin-secret-file", str(secret)]) as process:
        yield process.wait_for_line(r"^ready namesrv=(\S+) ", 60)[1]


@pytest.mark.spec("C23", "C25")
async def test_only_a_user_of_the_cluster_gets_in_and_guessing_is_slow(namesrv: str) -> None:
    options = ConsoleOptions(contexts={"local": ClusterAccess.of(namesrv)}, login=True)
    async with (
        running_app(options) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as client,
    ):
        away = await client.get("/c/local/topics")
        assert away.status_code == 303
        assert away.headers["location"] == "/login?next=/c/local/topics"
        page = await client.get(away.headers["location"])
        cookie = away.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        token = re.search(r'name="token" value="(\w+)"', page.text)
        assert token is not None

        async def enter(secret: str) -> httpx.Response:
            assert token is not None
            return await client.post(
                "/login?next=/c/local/topics",
                data={"token": token[1], "user": "admin", "secret": secret},
                headers={"origin": HOME},
            )

        wrong = await enter("wrong")
        assert wrong.status_code == 403
        assert "the cluster refused" in text_of(wrong.text)
        assert "wrong" not in str(wrong.headers)
        right = await enter(SECRET)
        assert right.status_code == 303
        assert right.headers["location"] == "/c/local/topics"
        shown = await client.get("/c/local/topics")
        assert shown.status_code == 200
        assert SECRET not in shown.text
        out = await client.post(
            "/logout",
            data={"token": re.findall(r'name="token" value="(\w+)"', shown.text)[0]},
            headers={"origin": HOME},
        )
        assert out.headers["location"] == "/login"
        assert (await client.get("/c/local/topics")).status_code == 303
        client.cookies.clear()
        page = await client.get("/login")
        token = re.search(r'name="token" value="(\w+)"', page.text)
        assert token is not None
        answers = [await enter("wrong") for _ in range(5)]
        assert "too many attempts" in text_of(answers[-1].text)
        assert "too many attempts" in text_of((await enter(SECRET)).text)


class Visitor:
    """A browser that logged in, or did not."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def token(self) -> str:
        page = await self.client.get("/c/local/settings", follow_redirects=True)
        found = re.search(r'name="token" value="(\w+)"', page.text)
        assert found is not None
        return found[1]

    async def enter(self, user: str, secret: str) -> None:
        fields = {"token": await self.token(), "user": user, "secret": secret}
        done = await self.client.post("/login", data=fields, headers={"origin": HOME})
        assert done.status_code == 303, text_of(done.text)

    async def send(self, path: str, **fields: str) -> httpx.Response:
        fields["token"] = await self.token()
        return await self.client.post(f"/c/local/{path}", data=fields, headers={"origin": HOME})


@asynccontextmanager
async def visiting(namesrv: str, **options: Any) -> AsyncIterator[tuple[Starlette, Visitor]]:
    """A console that asks for a login, and a browser."""
    chosen = ConsoleOptions(contexts={"local": ClusterAccess.of(namesrv)}, login=True, **options)
    async with (
        running_app(chosen) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as client,
    ):
        yield app, Visitor(client)


@pytest.fixture
def shop(namesrv: str) -> Iterator[Admin]:
    """Orders, a group with a dead letter, and a user without rights."""
    keys: Any = {"access_key": "admin", "secret_key": SECRET}
    with Admin(namesrv=namesrv, **keys) as admin:
        admin.create_topic("orders", queues=1)
        admin.create_group("billing")
        admin.create_user("guest", "a-secret-of-the-guest")
        wait_until_known(namesrv, "guest", "a-secret-of-the-guest")
        with Producer("shop", namesrv=namesrv, **keys) as producer:
            for _ in range(3):
                producer.send(Message("orders", b"kept"))
        admin.reset_offsets("billing", "orders", "first")
        consumer = PushConsumer("billing", namesrv=namesrv, max_retries=0, **keys)

        @consumer.on("orders")
        def fail(message: StoredMessage) -> None:
            raise ValueError("no")

        with consumer:
            wait_for(lambda: _pending(admin) == 3, 60)
        yield admin


def wait_until_known(namesrv: str, user: str, secret: str) -> None:
    """Until the name server has read the file of users again.

    It refuses an address that tries too often, so there is a pause between two tries.
    """
    for _ in range(60):
        with Admin(namesrv=namesrv, access_key=user, secret_key=secret) as admin:
            try:
                admin.topics()
            except NoPermission:
                time.sleep(1)
            else:
                return
    raise AssertionError(f"the name server does not know {user}")


def _pending(admin: Admin) -> int:
    return sum(queue.pending for queue in admin.dead_letter_queues("billing"))


def _state(admin: Admin) -> dict[str, object]:
    """What an attack could change."""
    return {
        "topics": sorted(admin.topics()),
        "groups": sorted(admin.groups()),
        "offsets": [row.committed for row in admin.group_lag("billing")],
        "letters": _pending(admin),
        "stored": [row.max_offset for row in admin.topic_stats("orders")],
        "users": admin.users(),
        "rights": admin.rights(),
        "settings": admin.broker_config("broker-a"),
    }


ATTACKS: dict[str, dict[str, str]] = {
    "topics/new": {"topic": "made", "queues": "1"},
    "topics/orders/delete": {"name": "orders"},
    "topics/orders/send": {"body": "forged"},
    "groups/billing/reset": {"topic": "orders", "to": "first", "plan": "x", "name": "billing"},
    "groups/billing/dead-letters/plan": {"all": "1"},
    "groups/billing/dead-letters/redrive": {"all": "1"},
    "groups/billing/dead-letters/aside": {"sure": "1"},
    "groups/billing/dead-letters/delete": {"name": "billing"},
    "messages/0/handle": {"client": "billing x"},
    "jobs/1/cancel": {},
}


@pytest.mark.spec("C23", "C26")
async def test_an_attacker_without_rights_changes_nothing(shop: Admin, namesrv: str) -> None:
    before = _state(shop)
    async with visiting(namesrv) as (app, visitor):
        paths = {
            f"{route.path.format(topic='orders', group='billing', id='0', number='1')}".lstrip("/")
            for family in PAGES
            for route in getattr(family, "CHANGES", ())
            if "POST" in (route.methods or ())
        }
        assert paths == ATTACKS.keys(), "an attack for each change there is"
        client = visitor.client
        # Without a login: pages lead to it, the API refuses, and so do changes with a valid token.
        for path in ("", "topics", "groups/billing", "topics/orders/messages", "access", "audit"):
            assert (await client.get(f"/c/local/{path}")).status_code == 303, path
            refused = await client.get(f"/api/v1/c/local/{path}")
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert "kept" not in refused.text
        for path, fields in ATTACKS.items():
            assert (await visitor.send(path, **fields)).status_code == 303, path
            assert (await client.post(f"/api/v1/c/local/{path}", json=fields)).status_code == 401
        assert _state(shop) == before
        # As a user without rights: the broker refuses each change.
        await visitor.enter("guest", "a-secret-of-the-guest")
        for path, fields in ATTACKS.items():
            refused = await visitor.send(path, **fields)
            assert refused.status_code in (400, 403, 404, 502), (path, text_of(refused.text))
            assert "kept" not in refused.text
            refused = await client.post(
                f"/api/v1/c/local/{path}", json=fields, auth=("guest", "a-secret-of-the-guest")
            )
            assert refused.status_code in (400, 403, 404, 502), (path, refused.text)
        for path in ("topics/orders/messages", "groups/billing/dead-letters", "access"):
            shown = await client.get(f"/c/local/{path}")
            assert "kept" not in shown.text, path
            assert shown.status_code in (403, 404, 502), (path, text_of(shown.text))
        # What was tried is on record, with the name of the user.
        tried = [one for one in app.state.console.audit.newest if one["action"] == "refused"]
        assert {one["user"] for one in tried} >= {"guest"}
        assert len(tried) >= 2 * len(ATTACKS)
    assert _state(shop) == before


@pytest.mark.spec("C23")
async def test_users_who_are_no_operators_only_look(shop: Admin, namesrv: str) -> None:
    shop.create_user("ann", "a-secret-of-ann", is_super=True)
    wait_until_known(namesrv, "ann", "a-secret-of-ann")
    async with visiting(namesrv, operators=frozenset({"admin"})) as (_, visitor):
        await visitor.enter("ann", "a-secret-of-ann")
        page = (await visitor.client.get("/c/local/topics/orders")).text
        assert "Delete" not in page
        assert ">Send<" not in page
        assert "New topic" not in (await visitor.client.get("/c/local/topics")).text
        for path, fields in ATTACKS.items():
            assert (await visitor.send(path, **fields)).status_code == 403, path
        for path in ("topics/orders/send", "groups/billing/reset"):
            assert (await visitor.client.get(f"/c/local/{path}")).status_code == 403, path
    async with visiting(namesrv, operators=frozenset({"admin"})) as (_, visitor):
        await visitor.enter("admin", SECRET)
        assert ">Send<" in (await visitor.client.get("/c/local/topics/orders")).text
        made = await visitor.send("topics/new", topic="made", queues="2")
        assert made.status_code == 303
    assert "made" in shop.topics()


@pytest.mark.spec("C23")
async def test_visitors_do_not_push_users_out(namesrv: str) -> None:
    async with visiting(namesrv) as (app, visitor):
        await visitor.enter("admin", SECRET)
        for _ in range(MAX_SESSIONS + 10):
            app.state.console.sessions.start()
        assert (await visitor.client.get("/c/local/topics")).status_code == 200


@pytest.mark.spec("C26")
async def test_each_change_is_a_line_with_user_before_and_after(
    shop: Admin, namesrv: str, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    async with visiting(namesrv, audit_file=file) as (_, visitor):
        await visitor.enter("admin", SECRET)
        await visitor.send("topics/new", topic="made", queues="2")
        await visitor.send("topics/made/send", body="a body that is not in the log")
        await visitor.send("topics/made/delete", name="made")
        plan = await visitor.client.get("/c/local/groups/billing/reset?topic=orders&to=first")
        digest = re.search(r'name="plan" value="(\w+)"', plan.text)
        assert digest is not None
        goal = {"topic": "orders", "to": "first", "plan": digest[1]}
        moved = await visitor.send("groups/billing/reset", **goal)
        assert moved.status_code == 200, text_of(moved.text)
        await visitor.send("groups/billing/dead-letters/redrive", all="1", limit="1")
        await visitor.send("groups/billing/dead-letters/aside", sure="1")
        await visitor.send("groups/billing/dead-letters/delete", name="billing")
        shown = text_of((await visitor.client.get("/c/local/audit")).text)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["action"] for line in lines] == [
        "login",
        "create topic",
        "send",
        "delete topic",
        "reset",
        "redrive",
        "put aside",
        "delete dead letters",
    ]
    for line in lines[1:]:
        assert line["user"] == "admin"
        assert line["address"]
        assert line["time"]
        assert {"before", "after", "target"} <= line.keys(), line
        assert f"{line['action']} {line['target']}" in shown
    made, reset = lines[1], lines[4]
    assert (made["before"], made["after"]) == (None, {"queues": 2})
    assert reset["before"] == {"orders@broker-a:0": 3}
    assert reset["after"] == {"orders@broker-a:0": 0}
    assert lines[5]["before"]["pending"] == 3
    assert SECRET not in file.read_text()
    assert "not in the log" not in file.read_text()


async def test_the_page_of_users_shows_rights_and_no_secret(shop: Admin, namesrv: str) -> None:
    shop.grant("guest", ["Topic:orders"], ["Pub", "Sub"])
    async with visiting(namesrv) as (_, visitor):
        await visitor.enter("admin", SECRET)
        page = (await visitor.client.get("/c/local/access")).text
        shown = text_of(page)
        assert re.search(r"admin Super every right enabled", shown), shown
        assert re.search(r"guest Normal enabled 1 ", shown), shown
        assert re.search(r"guest Topic:orders Pub, Sub allow everywhere", shown), shown
        assert SECRET not in page
        assert "a-secret-of" not in page
        assert ">Access</a>" in (await visitor.client.get("/c/local/")).text
        answer = await visitor.client.get("/api/v1/c/local/access", auth=("admin", SECRET))
        assert msgspec.convert(answer.json(), AccessJson) == answer.json()
        assert {"admin", "guest"} <= {user["name"] for user in answer.json()["users"]}
