"""Who gets in: only keys that a cluster checked, on that cluster alone, and not for ever."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.console.browsing import HOME, text_of
from tests.console.real_server import origin_of, served

from penstock.client.cluster_access import ClusterAccess
from penstock.console import audit as audit_module
from penstock.console.app import running_app
from penstock.console.audit import GENERATIONS, KEPT, Audit
from penstock.console.jobs import Job
from penstock.console.options import ConsoleOptions
from penstock.console.security import IDLE_SECONDS, TRIES_PER_MINUTE
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually

SECRET = "a-secret-of-the-admin"
PENSTOCK = [sys.executable, "-m", "penstock"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster as Apache's with ACL: its broker checks keys, its name server does not."""
    data = tmp_path_factory.mktemp("guarded")
    secret = data / "secret"
    secret.write_text(SECRET)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(data / "config"))
        names = stack.enter_context(
            ChildProcess([*PENSTOCK, "nameserver", "--nameserver-port", "0"])
        )
        namesrv = names.wait_for_line(r"^ready namesrv=(\S+)", 60)[1]
        command = [*PENSTOCK, "broker", "--namesrv", namesrv, "--broker-port", "0"]
        command += ["--data", str(data / "store"), "--auth", "--admin-secret-file", str(secret)]
        broker = stack.enter_context(ChildProcess(command))
        broker.wait_for_line(r"^ready ", 60)
        yield namesrv


async def enter(
    client: httpx.AsyncClient, user: str, secret: str, wanted: str = "/c/local/topics"
) -> httpx.Response:
    """Send the login form as a browser does."""
    page = await client.get("/login", params={"next": wanted})
    token = re.search(r'name="token" value="(\w+)"', page.text)
    assert token is not None
    return await client.post(
        "/login",
        params={"next": wanted},
        data={"token": token[1], "user": user, "secret": secret},
        headers={"origin": origin_of(client)},
    )


async def test_a_cluster_without_users_lets_no_key_in(mq: Embedded) -> None:
    async with served(mq.namesrv, login=True) as client:
        refused = await enter(client, "made-up", "made-up")
        assert refused.status_code == 403
        assert "this cluster has no users" in text_of(refused.text)
        assert (await client.get("/c/local/topics")).status_code == 303
        answer = await client.get("/api/v1/c/local/topics", auth=("made-up", "made-up"))
        assert answer.status_code == 401
        assert "this cluster has no users" in answer.json()["what"]


async def test_keys_are_checked_by_a_broker_not_by_the_name_server(guarded: str) -> None:
    async with served(guarded, login=True) as client:
        for user, secret in (("made-up", "made-up"), ("admin", "wrong")):
            refused = await enter(client, user, secret)
            assert refused.status_code == 403
            assert "the cluster refused" in text_of(refused.text)
            answer = await client.get("/api/v1/c/local/topics", auth=(user, secret))
            assert answer.status_code == 401
        for user, secret in (("", "x"), ("admin", ""), ("x" * 300, "x")):
            assert (await enter(client, user, secret)).status_code == 403
        assert (await enter(client, "admin", SECRET)).status_code == 303
        assert (await client.get("/c/local/topics")).status_code == 200


async def test_a_login_counts_on_its_own_cluster_only(guarded: str, mq: Embedded) -> None:
    async with served(guarded, mq.namesrv, login=True) as client:
        assert (await enter(client, "admin", SECRET)).status_code == 303
        assert (await client.get("/c/local/topics")).status_code == 200
        away = await client.get("/c/other/topics")
        assert away.headers["location"] == "/login?next=/c/other/topics"
        assert "Log in to other" in (await client.get(away.headers["location"])).text
        refused = await enter(client, "admin", SECRET, "/c/other/topics")
        assert "this cluster has no users" in text_of(refused.text)
        keys = ("admin", SECRET)
        assert (await client.get("/api/v1/c/local/topics", auth=keys)).status_code == 200
        assert (await client.get("/api/v1/c/other/topics", auth=keys)).status_code == 401
        # Further logins keep the first one.
        assert (await client.get("/c/local/topics")).status_code == 200


async def test_keys_of_a_context_are_not_for_every_visitor(guarded: str, mq: Embedded) -> None:
    keys = ClusterAccess.of(guarded, access_key="admin", secret_key=SECRET)
    contexts = {"local": ClusterAccess.of(mq.namesrv), "prod": keys}
    async with served(contexts=contexts) as client:
        assert (await client.get("/c/local/topics")).status_code == 200
        assert (await client.get("/c/prod/topics")).status_code == 303
        assert (await client.get("/api/v1/c/local/topics")).status_code == 200
        assert (await client.get("/api/v1/c/prod/topics")).status_code == 401
        assert (await enter(client, "admin", SECRET, "/c/prod/topics")).status_code == 303
        assert (await client.get("/c/prod/topics")).status_code == 200
    async with served(contexts=contexts, shares_keys=True) as client:
        assert (await client.get("/c/prod/topics")).status_code == 200


async def test_tries_at_the_same_time_are_limited_for_each_user(guarded: str) -> None:
    async with served(guarded, login=True) as client:

        async def guess(number: int) -> int:
            keys = ("admin", f"guess-{number}")
            return (await client.get("/api/v1/c/local/topics", auth=keys)).status_code

        answers = await asyncio.gather(*map(guess, range(15)))
        assert sorted(answers) == [401] * 5 + [429] * 10
        # Another user of this address is not kept out, and many made-up names are.
        answer = await client.get("/api/v1/c/local/topics", auth=("other", "guess"))
        assert answer.status_code == 401
        answers = []
        for number in range(20):
            answer = await client.get("/api/v1/c/local/topics", auth=(f"u-{number}", "guess"))
            answers.append(answer.status_code)
        assert answers[0] == 401
        assert answers[-1] == 429


