"""A peer that does not take its answers is not read from, then cut; memory stays bounded."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.support.raw_connection import RawConnection

from penstock.protocol.commands import Command, encode_command, reply
from penstock.remoting import Limits, Peer, Pool, Promise, Server
from penstock.testing.eventually import eventually

LIMITS = Limits(write_low=16_384, write_high=65_536, write_cut=4_000_000)
ANSWER = b"x" * 50_000


def large(_peer: Peer, request: Command) -> Command:
    return reply(request, body=ANSWER)


def only(server: Server) -> Peer:
    [peer] = server.peers
    return peer


def waiting(peer: Peer) -> int:
    return peer._transport.get_write_buffer_size() + peer._outgoing.size


async def test_a_client_that_never_reads_is_not_read_from_any_more() -> None:
    served: list[int] = []

    def serve(peer: Peer, request: Command) -> Command:
        served.append(request.request_id)
        return large(peer, request)

    async with (
        Server(serve, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        # Small requests, each asking for much: all of them fit into one read of the server.
        requests = b"".join(encode_command(Command(11, number)) for number in range(2000))
        await raw.send(requests)
        await eventually(lambda: only(server)._outgoing.is_blocked)
        count = len(served)
        await asyncio.sleep(0.05)
        assert len(served) == count < 2000
        # What waits is the high mark, one turn's worth above it, and one answer.
        assert waiting(only(server)) <= 2 * LIMITS.write_high + 2 * len(ANSWER)
        raw.abort()
        await eventually(lambda: not server.peers)


async def test_a_slow_reader_gets_everything_in_order_once_it_reads() -> None:
    async with (
        Server(large, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        await raw.send(b"".join(encode_command(Command(11, number)) for number in range(300)))
        await eventually(lambda: only(server)._outgoing.is_blocked)
        for number in range(300):
            answer = await raw.receive()
            assert (answer.request_id, answer.body) == (number, ANSWER)
        await eventually(lambda: not only(server)._outgoing.is_blocked)
        assert (await raw.ask(Command(34, 7))).request_id == 7


async def test_one_turn_does_not_gather_more_than_the_high_mark_and_one_answer() -> None:
    async with (
        Server(large, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        await raw.ask(Command(34, 1))
        peer = only(server)
        peer.data_received(b"".join(encode_command(Command(11, n)) for n in range(100)))
        assert LIMITS.write_high < peer._outgoing.size <= LIMITS.write_high + 2 * len(ANSWER)
        assert not peer.is_quiet
        for number in range(100):
            assert (await raw.receive()).request_id == number
        await eventually(lambda: peer.is_quiet)


async def test_requests_that_come_while_others_wait_keep_their_order() -> None:
    async with (
        Server(large, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        await raw.ask(Command(34, 1))
        peer = only(server)
        # A TLS transport may hand over what it had decrypted although reading is paused.
        for start in (0, 50):
            chunk = range(start, start + 50)
            peer.data_received(b"".join(encode_command(Command(11, n)) for n in chunk))
        for number in range(100):
            assert (await raw.receive()).request_id == number


async def test_what_is_pushed_to_a_client_that_never_reads_cuts_it_at_the_mark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        Server(large, limits=LIMITS) as server,
        await RawConnection.open(server.port) as raw,
    ):
        await eventually(lambda: len(server.peers) == 1)
        peer = only(server)
        highest = 0
        for _ in range(2000):
            if peer.is_closed:
                break
            peer.oneway(Command(40, body=ANSWER))
            await asyncio.sleep(0)
            highest = max(highest, waiting(peer))
        assert peer.is_closed
        assert highest <= LIMITS.write_cut + 2 * len(ANSWER)
        [line] = [
            record for record in caplog.records if record.message.startswith("connection cut")
        ]
        assert line.levelno == logging.WARNING
        assert f"remote={raw.address}" in line.message
        assert "write_cut=4000000" in line.message
        assert "write_cut" in peer.close_reason
        await eventually(lambda: not server.peers)


async def test_a_client_that_takes_nothing_for_too_long_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(write_low=1, write_high=65_536, stuck_seconds=0.1)
    async with (
        Server(large, limits=limits) as server,
        await RawConnection.open(server.port) as raw,
    ):
        await raw.send(b"".join(encode_command(Command(11, number)) for number in range(2000)))
        await eventually(lambda: len(server.peers) == 1)
        await eventually(lambda: not server.peers)
        [line] = [
            record.message
            for record in caplog.records
            if record.message.startswith("connection cut")
        ]
        assert f"remote={raw.address}" in line
        assert "was taken for 0.1 s (stuck_seconds)" in line


async def test_closing_does_not_wait_for_ever_for_a_client_that_never_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        Server(large, limits=Limits(close_seconds=0.05)) as server,
        await RawConnection.open(server.port),
    ):
        await eventually(lambda: len(server.peers) == 1)
        peer = only(server)
        for _ in range(20):
            peer.oneway(Command(40, body=b"x" * 1_000_000))
        peer.close()
        await eventually(lambda: not server.peers)
    assert "its last bytes were not taken" in caplog.text


async def test_a_held_answer_for_a_paused_peer_is_kept_until_it_reads() -> None:
    held: list[tuple[Promise, Command]] = []

    def serve(peer: Peer, request: Command) -> Command | Promise:
        if request.code == 11:
            return large(peer, request)
        promise = Promise()
        held.append((promise, request))
        return promise

    async with Server(serve, limits=LIMITS) as server, await RawConnection.open(server.port) as raw:
        await raw.send_command(Command(12, 1))
        await raw.send(b"".join(encode_command(Command(11, number)) for number in range(2, 202)))
        await eventually(lambda: only(server)._outgoing.is_blocked)
        promise, request = held[0]
        assert promise.resolve(reply(request, body=b"held"))
        answers = [await raw.receive() for _ in range(201)]
        assert b"held" in [answer.body for answer in answers]


async def test_two_peers_that_flood_each_other_both_get_through() -> None:
    async with Server(large, limits=LIMITS) as server, Pool(large, limits=LIMITS) as pool:
        client = await pool.peer(f"127.0.0.1:{server.port}")
        await eventually(lambda: len(server.peers) == 1)
        body = b"y" * 20_000
        asked = [client.request(Command(11, body=body), 30) for _ in range(100)]
        asked += [only(server).request(Command(11, body=body), 30) for _ in range(100)]
        answers = await asyncio.gather(*asked)
        assert {answer.body for answer in answers} == {ANSWER}
