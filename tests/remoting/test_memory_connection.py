"""Connections within a process behave as those over sockets do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.errors import ConnectionLost, StoreError
from penstock.protocol.commands import Command
from penstock.remoting import Limits, Peer, Promise, Server
from penstock.testing.eventually import eventually

REMOTE = "198.51.100.9:4000"


def answer(peer: Peer, command: Command) -> Command | Promise:
    if command.code == 9:
        raise StoreError("no room")
    if command.code == 8:
        return Promise()
    return Command(0, ext={"remote": peer.remote}, body=command.body)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server(answer, limits=Limits(write_high=1000, write_low=100))
    async with server:
        yield server


def nothing(peer: Peer, command: Command) -> None:
    return None


async def test_requests_and_answers(server: Server) -> None:
    peer = server.connect_in_memory(nothing, REMOTE)
    body = bytes(100_000)
    found = await asyncio.gather(
        *(peer.request(Command(1, body=body), 10) for _ in range(20)),
        peer.request(Command(9), 10),
    )
    assert all(one.body == body for one in found[:-1])
    assert found[0].ext == {"remote": REMOTE}
    assert (found[-1].code, found[-1].remark) == (14, "no room")
    assert len(server.peers) == 1


async def test_requests_of_the_server(server: Server) -> None:
    asked: list[int] = []
    peer = server.connect_in_memory(lambda peer, command: asked.append(command.code), REMOTE)
    await peer.request(Command(1), 10)
    (other,) = server.peers
    other.oneway(Command(39))
    await eventually(lambda: asked == [39])


async def test_either_end_can_close_it(server: Server) -> None:
    first = server.connect_in_memory(nothing, REMOTE)
    waiting = asyncio.ensure_future(first.request(Command(8), 10))
    await eventually(lambda: any(peer.open_promises for peer in server.peers))
    for peer in list(server.peers):
        peer.close("enough")
    with pytest.raises(ConnectionLost):
        await waiting
    assert first.is_closed
    second = server.connect_in_memory(nothing, REMOTE)
    await second.request(Command(1), 10)
    second.close()
    await eventually(lambda: not server.peers)
    third = server.connect_in_memory(nothing, REMOTE)
    third.abort()
    await eventually(lambda: not server.peers)


async def test_a_server_that_has_stopped_takes_no_connection(server: Server) -> None:
    peer = server.connect_in_memory(nothing, REMOTE)
    assert (await peer.request(Command(1, body=b"x"), 10)).body == b"x"
    await server.stop()
    await eventually(lambda: peer.is_closed)
    with pytest.raises(ConnectionLost):
        server.connect_in_memory(nothing, REMOTE)


async def test_an_answer_whose_write_fails_is_withheld() -> None:
    def fail() -> None:
        raise StoreError("disk full")

    async with Server(answer, before_write=fail) as server:
        peer = server.connect_in_memory(nothing, REMOTE)
        with pytest.raises(ConnectionLost):
            await peer.request(Command(1), 10)


async def test_an_end_that_does_not_read_makes_the_other_one_wait(server: Server) -> None:
    peer = server.connect_in_memory(nothing, REMOTE)
    await peer.request(Command(1), 10)
    (other,) = server.peers
    peer.pause_writing()  # Reading stops, as for a socket whose output is not taken.
    for _ in range(10):
        other.oneway(Command(39, body=bytes(500)))
    await eventually(lambda: not other.is_writable)
    peer.resume_writing()
    await eventually(lambda: other.is_writable)
    assert (await peer.request(Command(1, body=b"x"), 10)).body == b"x"
