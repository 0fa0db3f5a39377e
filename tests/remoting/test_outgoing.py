"""One write per connection and turn, nothing large copied, nothing buffered without bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import IllegalMessage
from penstock.protocol.commands import Buffer, Command, decode_command, reply
from penstock.protocol.frames import FrameDecoder
from penstock.remoting import Limits
from penstock.remoting.outgoing import LARGE, Outgoing, join_small
from penstock.remoting.write_batch import WriteBatch
from penstock.testing.virtual_time.loop import run_virtual


class RecordingTransport(asyncio.Transport):
    """Keeps every write apart, and pretends that ``stuck`` bytes were not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[Buffer]] = []
        self.stuck = 0
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append([data])

    def writelines(self, list_of_data: object) -> None:
        assert isinstance(list_of_data, list)
        self.writes.append(list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.marks = (high, low)

    def get_write_buffer_size(self) -> int:
        return self.stuck

    def is_closing(self) -> bool:
        return self.closing

    def commands(self) -> list[Command]:
        data = b"".join(bytes(part) for write in self.writes for part in write)
        return [decode_command(frame) for frame in FrameDecoder().feed(data)]


class Output:
    def __init__(self, limits: Limits | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.transport = RecordingTransport()
        self.batch = WriteBatch(loop)
        self.cuts: list[str] = []
        self.outgoing = Outgoing(
            loop, self.transport, limits or Limits(), self.batch, self.cuts.append
        )


def virtually(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    run_virtual(main())


def test_all_answers_of_a_turn_leave_in_one_write() -> None:
    async def test() -> None:
        output = Output()
        for number in range(1, 101):
            output.outgoing.add(Command(0, number, 1, body=b"x" * number))
        assert output.transport.writes == []
        await asyncio.sleep(0)
        assert len(output.transport.writes) == 1
        assert [command.request_id for command in output.transport.commands()] == [*range(1, 101)]
        output.outgoing.add(Command(0, 101, 1))
        await asyncio.sleep(0)
        assert len(output.transport.writes) == 2

    virtually(test)


def test_a_large_body_is_handed_over_as_it_is_and_small_ones_are_joined() -> None:
    async def test() -> None:
        output = Output()
        large = b"L" * LARGE
        slices: list[Buffer] = [memoryview(b"a" * 100), memoryview(large), memoryview(b"b" * 100)]
        output.outgoing.add(Command(0, 1, 1, body=b"small"))
        output.outgoing.add(Command(0, 2, 1, body=large))
        output.outgoing.add(Command(0, 3, 1, body=slices))
        output.outgoing.add(Command(0, 4, 1))
        await asyncio.sleep(0)
        [parts] = output.transport.writes
        assert len(parts) == 5
        assert parts[1] is large
        assert parts[3] is slices[1]
        bodies = [command.body for command in output.transport.commands()]
        assert bodies == [b"small", large, b"a" * 100 + large + b"b" * 100, b""]

    virtually(test)


def test_small_slices_of_the_log_become_one_buffer() -> None:
    assert join_small([b"ab", memoryview(b"cd"), bytearray(b"e")]) == [b"abcde"]
    assert join_small([]) == []


def test_a_frame_longer_than_the_limit_is_refused_before_it_is_gathered() -> None:
    async def test() -> None:
        output = Output(Limits(max_frame_bytes=100_000))
        with pytest.raises(IllegalMessage, match="at most 100000 bytes"):
            output.outgoing.add(Command(310, 1, body=b"x" * 100_000))
        with pytest.raises(IllegalMessage, match="answer of"):
            output.outgoing.add(reply(Command(11), body=[b"x" * 60_000, b"y" * 60_000]))
        await asyncio.sleep(0)
        assert output.transport.writes == []
        assert output.outgoing.size == 0

    virtually(test)


def test_the_transport_gets_the_marks() -> None:
    async def test() -> None:
        output = Output(Limits(write_low=10, write_high=20))
        assert output.transport.marks == (20, 10)

    virtually(test)


def test_above_the_cut_mark_the_connection_is_cut() -> None:
    async def test() -> None:
        output = Output(Limits(write_low=1, write_high=10, write_cut=1000))
        output.outgoing.block()
        output.transport.stuck = 1000
        output.outgoing.add(Command(0, 1, 1))
        await asyncio.sleep(0)
        assert output.cuts == []
        output.transport.stuck = 1001
        output.outgoing.add(Command(0, 2, 1))
        await asyncio.sleep(0)
        [reason] = output.cuts
        assert "1001 bytes wait" in reason
        assert "write_cut=1000" in reason

    virtually(test)


def test_a_peer_that_takes_nothing_is_cut_and_one_that_is_slow_is_not() -> None:
    async def test() -> None:
        output = Output(Limits(stuck_seconds=30))
        output.transport.stuck = 5000
        output.outgoing.block()
        for _ in range(10):  # It takes a byte in every interval: slow, but alive.
            await asyncio.sleep(29)
            output.transport.stuck -= 1
        assert output.cuts == []
        await asyncio.sleep(61)
        [reason] = output.cuts
        assert "no byte of 4990 waiting ones was taken for 30 s" in reason

    virtually(test)


def test_no_peer_is_cut_for_having_been_slow_once() -> None:
    async def test() -> None:
        output = Output(Limits(stuck_seconds=30))
        output.transport.stuck = 5000
        output.outgoing.block()
        await asyncio.sleep(10)
        output.outgoing.unblock()
        await asyncio.sleep(1000)
        assert output.cuts == []

    virtually(test)


def test_what_is_said_to_a_closing_connection_is_dropped() -> None:
    async def test() -> None:
        output = Output()
        output.outgoing.add(Command(0, 1, 1))
        output.transport.closing = True
        await asyncio.sleep(0)
        assert output.transport.writes == []
        assert output.outgoing.size == 0

    virtually(test)
