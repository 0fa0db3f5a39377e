"""Connections without a user: few, short, and no one else is kept out by them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.auth.servers import ADMIN, ADMIN_SECRET, Guarded, ask, guarded
from tests.support.raw_connection import RawConnection

from penstock.auth import unknown_peers
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Limits, Pool
from penstock.testing.eventually import eventually

QUESTION = {"topic": "TBW102", "queueId": "0"}


def question() -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, ext=dict(QUESTION))


def ports(servers: Guarded) -> list[int]:
    return [servers.broker.port, servers.name_server.port]


@pytest.mark.spec("A84")
async def test_many_silent_connections_keep_no_user_out(tmp_path: Path) -> None:
    async with guarded(tmp_path, limits=Limits(max_connections=40)) as servers:
        for port in ports(servers):
            silent = [await RawConnection.open(port) for _ in range(60)]
            for raw in silent[:40]:
                assert await raw.wait_closed() == b""
            for raw in silent:
                await raw.close()
        answer = await ask(servers.broker.address, question(), ADMIN, ADMIN_SECRET)
        assert answer.code == ResponseCode.SUCCESS


@pytest.mark.spec("A84")
async def test_a_connection_without_a_user_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_peers, "SECONDS", 0.3)
    async with guarded(tmp_path) as servers:
        for port in ports(servers):
            address = f"127.0.0.1:{port}"
            async with (
                Pool(lambda peer, request: None) as unknown,
                Pool(lambda peer, request: None) as known,
            ):
                # Requests without a valid signature do not make it longer.
                await ask(address, question(), None, pool=unknown)
                await ask(address, question(), ADMIN, ADMIN_SECRET, pool=known)
                await eventually(lambda: unknown.find(address) is None)  # noqa: B023
                assert known.find(address) is not None


async def test_a_connection_without_a_user_sends_no_long_frame(tmp_path: Path) -> None:
    async with guarded(tmp_path) as servers:
        for port in ports(servers):
            async with await RawConnection.open(port) as raw:
                await raw.send(struct.pack(">ii", 8 << 20, 2) + b"{}")
                assert await raw.wait_closed() == b""
        # A user may: the answer is about the request, not about its length.
        async with Pool(lambda peer, request: None) as pool:
            address = servers.broker.address
            await ask(address, question(), ADMIN, ADMIN_SECRET, pool=pool)
            long = Command(RequestCode.GET_MAX_OFFSET, ext=dict(QUESTION), body=bytes(8 << 20))
            answer = await ask(address, long, ADMIN, ADMIN_SECRET, pool=pool)
            assert answer.code == ResponseCode.SUCCESS
