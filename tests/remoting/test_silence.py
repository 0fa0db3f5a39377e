"""Connections on which nothing happens, on a loop with virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import ConnectionLost, RequestTimeout
from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Limits, Peer, Pool, Server
from penstock.testing.virtual_time.loop import run_virtual


class Bytes(asyncio.Protocol):
    """A client that says only what the test lets it say, and notes when it was closed."""

    def __init__(self) -> None:
        self.closed_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed_at = asyncio.get_running_loop().time()


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request)


def virtually(test: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Server(echo, "0.0.0.0", 10911, limits=Limits()) as server:
            await test(server)

    run_virtual(main())


async def open_bytes() -> Bytes:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(Bytes, "127.0.0.1", 10911)
    return protocol


def test_a_peer_that_says_nothing_is_closed_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(_server: Server) -> None:
        client = await open_bytes()
        await asyncio.sleep(59)
        assert client.closed_at is None
        await asyncio.sleep(2)
        assert client.closed_at == pytest.approx(60, abs=0.1)

    with caplog.at_level("INFO"):
        virtually(test)
    [line] = [r for r in caplog.records if "no request came in time" in r.message]
    assert line.levelname == "INFO"
    assert "seconds=60 bytes=0" in line.message


def test_a_peer_that_trickles_its_first_frame_is_closed_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(_server: Server) -> None:
        client = await open_bytes()
        for byte in encode_command(Command(34, 1))[:30]:
            client.send(bytes([byte]))
            await asyncio.sleep(3)
        assert client.closed_at == pytest.approx(60, abs=0.1)

    virtually(test)
    [line] = [r for r in caplog.records if "no request came in time" in r.message]
    assert line.levelname == "WARNING"
    assert "remote=127.0.0.1:" in line.message


def test_an_idle_connection_is_closed_after_two_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(_server: Server) -> None:
        client = await open_bytes()
        for _ in range(10):
            client.send(encode_command(Command(34, 1)))
            await asyncio.sleep(119)
        assert client.closed_at is None
        await asyncio.sleep(2)
        assert client.closed_at == pytest.approx(9 * 119 + 120, abs=0.1)

    with caplog.at_level("INFO"):
        virtually(test)
    assert "idle connection closed remote=127.0.0.1:" in caplog.text


def test_traffic_in_one_direction_keeps_a_connection_open() -> None:
    async def test(server: Server) -> None:
        client = await open_bytes()
        client.send(encode_command(Command(34, 1)))
        await asyncio.sleep(1)
        [peer] = server.peers
        for _ in range(10):
            peer.oneway(Command(40))
            await asyncio.sleep(119)
        assert client.closed_at is None

    virtually(test)


def test_an_idle_connection_of_a_pool_is_closed_and_made_anew_when_needed() -> None:
    async def test(server: Server) -> None:
        async with Pool(echo, limits=Limits(idle_seconds=50)) as pool:
            first = await pool.peer("127.0.0.1:10911")
            await first.request(Command(34), 3)
            await asyncio.sleep(51)
            assert first.is_closed
            assert first.close_reason == "idle for 50 s"
            assert len(server.peers) == 0
            second = await pool.peer("127.0.0.1:10911")
            assert second is not first
            assert (await second.request(Command(34), 3)).code == 0

    virtually(test)


def test_a_request_over_a_partition_times_out_and_later_ones_go_through() -> None:
    async def main() -> None:
        network = asyncio.get_running_loop().network  # type: ignore[attr-defined]  # virtual
        with network.host("10.0.0.1"):
            server = Server(echo, "10.0.0.1", 10911)
            await server.start()
        with network.host("10.0.0.2"):
            pool = Pool(echo)
            peer = await pool.peer("10.0.0.1:10911")
        network.partition("10.0.0.1", "10.0.0.2")
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        with pytest.raises(RequestTimeout):
            await peer.request(Command(34), 3)
        assert loop.time() - asked_at == pytest.approx(3)
        network.heal()
        assert (await peer.request(Command(34), 3)).code == 0
        assert peer.late_answers == 1
        network.crash("10.0.0.1")
        with pytest.raises(ConnectionLost):
            await peer.request(Command(34), 3)
        await pool.close()

    run_virtual(main())
