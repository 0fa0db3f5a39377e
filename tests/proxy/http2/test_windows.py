"""Flow control: what waits for which window, and what a change of one costs."""

from __future__ import annotations

import asyncio
import functools
import math
from typing import Any

import pytest
from tests.proxy.http2.peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME,
    MAX_MESSAGE,
    PADDED,
    PING,
    RESET,
    SETTINGS,
    WINDOW,
    Methods,
    Peer,
    Place,
    frame,
    framed,
    head,
    setting,
)
from tests.support.lines_run import lines_run

from penstock.proxy.http2 import connection as http2
from penstock.proxy.http2 import input as http2_input
from penstock.proxy.http2 import output
from penstock.proxy.http2.connection import Connection
from penstock.proxy.http2.frames import PREFACE, Fault
from penstock.proxy.http2.grpc_status import GrpcStatus
from penstock.proxy.http2.hpack import MAX_LIST_BYTES, literal
from penstock.proxy.http2.load import Load
from penstock.testing.eventually import eventually


class Line(asyncio.Transport):
    """A transport that takes everything."""

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise AssertionError("the connection was ended")


COSTS = {
    "a window of the connection": frame(WINDOW, 0, 0, b"\0\0\0\1"),
    "a window of one call": frame(WINDOW, 0, 1, b"\0\0\0\1"),
    "settings without a window": frame(SETTINGS, 0, 0, setting(5, 20_000)),
}


