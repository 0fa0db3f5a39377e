"""Frames that begin and do not end: all connections together hold no more than a bound."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack

from tests.support.raw_connection import RawConnection

from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Limits, Peer, Server
from penstock.remoting.partial_frames import PartialFrames
from penstock.testing.eventually import eventually

KIB = 1024
LIMITS = Limits(max_frame_bytes=200 * KIB, max_unfinished_bytes=300 * KIB)
HALF = struct.pack(">iI", 150 * KIB, 0) + bytes(120 * KIB)


class Gatherer:
    """A connection that remembers why it was given up."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


def echo(_peer: Peer, request: Command) -> Command:
    return reply(request, body=request.body)


def test_the_frame_that_takes_longest_goes_first() -> None:
    frames = PartialFrames(100)
    slow, steady, quick = Gatherer(), Gatherer(), Gatherer()
    frames.note(slow, 10)
    frames.note(steady, 40)
    frames.note(slow, 20)
    frames.note(quick, 30)
    assert frames.total == 90
    frames.note(quick, 0)
    frames.note(quick, 45)
    assert [len(g.reasons) for g in (slow, steady, quick)] == [1, 0, 0]
    assert "20 bytes of an unfinished frame" in slow.reasons[0]
    assert frames.total == 85
    # What is gone, or was given up, is no more counted when it is noted once more.
    frames.note(slow, 0)
    frames.note(steady, 0)
    assert frames.total == 45


def test_one_frame_beyond_the_bound_goes_by_itself() -> None:
    frames = PartialFrames(100)
    huge = Gatherer()
    frames.note(huge, 101)
    assert (len(huge.reasons), frames.total) == (1, 0)


async def test_half_frames_on_many_connections_stay_within_the_bound() -> None:
    async with Server(echo, limits=LIMITS) as server, AsyncExitStack() as stack:
        for _ in range(6):
            raw = await stack.enter_async_context(await RawConnection.open(server.port))
            await raw.send(HALF)
            await eventually(lambda: server._partial_frames.total >= len(HALF))
        await eventually(lambda: len(server.peers) == 2)
        assert server._partial_frames.total == 2 * len(HALF)
        # An honest client with a frame in pieces is served.
        body = bytes(140 * KIB)
        async with await RawConnection.open(server.port) as honest:
            answer = await honest.ask(Command(11, 7, body=body))
            assert (answer.request_id, answer.body) == (7, body)
        await stack.aclose()
        await eventually(lambda: not server.peers)
        assert server._partial_frames.total == 0


async def test_a_frame_that_ends_is_counted_no_more() -> None:
    async with (
        Server(echo, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        frame = encode_command(Command(11, 1, body=bytes(100 * KIB)))
        for _ in range(5):
            await raw.send(frame[:-1])
            await eventually(lambda: server._partial_frames.total == len(frame) - 1)
            await raw.send(frame[-1:])
            assert (await raw.receive()).request_id == 1
            assert server._partial_frames.total == 0


async def test_a_lost_connection_keeps_nothing_of_its_frame() -> None:
    async with Server(echo, limits=LIMITS) as server:
        raw = await RawConnection.open(server.port)
        await raw.send(HALF)
        await eventually(lambda: server._partial_frames.total == len(HALF))
        [peer] = server.peers
        raw.abort()
        await eventually(lambda: not server.peers)
        # Not even while a reference to it remains.
        assert peer._decoder.buffered == 0
