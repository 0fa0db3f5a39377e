"""What one connection may take of a turn, with and without TLS."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import pytest
import trustme
from tests.proxy.http2.peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_MESSAGE,
    PING,
    Methods,
    Place,
    frame,
    framed,
    head,
    setting,
)

from penstock.proxy.http2 import input as http2_input
from penstock.proxy.http2.frames import Fault
from penstock.proxy.http2.listening import Http2Server
from penstock.remoting.listener import SniffingListener, bind
from penstock.remoting.tls import TlsMode
from penstock.testing.eventually import eventually

CALLS = 1000
MAX_READ = 1 << 20
"""More than a transport hands over at once."""


@pytest.fixture(params=["plain", "tls"])
async def fair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    """A server on which one frame is all that a connection may take of a turn."""
    monkeypatch.setattr(http2_input, "TURN_SECONDS", 0.0)
    methods = Methods()
    accept, trusting = with_tls() if request.param == "tls" else (None, None)
    server = Http2Server(methods.table(), max_message=MAX_MESSAGE, accept=accept)
    sockets = await bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    await server.start(sockets)
    yield Place(server, methods, port, trusting)
    await server.stop(0.1)
    assert (len(server), server.kept_bytes, server.open_calls) == (0, 0, 0)


def with_tls() -> tuple[
    Callable[[Callable[[], asyncio.Protocol], list[socket.socket]], SniffingListener],
    ssl.SSLContext,
]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    accept = functools.partial(
        SniffingListener,
        context=context,
        mode=TlsMode.ENFORCING,
        patience=20.0,
        max_waiting=10,
    )
    return accept, trusting


def wait_calls() -> bytes:
    """Calls that are not answered."""
    return b"".join(
        frame(HEADERS, END_HEADERS, 2 * number + 1, head("/wait"))
        + frame(DATA, END_STREAM, 2 * number + 1, framed(b""))
        for number in range(CALLS)
    )


async def some_are_taken(fair: Place) -> None:
    await eventually(lambda: fair.server.open_calls > 0, interval=0)
    assert fair.server.open_calls < CALLS


async def test_what_one_client_has_sent_does_not_hold_up_another(fair: Place) -> None:
    async with fair.peer() as greedy, fair.peer() as other:
        await greedy.settled()
        await other.settled()
        greedy.writer.write(wait_calls())
        other.call(1, "/echo")
        assert (await other.answer(1))[1] == {"grpc-status": "0"}
        assert fair.server.open_calls < CALLS // 5
        await eventually(lambda: fair.server.open_calls == CALLS)
        # All is taken, and it is read from again.
        greedy.call(2 * CALLS + 1, "/echo")
        assert (await greedy.answer(2 * CALLS + 1))[1] == {"grpc-status": "0"}


async def test_who_overdraws_a_turn_rests_as_long(fair: Place) -> None:
    async with fair.peer() as greedy, fair.peer() as other:
        await greedy.settled()
        await other.settled()
        (first, *_) = sorted(fair.server._connections, key=lambda one: one.opened_at)
        for number in range(200):
            greedy.call(2 * number + 1, "/quick", b"slow")
        for number in range(10):
            other.call(2 * number + 1, "/echo")
            assert (await other.answer(2 * number + 1))[1] == {"grpc-status": "0"}
        # An answer takes several turns, and without the rest each has a slow call.
        assert first._last_id < 2 * 16


async def test_what_waits_stays_in_order(fair: Place) -> None:
    texts = [b"%06d" % number * 30 for number in range(CALLS)]
    async with fair.peer(setting(4, 1 << 24)) as peer:
        peer.more(0, 1 << 24)
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        for text in texts:
            peer.send(DATA, 0, 1, framed(text))
            # Some come together, some while others wait.
            if text[5:6] == b"7":
                await peer.writer.drain()
                await asyncio.sleep(0)
        peer.send(DATA, END_STREAM, 1)
        assert await peer.answer(1) == (b"".join(map(framed, texts)), {"grpc-status": "0"})


async def test_what_waits_is_bounded(fair: Place) -> None:
    async with fair.peer() as peer:
        await peer.settled()
        (connection,) = fair.server._connections
        peer.writer.write(frame(99, 0, 0, bytes(16_000)) * 1000)
        peer.send(PING, 0, 0, b"the last")
        most = 0
        work = asyncio.ensure_future(peer.until(PING))
        while not work.done():
            most = max(most, len(connection._input._rest))
            await asyncio.sleep(0)
        assert (await work).body == b"the last"
        assert 0 < most < MAX_READ


@pytest.mark.parametrize("is_abrupt", [False, True], ids=["closed", "reset"])
async def test_a_connection_ends_while_it_rests(fair: Place, is_abrupt: bool) -> None:
    async with fair.peer() as peer:
        await peer.settled()
        peer.writer.write(wait_calls())
        await some_are_taken(fair)
        if is_abrupt:
            peer.writer.transport.abort()
        else:
            peer.writer.close()
        await eventually(lambda: len(fair.server) == 0)
        assert fair.server.open_calls == 0


async def test_a_fault_behind_what_waits_ends_the_connection(fair: Place) -> None:
    async with fair.peer() as peer:
        await peer.settled()
        # What follows the fault fills all buffers between the client and the server.
        peer.writer.write(wait_calls() + frame(PING, 0, 0, b"short") + bytes(4 << 20))
        assert await peer.fault() in (Fault.PROTOCOL, -1)
        await eventually(lambda: len(fair.server) == 0)


async def test_a_server_stops_while_a_connection_rests(fair: Place) -> None:
    async with fair.peer() as peer:
        await peer.settled()
        peer.writer.write(wait_calls())
        await some_are_taken(fair)
        await fair.server.stop(0.0)
        assert len(fair.server) == 0
