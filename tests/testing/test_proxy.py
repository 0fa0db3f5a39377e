"""The fault proxy, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.proxy import FaultProxy

from penstock.testing.eventually import eventually


class Target:
    """An echo server that notes how its reads came in."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.ends: list[str] = []
        self.port = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(1 << 20):
                self.reads.append(data)
                writer.write(data)
                await writer.drain()
            self.ends.append("end of stream")
            writer.write_eof()
            await writer.drain()
        except ConnectionError:
            self.ends.append("reset")
        finally:
            await close(writer)
            self.open -= 1


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def proxied_echo() -> AsyncIterator[tuple[FaultProxy, Target]]:
    target = Target()
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    async with server, FaultProxy(("127.0.0.1", target.port)) as proxy:
        yield proxy, target
        proxy.cut()
        await eventually(lambda: proxy.open_connections + target.open == 0)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        yield reader, writer
    finally:
        await close(writer)


async def test_bytes_pass_both_ways_and_are_counted() -> None:
    async with proxied_echo() as (proxy, _), connected(proxy) as (reader, writer):
        assert proxy.address == f"127.0.0.1:{proxy.port}"
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert (proxy.accepted, proxy.open_connections) == (1, 1)
        assert proxy.to_target.passed_bytes == 5
        await eventually(lambda: proxy.to_client.passed_bytes == 5)


async def test_the_end_of_a_stream_passes_and_leaves_the_other_direction_open() -> None:
    async with proxied_echo() as (proxy, target), connected(proxy) as (reader, writer):
        writer.write(b"last")
        writer.write_eof()
        assert await reader.read() == b"last"
        assert target.ends == ["end of stream"]
        await eventually(lambda: proxy.open_connections == 0)


async def test_writes_are_split() -> None:
    async with proxied_echo() as (proxy, target), connected(proxy) as (reader, writer):
        proxy.to_target.piece_bytes = 3
        proxy.to_target.delay = 0.002
        writer.write(b"0123456789")
        assert await reader.readexactly(10) == b"0123456789"
        assert len(target.reads) > 1
        assert all(len(read) % 3 == 0 or read.endswith(b"9") for read in target.reads)


async def test_each_piece_is_delayed() -> None:
    async with proxied_echo() as (proxy, _), connected(proxy) as (reader, writer):
        loop = asyncio.get_running_loop()
        proxy.to_client.delay = 0.05
        begin = loop.time()
        writer.write(b"slow")
        await reader.readexactly(4)
        assert loop.time() - begin >= 0.05


async def test_a_cut_resets_both_sides() -> None:
    async with proxied_echo() as (proxy, target), connected(proxy) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await eventually(lambda: target.ends == ["reset"])
        await eventually(lambda: proxy.open_connections == 0)


async def test_a_connection_is_cut_after_so_many_bytes() -> None:
    async with proxied_echo() as (proxy, target):
        proxy.to_target.cut_after = 7
        async with connected(proxy) as (reader, writer):
            writer.write(b"01234")
            assert await reader.readexactly(5) == b"01234"
            writer.write(b"56789")
            with pytest.raises(ConnectionResetError):
                # More than can ever come: an orderly end would be an IncompleteReadError.
                await reader.readexactly(100)
            await eventually(lambda: proxy.open_connections == 0)
            assert proxy.to_target.passed_bytes == 7
            assert b"".join(target.reads) in (b"01234", b"0123456")


async def test_a_half_close_ends_the_stream_to_the_client_only() -> None:
    async with proxied_echo() as (proxy, target), connected(proxy) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.half_close()
        assert await reader.read() == b""
        writer.write(b"still heard")
        await eventually(lambda: b"".join(target.reads) == b"xstill heard")


async def test_a_stall_fills_the_senders_buffers_and_resume_empties_them() -> None:
    async with proxied_echo() as (proxy, _), connected(proxy) as (reader, writer):
        writer.write(b"x")
        await reader.readexactly(1)
        proxy.to_target.stall()
        size = 32 << 20
        writer.write(bytes(size))
        draining = asyncio.create_task(writer.drain())
        done, _ = await asyncio.wait([draining], timeout=0.1)
        assert not done
        assert proxy.to_target.passed_bytes == 1
        proxy.to_target.resume()
        assert await reader.readexactly(size) == bytes(size)
        await draining


async def test_new_connections_may_be_refused_and_sent_elsewhere() -> None:
    async with proxied_echo() as (proxy, target):
        proxy.refuse = True
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        proxy.refuse = False
        # Nothing listens on port 1: the proxy resets what it cannot forward.
        proxy.target = ("127.0.0.1", 1)
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        proxy.target = ("127.0.0.1", target.port)
        async with connected(proxy) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        assert proxy.accepted == 3


async def test_stopping_the_proxy_ends_its_connections() -> None:
    async with proxied_echo() as (_, target):
        proxy = FaultProxy(("127.0.0.1", target.port))
        await proxy.start()
        async with connected(proxy) as (reader, writer):
            writer.write(b"x")
            await reader.readexactly(1)
            await proxy.stop()
            assert proxy.open_connections == 0
            assert await reader.read() == b""
