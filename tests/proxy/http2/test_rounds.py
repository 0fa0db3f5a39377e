"""Connections that say nothing, or do nothing, and how many there may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from tests.proxy.http2.peer import (
    END_HEADERS,
    GO_AWAY,
    HEADERS,
    PING,
    SECONDS,
    Place,
    framed,
    head,
)

from penstock.proxy.http2 import connection as http2
from penstock.proxy.http2 import listening
from penstock.proxy.http2.frames import PREFACE, Fault
from penstock.testing.eventually import eventually


async def ends(reading: Awaitable[bytes]) -> None:
    """Wait for the end of a connection."""
    try:
        async with asyncio.timeout(SECONDS):
            await reading
    except ConnectionError:
        pass


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_greeting_has_a_limit(place: Place) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(PREFACE[:5])
    await eventually(lambda: len(place.server) == 1)
    (connection,) = place.server._connections
    await eventually(lambda: connection._input._rest)
    place.server.look_after(after(9))
    assert len(place.server) == 1
    # The last byte is not old, but the connection is.
    connection.heard_at = after(11)
    place.server.look_after(after(11))
    await ends(reader.read())
    writer.close()
    await eventually(lambda: len(place.server) == 0)


async def test_silent_clients_are_asked_and_then_dropped(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/wait")
        await peer.settled()
        place.server.look_after(after(50))
        assert not [one for one in await peer.settled() if one.kind == PING]
        place.server.look_after(after(61))
        assert (await peer.until(PING)).flags == 0
        place.server.look_after(after(81))
        await ends(peer.reader.read())
    await eventually(lambda: place.methods.cancelled == 1)


async def test_pings_of_a_client_that_stays_are_counted_anew_each_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_CONTROL_FRAMES", 10)
    async with place.peer() as peer:
        for _ in range(10):
            for _ in range(3):
                await peer.settled()  # Two pings.
            place.server.look_after(after(0))
        peer.call(1, "/echo")
        assert (await peer.answer(1))[0] == framed(b"hello")


async def test_connections_without_calls_end_in_order(place: Place) -> None:
    async with place.peer() as idle, place.peer() as busy:
        idle.call(1, "/echo")
        await idle.answer(1)
        busy.call(1, "/wait")
        await busy.settled()
        # Both have said something just now: a connection without calls is not worth asking.
        for connection in place.server._connections:
            connection.heard_at = after(121)
        place.server.look_after(after(121))
        gone = await idle.until(GO_AWAY)
        assert int.from_bytes(gone.body[4:8]) == Fault.NO_ERROR
        await ends(idle.reader.read())
        assert len(place.server) == 1
        # A client that waits for an answer need not connect anew.
        assert not [one for one in await busy.settled() if one.kind == GO_AWAY]


async def test_a_header_block_is_continued_soon(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        await peer.settled()
        peer.send(HEADERS, 0, 3, head("/chat"))
        (connection,) = place.server._connections
        await eventually(lambda: connection._block is not None)
        place.server.look_after(after(61))
        assert await peer.fault() == Fault.PROTOCOL


async def test_the_number_of_connections(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 2)
    async with place.peer() as first, place.peer() as second:
        await first.settled()
        await second.settled()
        async with place.peer() as third:
            await ends(third.reader.read())
        first.call(1, "/echo")
        assert (await first.answer(1))[0] == framed(b"hello")
