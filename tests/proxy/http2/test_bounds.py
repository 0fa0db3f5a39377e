"""What a client can make the server keep, and for how long."""

from __future__ import annotations

import asyncio
import struct

import pytest
from tests.proxy.http2.peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME,
    MAX_MESSAGE,
    RESET,
    SMALL_MESSAGE,
    Peer,
    Place,
    framed,
    head,
    setting,
)

from penstock.proxy.http2 import load
from penstock.proxy.http2.frames import Fault
from penstock.proxy.http2.grpc_status import GrpcStatus
from penstock.testing.eventually import eventually

TOO_MUCH = str(int(GrpcStatus.RESOURCE_EXHAUSTED))
NO_WINDOW = setting(4, 0)
LATER = 61.0


async def statuses(peer: Peer) -> list[str]:
    """The statuses of the calls that have ended by now."""
    ended = [peer.decoder.decode(one.body) for one in await peer.settled() if one.kind == HEADERS]
    return [one["grpc-status"] for one in ended if "grpc-status" in one]


def reset_code(body: bytes) -> int:
    return int(struct.unpack(">I", body)[0])


@pytest.mark.parametrize("path", ["/echo", "/wait"], ids=["answers", "requests"])
async def test_whole_messages_count_until_the_call_is_over(
    place: Place, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(load, "MAX_CONNECTION_BYTES", 4 * MAX_MESSAGE)
    async with place.peer(NO_WINDOW) as peer:
        for number in range(50):
            peer.packed_call(2 * number + 1, path, bytes(MAX_MESSAGE))
        assert await statuses(peer) == [TOO_MUCH] * 47
        assert 3 * MAX_MESSAGE < place.server.kept_bytes <= 4 * MAX_MESSAGE
        for number in range(50):
            peer.send(RESET, 0, 2 * number + 1, bytes(4))
        peer.call(101, path)
        await peer.settled()
        assert place.server.kept_bytes < 1000


async def test_what_a_connection_kept_does_not_count_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MAX_CONNECTION_BYTES", 200_000)
    async with place.peer() as peer:
        for stream_id in range(1, 41, 2):
            peer.call(stream_id, "/wait", bytes(50_000))
            peer.send(RESET, 0, stream_id, bytes(4))
        peer.call(41, "/echo")
        assert await statuses(peer) == ["0"]


async def test_one_client_does_not_keep_the_others_from_being_served(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MAX_BYTES", 4 * MAX_MESSAGE)
    async with place.peer() as greedy, place.peer() as other:
        for number in range(10):
            stream_id = 2 * number + 1
            greedy.send(HEADERS, END_HEADERS, stream_id, head("/echo"))
            for part in range(0, MAX_MESSAGE // 2, MAX_FRAME):
                data = bytes(MAX_FRAME) if part else b"\0" + struct.pack(">I", MAX_MESSAGE)
                greedy.send(DATA, 0, stream_id, data)
        refused = await statuses(greedy)
        assert refused
        assert set(refused) == {TOO_MUCH}
        # All that there may be is kept now.
        monkeypatch.setattr(load, "MAX_BYTES", MAX_MESSAGE)
        other.call(1, "/echo")
        assert (await other.answer(1))[0] == framed(b"hello")
        other.call(3, "/echo", bytes(load.FREE_CONNECTION_BYTES))
        assert (await other.answer(3))[1]["grpc-status"] == TOO_MUCH
        # What is left of the greedy one, too, ends after a minute.
        place.server.look_after(asyncio.get_running_loop().time() + LATER)
        late = str(int(GrpcStatus.DEADLINE_EXCEEDED))
        assert await statuses(greedy) == [late] * (10 - len(refused))
        assert place.server.kept_bytes == 0


async def test_a_message_of_a_stream_is_complete_within_a_minute(place: Place) -> None:
    async with place.peer() as peer:
        now = asyncio.get_running_loop().time()
        for stream_id in (1, 3):
            peer.send(HEADERS, END_HEADERS, stream_id, head("/chat"))
            peer.send(DATA, 0, stream_id, framed(b"whole"))
        peer.send(DATA, 0, 3, framed(b"cut off")[:-1])
        await peer.settled()
        place.server.look_after(now + LATER - 10)
        assert await statuses(peer) == []
        place.server.look_after(now + LATER + 10)
        assert await statuses(peer) == [str(int(GrpcStatus.DEADLINE_EXCEEDED))]
        peer.send(DATA, END_STREAM, 1)
        assert (await peer.answer(1))[1] == {"grpc-status": "0"}


async def test_answers_that_are_not_taken_end(place: Place) -> None:
    async with place.peer(setting(4, 100)) as peer:
        for stream_id in (1, 3, 5):
            peer.call(stream_id, "/echo", bytes(50_000))
        await peer.settled()
        now = asyncio.get_running_loop().time()
        place.server.look_after(now)
        # One byte now and then is not taking an answer.
        peer.more(1, 1)
        peer.more(3, 20_000)
        assert not [one for one in await peer.settled() if one.kind == RESET]
        place.server.look_after(now + LATER)
        ended = [one for one in await peer.settled() if one.kind == RESET]
        assert [(one.stream_id, reset_code(one.body)) for one in ended] == [
            (1, Fault.CANCEL),
            (5, Fault.CANCEL),
        ]
        peer.more(3, 50_000)
        assert (await peer.answer(3))[1] == {"grpc-status": "0"}


async def test_long_headers_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_CONNECTION_BYTES", 100_000)
    async with place.peer() as peer:
        for number in range(20):
            block = head("/chat", x_long=f"{number:010000d}")
            peer.send(HEADERS, END_HEADERS, 2 * number + 1, block)
        assert await statuses(peer) == [TOO_MUCH] * 11
        assert place.server.open_calls == 9


async def test_many_short_headers_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each is an object or two, and a few bytes on the wire.
    monkeypatch.setattr(load, "MAX_CONNECTION_BYTES", 1 << 20)
    names = "abcdefghijklmnopqrstuvwxyz"
    more = {one + two: "" for one in names for two in names[:10]}
    async with place.peer() as peer:
        for number in range(60):
            peer.send(HEADERS, END_HEADERS, 2 * number + 1, head("/wait", **more))
        refused = await statuses(peer)
        assert set(refused) == {TOO_MUCH}
        assert place.server.open_calls == 60 - len(refused) < 50


async def test_header_blocks_that_are_continued_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MAX_BYTES", 200_000)
    async with place.peer() as greedy, place.peer() as late, place.peer() as other:
        for peer, more in ((greedy, 8), (late, 4)):
            peer.send(HEADERS, 0, 1, bytes(MAX_FRAME))
            for _ in range(more):
                peer.send(CONTINUATION, 0, 1, bytes(MAX_FRAME))
            await eventually(lambda: place.server.kept_bytes >= 9 * MAX_FRAME)
        assert await late.fault() == Fault.ENHANCE_YOUR_CALM
        await eventually(lambda: place.server.kept_bytes == 9 * MAX_FRAME)
        other.call(1, "/echo")
        assert (await other.answer(1))[1] == {"grpc-status": "0"}
    await eventually(lambda: place.server.kept_bytes == 0)


async def test_messages_that_are_read_after_the_end_do_not_count(place: Place) -> None:
    async with place.peer() as peer:
        peer.send(HEADERS, END_HEADERS, 1, head("/unread"))
        for _ in range(3):
            peer.send(DATA, 0, 1, framed(bytes(1000)))
        await peer.settled()
        assert place.server.kept_bytes > 3000
        peer.send(RESET, 0, 1, bytes(4))
        await peer.settled()
        (call,) = place.methods.calls
        assert await call.read() == bytes(1000)
        assert place.server.kept_bytes == 0


async def test_methods_have_limits_of_their_own(place: Place) -> None:
    async with place.peer() as peer:
        peer.call(1, "/small", bytes(SMALL_MESSAGE))
        assert (await peer.answer(1))[1] == {"grpc-status": "0"}
        peer.call(3, "/small", bytes(SMALL_MESSAGE + 1))
        assert (await peer.answer(3))[1]["grpc-status"] == TOO_MUCH
        peer.packed_call(5, "/small", bytes(SMALL_MESSAGE + 1))
        assert (await peer.answer(5))[1]["grpc-status"] == TOO_MUCH


async def test_calls_of_one_connection(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_CONNECTION_CALLS", 5)
    async with place.peer() as peer:
        for number in range(7):
            peer.call(2 * number + 1, "/wait")
        refused = [one for one in await peer.settled() if one.kind == RESET]
        assert [(one.stream_id, reset_code(one.body)) for one in refused] == [
            (11, Fault.REFUSED_STREAM),
            (13, Fault.REFUSED_STREAM),
        ]
        peer.send(RESET, 0, 1, bytes(4))
        peer.call(15, "/echo")
        assert (await peer.answer(15))[1] == {"grpc-status": "0"}


async def test_calls_of_all_connections(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_CALLS", 20)
    async with place.peer() as greedy, place.peer() as other:
        for number in range(30):
            greedy.call(2 * number + 1, "/wait")
        refused = [one for one in await greedy.settled() if one.kind == RESET]
        assert len(refused) == 10
        assert place.server.open_calls == 20
        other.call(1, "/echo")
        assert (await other.answer(1))[1] == {"grpc-status": "0"}
    await eventually(lambda: place.server.open_calls == 0)
