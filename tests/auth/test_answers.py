"""Answers that come later: rights are checked again, and lists are filtered all the same."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, APP, APP_SECRET, ask, guarded

from penstock.auth.answer_filters import ROW_FILTERS
from penstock.auth.guard import Guard
from penstock.auth.model import Entry
from penstock.auth.need_tables import BROKER, NAME_SERVER
from penstock.auth.user_file import UserFile
from penstock.auth.user_source import UserSource
from penstock.auth.users import Users, new_user
from penstock.nameserver.auth_facts import NameServerFacts
from penstock.protocol.codes import RequestCode, ResponseCode, request_name
from penstock.protocol.commands import Command
from penstock.remoting import Handler, Pool, Promise, Server
from penstock.runtime.clock import SystemClock
from penstock.testing.eventually import eventually

ROWS = {
    "topicConfigTable": {"orders": {}, "other": {}},
    "subscriptionGroupTable": {"orders": {}, "other": {}},
    "topicList": ["orders", "other"],
}


@asynccontextmanager
async def _server(data: Path, handler: Handler) -> AsyncIterator[str]:
    """A server whose user may see the topic and the group named orders."""
    file = UserFile(data / "auth.json")
    app = new_user(APP, 0, value=APP_SECRET)
    rights = [Entry.parse("Topic:orders", ["Pub"]), Entry.parse("Group:orders", ["Sub"])]
    file.change(lambda users: Users(users.by_name).with_user(app).with_entries(APP, rights))
    async with UserSource(file, SystemClock()) as source:
        guard = Guard(source, {**BROKER, **NAME_SERVER}, server="s", clock=SystemClock())
        guard.use_facts(NameServerFacts("DefaultCluster"))
        async with Server(guard.wrap(handler)) as server:
            yield f"127.0.0.1:{server.port}"


@pytest.mark.spec("A48", "A74")
@pytest.mark.parametrize("code", ROW_FILTERS, ids=request_name)
@pytest.mark.parametrize("when", ["at once", "promised and there", "later"])
async def test_a_list_is_filtered_whenever_it_is_answered(
    tmp_path: Path, code: int, when: str
) -> None:
    answer = Command(0, body=orjson.dumps(ROWS))

    def serve(peer: object, command: Command) -> Command | Promise:
        if when == "at once":
            return answer
        promise = Promise()
        if when == "later":
            asyncio.get_running_loop().call_later(0.01, promise.resolve, answer)
        else:
            promise.resolve(answer)
        return promise

    async with _server(tmp_path, serve) as address:
        seen = await ask(address, Command(code))
    assert seen.code == 0, seen.remark
    shown = orjson.loads(bytes(seen.body))[ROW_FILTERS[code].member]  # type: ignore[arg-type]
    assert list(shown) == ["orders"]


async def test_a_list_that_cannot_be_filtered_is_not_answered(tmp_path: Path) -> None:
    async with _server(tmp_path, lambda peer, command: b"\0\0\0\x08a frame ") as address:
        seen = await ask(address, Command(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert seen.code == ResponseCode.SYSTEM_ERROR


async def test_requests_are_guarded_while_the_server_stops(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers, Pool(lambda peer, request: None) as pool:
        address = servers.broker.address
        # A change of users that waits for the lock of the file keeps the broker from stopping.
        lock = os.open(servers.users.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            create = Command(
                RequestCode.AUTH_CREATE_USER, ext={"username": "new"}, body=b'{"password":"new-1"}'
            )
            waiting = asyncio.ensure_future(ask(address, create, ADMIN, ADMIN_SECRET))
            await eventually(lambda: bool(servers.broker.state.background))
            unsigned = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})
            # Clients of this version are served to the end.
            unsigned.version = 399
            codes = {(await ask(address, unsigned, None, pool=pool)).code}
            stopping = asyncio.ensure_future(servers.broker.stop())
            for _ in range(20):
                codes.add((await ask(address, unsigned, None, pool=pool)).code)
                await asyncio.sleep(0.01)
            assert not stopping.done()
        finally:
            os.close(lock)
        await stopping
        await waiting
        assert codes == {ResponseCode.NO_PERMISSION}
