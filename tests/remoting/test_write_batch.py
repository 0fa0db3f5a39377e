"""What must precede the answers of a turn precedes them, or they do not leave at all."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.errors import ConnectionLost, DiskFull
from penstock.protocol.commands import Command, reply
from penstock.remoting import Peer, Pool, Promise, Server
from penstock.remoting.write_batch import WriteBatch


class Output:
    def __init__(self, events: list[str], name: str, *, broken: bool = False) -> None:
        self.events = events
        self.name = name
        self.broken = broken

    def flush(self) -> None:
        if self.broken:
            raise ZeroDivisionError
        self.events.append(f"flush {self.name}")

    def withhold(self, reason: str) -> None:
        self.events.append(f"withhold {self.name}: {reason}")


async def test_the_turn_ends_once_for_all_connections() -> None:
    events: list[str] = []
    batch = WriteBatch(asyncio.get_running_loop(), lambda: events.append("before"))
    batch.add(Output(events, "a"))
    batch.add(Output(events, "b"))
    assert events == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert events == ["before", "flush a", "flush b"]


async def test_what_is_said_because_of_what_precedes_leaves_in_the_same_turn() -> None:
    events: list[str] = []
    late = Output(events, "waiting for it")

    def complete() -> None:
        events.append("before")
        if len(events) == 1:
            batch.add(late)

    batch = WriteBatch(asyncio.get_running_loop(), complete)
    batch.add(Output(events, "a"))
    batch.end()
    assert events == ["before", "flush a", "flush waiting for it"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(events) == 3


async def test_what_is_said_before_a_failure_does_not_leave_either() -> None:
    events: list[str] = []

    def fail() -> None:
        batch.add(Output(events, "b"))
        raise OSError("no space left on device")

    batch = WriteBatch(asyncio.get_running_loop(), fail)
    batch.add(Output(events, "a"))
    batch.end()
    assert [event.partition(":")[0] for event in events] == ["withhold a", "withhold b"]
    await asyncio.sleep(0)
    assert len(events) == 2


async def test_ending_a_turn_early_leaves_nothing_for_its_end() -> None:
    events: list[str] = []
    batch = WriteBatch(asyncio.get_running_loop(), lambda: events.append("before"))
    batch.add(Output(events, "a"))
    batch.end()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert events == ["before", "flush a"]


async def test_output_that_cannot_be_written_does_not_keep_the_others_from_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[str] = []
    batch = WriteBatch(asyncio.get_running_loop())
    batch.add(Output(events, "a", broken=True))
    batch.add(Output(events, "b"))
    batch.end()
    assert events == ["withhold a: its output could not be written", "flush b"]
    assert "output cannot be written" in caplog.text


async def test_an_answer_leaves_only_after_what_it_acknowledges() -> None:
    staged: list[bytes] = []
    written: list[bytes] = []

    def append(_peer: Peer, request: Command) -> Command:
        assert isinstance(request.body, bytes)
        staged.append(request.body)
        return reply(request)

    def write() -> None:
        written.extend(staged)
        staged.clear()

    async with Server(append, before_write=write) as server, Pool(append) as pool:
        address = f"127.0.0.1:{server.port}"
        bodies = [b"%d" % number for number in range(20)]
        answers = [
            asyncio.ensure_future(pool.request(address, Command(310, body=body), 10))
            for body in bodies
        ]
        for answer, body in zip(answers, bodies, strict=True):
            await answer
            assert body in written


@pytest.mark.parametrize("error", [OSError, DiskFull])
async def test_when_the_write_fails_no_answer_leaves_and_the_log_says_why(
    error: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise error("no space left on device")

    async with (
        Server(lambda _peer, request: reply(request), before_write=fail) as server,
        Pool(lambda _peer, _request: None) as pool,
    ):
        with caplog.at_level(logging.ERROR), pytest.raises(ConnectionLost):
            await pool.request(f"127.0.0.1:{server.port}", Command(310), 10)
    assert "answers withheld" in caplog.text
    assert "no space left on device" in caplog.text
    # Our own errors say it all; others may be a mistake of ours.
    assert ("Traceback" in caplog.text) is (error is OSError)


async def test_promises_of_one_turn_are_written_after_one_preparation() -> None:
    held: list[tuple[Promise, Command]] = []
    preparations: list[int] = []

    def hold(_peer: Peer, request: Command) -> Promise:
        promise = Promise()
        held.append((promise, request))
        if len(held) == 3:
            for waiting, asked in held:
                waiting.resolve(reply(asked))
        return promise

    async with (
        Server(hold, before_write=lambda: preparations.append(len(held))) as server,
        Pool(hold) as pool,
    ):
        address = f"127.0.0.1:{server.port}"
        await asyncio.gather(*(pool.request(address, Command(11), 10) for _ in range(3)))
    assert preparations == [3]