@pytest.fixture
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are counted in one turn, which a trace makes long."""
    monkeypatch.setattr(http2_input, "TURN_SECONDS", math.inf)


@pytest.mark.parametrize("what", COSTS)
async def test_what_a_frame_costs_does_not_depend_on_the_calls(what: str, long_turns: None) -> None:
    costs: list[int] = []
    for calls in (10, 1000):
        connection = await answered(calls)
        costs.append(lines_run(functools.partial(connection.data_received, COSTS[what])))
        connection.connection_lost(None)
    assert costs[0] == costs[1]


async def test_a_first_window_is_changed_once_for_a_frame(long_turns: None) -> None:
    costs: list[int] = []
    for entries in (2, 1000):
        connection = await answered(100)
        body = (setting(4, 1) + setting(4, 0)) * (entries // 2)
        costs.append(
            lines_run(functools.partial(connection.data_received, frame(SETTINGS, 0, 0, body)))
        )
        connection.connection_lost(None)
    # A few lines for each entry, and not all calls again.
    assert costs[1] < costs[0] + 10 * 1000


async def answered(calls: int) -> Connection:
    """A connection with calls whose answers wait for their windows."""
    connection = Connection(
        Methods().table(),
        max_message=MAX_MESSAGE,
        load=Load(),
        opened=lambda one: None,
        closed=lambda one: None,
    )
    connection.connection_made(Line())
    connection.data_received(PREFACE + frame(SETTINGS, 0, 0, setting(4, 0)))
    for number in range(calls):
        stream_id = 2 * number + 1
        connection.data_received(
            frame(HEADERS, END_HEADERS, stream_id, head("/echo"))
            + frame(DATA, END_STREAM, stream_id, framed(b"hello"))
        )
    await eventually(lambda: all(call.ends_with for call in connection.calls.values()))
    assert len(connection.calls) == calls
    return connection


async def data_of(peer: Peer) -> bytes:
    return b"".join(one.body for one in await peer.settled() if one.kind == DATA)


async def test_a_first_window_below_what_was_sent(place: Place) -> None:
    async with place.peer(setting(4, 100)) as peer:
        peer.call(1, "/echo", b"x" * 195)
        assert len(await data_of(peer)) == 100
        # 100 bytes were sent, so the window is at -70 now.
        peer.send(SETTINGS, 0, 0, setting(4, 30))
        peer.more(1, 70)
        assert await data_of(peer) == b""
        peer.more(1, 1)
        assert await data_of(peer) == b"x"
        peer.send(SETTINGS, 0, 0, setting(4, 1) + setting(4, 130))
        data, trailers = await peer.answer(1)
        assert data == b"x" * 99
        assert trailers == {"grpc-status": "0"}


async def test_the_last_of_several_first_windows_counts(place: Place) -> None:
    async with place.peer(setting(4, 1000) + setting(4, 7)) as peer:
        peer.call(1, "/echo", b"x" * 100)
        assert len(await data_of(peer)) == 7


async def test_a_first_window_that_makes_another_too_large(place: Place) -> None:
    async with place.peer(setting(4, 0)) as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        peer.more(1, (1 << 31) - 1)
        await peer.settled()
        peer.send(SETTINGS, 0, 0, setting(4, 1))
        assert await peer.fault() == Fault.FLOW_CONTROL


async def test_calls_wait_for_the_connection_and_for_themselves(place: Place) -> None:
    async with place.peer(setting(4, 50_000)) as peer:
        for stream_id in (1, 3, 5):
            peer.call(stream_id, "/echo", bytes(60_000))
        assert len(await data_of(peer)) == 65_535
        peer.more(0, 1 << 20)
        assert len(await data_of(peer)) == 3 * 50_000 - 65_535
        for stream_id in (5, 3, 1):
            peer.more(stream_id, 20_000)
            data, trailers = await peer.answer(stream_id)
            assert len(data) == 60_005 - 50_000
            assert trailers == {"grpc-status": "0"}


async def test_padding_is_given_back(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/chat"))
        for _ in range(2048):
            peer.send(DATA, PADDED, 1, b"\xff" + bytes(255))
        updates = [one for one in await peer.settled() if one.kind == WINDOW and one.stream_id]
        assert [(one.stream_id, int.from_bytes(one.body)) for one in updates] == [(1, 1 << 19)]


async def test_data_of_answered_calls_is_given_back(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/none"))
        await peer.settled()
        sent = 20 << 20
        for _ in range(sent // MAX_FRAME):
            peer.send(DATA, 0, 1, bytes(MAX_FRAME))
            await peer.writer.drain()
        updates = [one for one in await peer.settled() if one.kind == WINDOW]
        assert {one.stream_id for one in updates} == {0}
        assert sum(int.from_bytes(one.body) for one in updates) == 16 << 20
        peer.call(3, "/echo")
        assert (await peer.answer(3))[1] == {"grpc-status": "0"}


async def test_headers_of_a_stream_that_is_over(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/echo")
        await peer.answer(1)
        # It is no call, but the table of headers is that of the client.
        peer.send(HEADERS, END_HEADERS, 1, b"\x40" + literal(":path", "/echo")[1:])
        block = head("/echo").replace(literal(":path", "/echo"), b"\xbe")
        peer.send(HEADERS, END_HEADERS, 3, block)
        peer.send(DATA, END_STREAM, 3, framed(b"hello"))
        assert (await peer.answer(3))[0] == framed(b"hello")


async def test_a_stream_has_one_call(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/echo")
        await peer.answer(1)
        peer.call(1, "/echo", b"again")
        peer.call(3, "/echo")
        answers = [one for one in await peer.settled() if one.kind in (HEADERS, DATA)]
        assert {one.stream_id for one in answers} == {3}


async def test_headers_that_are_malformed(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/echo", x_name="one\r\ntwo: three")
        found = await peer.until(RESET, HEADERS)
        assert (found.kind, int.from_bytes(found.body)) == (RESET, Fault.PROTOCOL)
        peer.call(3, "/echo")
        assert (await peer.answer(3))[0] == framed(b"hello")


async def test_headers_that_are_too_long(place: Place) -> None:
    async with place.peer() as peer:
        path = b"\x40" + literal(":path", "/fail")[1:]
        block = head("/echo").replace(literal(":path", "/echo"), b"\xbe")
        peer.send(HEADERS, END_HEADERS | END_STREAM, 1, path)
        peer.send(HEADERS, END_HEADERS, 3, block)
        peer.send(DATA, END_STREAM, 3, framed(b"hello"))
        invalid = str(int(GrpcStatus.INVALID_ARGUMENT))
        assert (await peer.answer(3))[1]["grpc-status"] == invalid
        # The long block changes what the short one means.
        long = b"\x40" + literal(":path", "/echo")[1:]
        long += literal("x", "y" * 8000) * (MAX_LIST_BYTES // 8000 + 1)
        parts = [long[begin : begin + MAX_FRAME] for begin in range(0, len(long), MAX_FRAME)]
        peer.send(HEADERS, 0, 5, parts[0])
        for part in parts[1:]:
            peer.send(CONTINUATION, END_HEADERS * (part is parts[-1]), 5, part)
        exhausted = str(int(GrpcStatus.RESOURCE_EXHAUSTED))
        assert (await peer.answer(5))[1]["grpc-status"] == exhausted
        peer.send(HEADERS, END_HEADERS, 7, block)
        peer.send(DATA, END_STREAM, 7, framed(b"hello"))
        assert (await peer.answer(7))[0] == framed(b"hello")


async def test_a_slow_reader_gets_everything(place: Place) -> None:
    async with place.peer(setting(4, 1 << 30)) as peer:
        peer.more(0, 1 << 30)
        for stream_id in (1, 3, 5):
            peer.call(stream_id, "/many", bytes(MAX_MESSAGE))
            await peer.writer.drain()
        whole = 10 * (MAX_MESSAGE + 5)
        got = dict.fromkeys((1, 3, 5), 0)
        ended: set[int] = set()
        # It waits in the server, since the peer reads a frame at a time.
        assert place.server.kept_bytes <= 3 * whole + 3 * MAX_MESSAGE + 10_000
        while len(ended) < 3:
            one = await peer.until(DATA, HEADERS)
            if one.kind == DATA:
                got[one.stream_id] += len(one.body)
            elif one.flags & END_STREAM:
                ended.add(one.stream_id)
            await asyncio.sleep(0)
        assert set(got.values()) == {whole}


async def test_a_client_that_is_slow_again_and_again_is_not_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_UNSENT_BYTES", 10_000)
    async with place.peer(setting(4, 1 << 30)) as peer:
        peer.more(0, 1 << 30)
        await peer.settled()
        (connection,) = place.server._connections
        for first in (1, 7, 13):
            ended: set[int] = set()
            for stream_id in (first, first + 2, first + 4):
                peer.call(stream_id, "/many", bytes(MAX_MESSAGE))
                await peer.writer.drain()
            # Data waits for the client, answers to control frames do not.
            await eventually(lambda: place.server.kept_bytes > 8 * MAX_MESSAGE)
            before = connection._pings
            peer.writer.write(frame(PING, 0, 0, bytes(8)) * 400)
            await eventually(lambda: connection._pings == before + 400)  # noqa: B023
            while len(ended) < 3:
                one = await peer.until(DATA, HEADERS)
                if one.kind == HEADERS and one.flags & END_STREAM:
                    ended.add(one.stream_id)


async def test_a_ping_for_each_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_CONTROL_FRAMES", 10)
    async with place.peer() as peer:
        for number in range(100):
            stream_id = 2 * number + 1
            peer.call(stream_id, "/echo")
            peer.send(PING, 0, 0, b"measured")
            await peer.answer(stream_id)
        # Without answers they have a bound all the same.
        peer.writer.write(frame(PING, 0, 0, bytes(8)) * 20)
        assert await peer.fault() == Fault.ENHANCE_YOUR_CALM


async def test_an_error_in_the_middle_of_a_message(place: Place) -> None:
    async with place.peer(setting(4, 10)) as peer:
        peer.call(1, "/half", bytes(100))
        assert len((await peer.until(DATA)).body) == 10
        found = await peer.until(RESET, HEADERS)
        assert (found.kind, int.from_bytes(found.body)) == (RESET, Fault.INTERNAL)
    async with place.peer(setting(4, 0)) as peer:
        # Nothing of it was sent, so the status can be.
        peer.call(1, "/half", bytes(100))
        assert (await peer.answer(1))[1]["grpc-status"] == str(int(GrpcStatus.UNKNOWN))