async def test_right_keys_of_many_requests_at_once_are_one_try(guarded: str) -> None:
    async with served(guarded, login=True) as client:
        keys = ("admin", SECRET)
        answers = await asyncio.gather(
            *(client.get("/api/v1/c/local/topics", auth=keys) for _ in range(12))
        )
        assert [answer.status_code for answer in answers] == [200] * 12


async def test_right_keys_count_as_no_try(guarded: str) -> None:
    async with _within(guarded) as (_, client):
        for _ in range(TRIES_PER_MINUTE + 2):
            assert (await enter(client, "admin", SECRET)).status_code == 303


@pytest.mark.parametrize("wanted", ["//evil.test/c/", "https://evil.test/", "/\\evil.test"])
async def test_a_login_leads_to_no_other_host(guarded: str, wanted: str) -> None:
    async with _within(guarded) as (_, client):
        entered = await enter(client, "admin", SECRET, wanted)
        assert (entered.status_code, entered.headers["location"]) == (303, "/c/local/")


async def test_failed_logins_erase_nothing_and_fill_nothing(guarded: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with served(guarded, login=True, audit_file=file) as client:
        for number in range(9):
            await enter(client, "admin", f"guess-{number}")
        await enter(client, "x" * (4 << 20), "x")
        await enter(client, "y" * 200, "x")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["target"] for line in lines] == ["admin"] * 5 + ["y" * 200]
    assert lines[-1]["tries_beyond_the_limit"] == 4
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_audit_keeps_changes_apart_from_tries_and_cuts_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "MAX_FILE_BYTES", 20_000)
    audit = Audit(tmp_path / "audit.jsonl")
    audit.add(action="delete topic", target="orders", before={"a": "b" * 5000})
    for _ in range(2 * KEPT):
        audit.add(action="login refused", target="z" * 5000)
    assert "delete topic" in [one["action"] for one in audit.newest]
    files = sorted(tmp_path.iterdir())
    assert len(files) == GENERATIONS + 1
    assert {stat.S_IMODE(one.stat().st_mode) for one in files} == {0o600}
    assert max(len(line) for one in files for line in one.read_text().splitlines()) < 2000


async def test_a_program_of_this_machine_cannot_choose_its_address(mq: Embedded) -> None:
    async def flood(client: httpx.AsyncClient) -> list[int]:
        answers = []
        for number in range(250):
            client.cookies.clear()
            claim = {"x-forwarded-for": f"10.0.0.{number}"}
            answers.append((await client.get("/", headers=claim)).status_code)
        return answers

    async with served(mq.namesrv) as client:
        assert 429 in await flood(client)
    async with served(mq.namesrv, trusted_proxies=("127.0.0.1",)) as client:
        assert 429 not in await flood(client)


@asynccontextmanager
async def _within(namesrv: str) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    options = ConsoleOptions(contexts={"local": ClusterAccess.of(namesrv)}, login=True)
    async with (
        running_app(options) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=HOME) as client,
    ):
        yield app.state.console, client


async def _log_out(client: httpx.AsyncClient) -> None:
    page = (await client.get("/c/local/settings")).text
    token = re.findall(r'name="token" value="(\w+)"', page)[0]
    out = await client.post("/logout", data={"token": token}, headers={"origin": origin_of(client)})
    assert out.status_code == 303


async def test_connections_of_users_who_are_gone_are_closed(guarded: str) -> None:
    async with _within(guarded) as (console, client):
        await enter(client, "admin", SECRET)
        await client.get("/c/local/topics")
        [view] = console.views.values()
        await _log_out(client)
        assert console.views == {}
        with pytest.raises(Exception, match="closed"):
            await view.admin.topics()
        # A session that ends by itself leaves none behind, either.
        await enter(client, "admin", SECRET)
        await client.get("/c/local/topics")
        await console.tidy()
        assert len(console.views) == 1
        for session in console.sessions._by_key.values():
            session.used -= IDLE_SECONDS + 1
        await console.tidy()
        assert console.views == {}
        assert (await client.get("/c/local/topics")).status_code == 303


async def test_a_job_keeps_the_connections_of_a_user_who_is_gone(guarded: str) -> None:
    may_end = threading.Event()

    def work(job: Job) -> None:
        may_end.wait(60)

    async with _within(guarded) as (console, client):
        await enter(client, "admin", SECRET)
        await client.get("/c/local/topics")
        [view] = console.views.values()
        job = console.jobs.start("redrive", "local", 1, work, owner="admin")
        await _log_out(client)
        await view.admin.topics()
        may_end.set()
        await eventually(lambda: not job.is_running)
        await console.tidy()
        assert console.views == {}


@pytest.mark.parametrize("path", ["live?watch=in", "topics/TBW102/messages/tail"])
async def test_a_stream_ends_with_the_login(guarded: str, path: str) -> None:
    async with served(guarded, login=True) as client:
        await enter(client, "admin", SECRET)
        async with asyncio.timeout(30):
            async with client.stream("GET", f"/c/local/{path}") as stream:
                parts = stream.aiter_text()
                await anext(parts)
                await _log_out(client)
                left = time.monotonic()
                text = "".join([part async for part in parts])
        assert text.endswith("event: ended\ndata: {}\n\n")
        assert time.monotonic() - left < 10
