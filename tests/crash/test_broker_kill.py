"""A broker process that is killed while it works, and what the next one finds.

Everything acknowledged must be there, once, in its place; and a producer that got no answer must
be able to go on. The broker is a real process, killed with SIGKILL at moments that a seed chooses.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.asking import (
    all_records,
    commit,
    committed,
    ext,
    lock,
    log_position,
    members,
    put_topic,
    route,
)
from tests.support.wire import Wire

from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.send import SendMessage
from penstock.runtime.child_process import ChildProcess
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.crash

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
KILLS = 12 if IS_LONG else 2
CONNECTIONS = 4
WINDOW = 16
"""Sends of one connection that wait for their answers at a time."""


class Up:
    """``penstock up`` on one data directory, started as often as it takes."""

    def __init__(self, data: Path, *flags: str, settings: str = "") -> None:
        self.data = data
        config = data.with_name("broker.conf")
        config.write_text(f"mappedFileSizeCommitLog=1048576\n{settings}")
        command: list[str | Path] = [sys.executable, "-m", "penstock", "up"]
        command += ["--data", data, "--config", config]
        command += ["--nameserver-port", "0", "--broker-port", "0", *flags]
        self.process = ChildProcess(command)
        self.port = self.names_port = 0

    def start(self) -> None:
        self.process.start()
        line = self.process.wait_for_line(r"^ready namesrv=\S+:(\d+) broker=\S+:(\d+) ")
        self.names_port, self.port = int(line[1]), int(line[2])

    def restart(self) -> None:
        """Kill it without a word, and start it on what it left."""
        self.process.kill()
        self.start()


@contextmanager
def running(data: Path, *flags: str, settings: str = "") -> Iterator[Up]:
    up = Up(data, *flags, settings=settings)
    try:
        up.start()
        yield up
    finally:
        if up.process.starts:
            up.process.kill()


@dataclass
class Producer:
    """Sends numbers to a queue of its own until the connection breaks."""

    queue_id: int
    sent: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Number to queue offset, as the broker said."""
    positions: set[int] = field(default_factory=set)

    async def run(self, port: int) -> None:
        async with await Wire.connect(port) as wire:
            pending: dict[asyncio.Future[Command], int] = {}
            try:
                while True:
                    while len(pending) < WINDOW:
                        pending[self._start(wire)] = self.sent
                        self.sent += 1
                    done, _ = await asyncio.wait(
                        pending, return_when=asyncio.FIRST_COMPLETED, timeout=10
                    )
                    assert done, "no answer and no end of the connection"
                    self._note(done, pending)
            except ConnectionError:
                # Answers that came before the end count, however the process ended.
                self._note({one for one in pending if one.done()}, pending, lenient=True)

    def _start(self, wire: Wire) -> asyncio.Future[Command]:
        if wire.is_closed:
            raise ConnectionResetError("closed")
        header = SendMessage("p", "T", "TBW102", 4, self.queue_id, 0, 1, 0, "KEYS\x01k\x02")
        body = f"{self.queue_id}:{self.sent}".encode().ljust(20 + self.sent % 400, b".")
        return wire.start(RequestCode.SEND_MESSAGE_V2, header, body)

    def _note(
        self,
        done: set[asyncio.Future[Command]],
        pending: dict[asyncio.Future[Command], int],
        *,
        lenient: bool = False,
    ) -> None:
        for future in sorted(done, key=pending.__getitem__):
            number = pending.pop(future)
            if future.exception() is not None:
                if not lenient:
                    raise ConnectionResetError("closed")
                continue
            answer = future.result()
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.acknowledged[number] = int(ext(answer)["queueOffset"])
            self.positions.add(log_position(answer))


async def load_and_kill(up: Up, producers: list[Producer], acknowledgements: int) -> None:
    """Send from all producers at once, and kill the broker after so many answers."""
    wanted = acknowledgements + sum(len(p.acknowledged) for p in producers)
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            group.create_task(producer.run(up.port))
        await eventually(
            lambda: sum(len(p.acknowledged) for p in producers) >= wanted, 60, interval=0.001
        )
        await asyncio.to_thread(up.process.kill)
    await asyncio.to_thread(up.start)


async def check(up: Up, producers: list[Producer]) -> None:
    """Everything acknowledged is there, once, in order and in its place."""
    async with await Wire.connect(up.port) as wire:
        for producer in producers:
            found = await all_records(wire, "T", producer.queue_id)
            assert [r.queue_offset for r in found] == list(range(len(found)))
            numbers = []
            for record in found:
                prefix, _, number = record.body.rstrip(b".").partition(b":")
                assert int(prefix) == producer.queue_id
                numbers.append(int(number))
            assert len(set(numbers)) == len(numbers), "stored twice"
            assert numbers == sorted(numbers), "stored out of order"
            for sent, offset in producer.acknowledged.items():
                assert numbers[offset] == sent


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_every_acknowledged_message_survives_kills(tmp_path: Path, flush: str) -> None:
    chance = random.Random(f"kills-{flush}")
    producers = [Producer(queue_id) for queue_id in range(CONNECTIONS)]
    with running(tmp_path / "data", "--flush", flush) as up:
        for _ in range(KILLS if flush == "async" else max(1, KILLS // 2)):
            await load_and_kill(up, producers, chance.randrange(50, 1500))
            await check(up, producers)
        assert all(producer.acknowledged for producer in producers)
        # And the broker that came back stops as any other, leaving the same behind.
        assert await asyncio.to_thread(up.process.terminate) == 0
        await asyncio.to_thread(up.start)
        await check(up, producers)


@pytest.mark.spec("S93", "S92", "S119")
async def test_state_that_was_saved_survives_a_kill(tmp_path: Path) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    settings = "flushConsumerOffsetInterval=100\n"
    with running(tmp_path / "data", settings=settings) as up:
        async with AsyncExitStack() as stack:
            wire = await stack.enter_async_context(await Wire.connect(up.port))
            await put_topic(wire, "T")
            for number in range(10):
                await wire.send("T", str(number).encode())
            await commit(wire, "g", "T", 4)
            offsets = up.data / "broker-a/config/consumerOffset.json"
            await eventually(lambda: _saved(offsets) == {"T@g": {0: 4}})
            # Everything from here on is as fresh as can be.
            await commit(wire, "g", "T", 6)
            assert await lock(wire, "g", "A", [queue]) == {queue}
            await wire.heartbeat("A", consumer="g", topics=["T"])
            await wire.send("T", b"one second", properties={"DELAY": "1"})
            await wire.send("T", b"five seconds", properties={"DELAY": "2"})
            answer = await wire.send("made-last", b"first", default_topic_queue_nums=7)
            assert answer.code == ResponseCode.SUCCESS
            await asyncio.to_thread(up.restart)
        async with await Wire.connect(up.port) as wire:
            # Commits older than one round hold; a younger one may be repeated, and never skipped.
            assert await committed(wire, "g", "T") in (4, 6)
            # Locks and members live in memory only, so another may go on at once.
            assert await lock(wire, "g", "B", [queue]) == {queue}
            assert await members(wire, "g") == []
            # The topic that the last send made is there with all its queues, and has a route.
            assert [r.body for r in await all_records(wire, "made-last")] == [b"first"]
            async with await Wire.connect(up.names_port) as names:
                found = await route(names, "made-last")
                assert found is not None
                assert found.queues[0].write_queues == 7

            async def delivered() -> bool:
                found = {record.body for record in await all_records(wire, "T")}
                return {b"one second", b"five seconds"} <= found

            await eventually(delivered, 30, interval=0.1)


def _saved(file: Path) -> dict[str, dict[int, int]]:
    if not file.exists():
        return {}
    return decode_body(ConsumerOffsetTable, file.read_bytes()).offset_table


async def test_a_killed_broker_holds_nothing_against_the_next(tmp_path: Path) -> None:
    """Neither its lock file nor half-made files keep a broker from starting."""
    with running(tmp_path / "data") as up:
        first_pid = up.process.pid
        await asyncio.to_thread(up.restart)
        assert up.process.pid != first_pid
        async with await Wire.connect(up.port) as wire:
            assert (await wire.send("T")).code == ResponseCode.SUCCESS
        # A second one on the same directory is refused while the first lives.
        second = Up(tmp_path / "data")
        second.process.start()
        assert await asyncio.to_thread(second.process.wait) != 0
        assert "writes to store" in second.process.output
