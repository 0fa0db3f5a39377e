"""Messages per second that our push consumer delivers to a handler that does nothing.

Four queues are filled beforehand. In each round a new group reads them from the start; the time is
from its first message to its last. The ceiling pulls the same queues, one request in flight each,
with hand-made requests and records split with `struct` alone: topic, body, the properties as bytes
and the numbers of the record head.

    python -m benchmarks.client_consume [--full]
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias, cast

from benchmarks.client_requests import send_batch
from benchmarks.client_rounds import ClientRound, nameserver, round_of, summary
from benchmarks.effort import QUICK, Effort, Figures, at_least
from benchmarks.load import ask_successfully
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import pull
from benchmarks.script import main

import penstock
from penstock import aio
from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

TOPIC: Final = "bench-consume"
BODY: Final = b"x" * 128
QUEUES: Final = 4
BATCH: Final = 64
MESSAGES_A_SECOND: Final = 100_000
"""Messages of a round per second of effort."""
GIVE_UP_SECONDS: Final = 60.0

_HEAD: Final = Struct(">iiiiiqqiq8sq8siqi")
_LENGTHS: Final = Struct(">ii")
_groups: Final = itertools.count(1)

RawRecord: TypeAlias = tuple[str, int, int, bytes, bytes]
"""Topic, queue, offset, body and properties."""


class Row(NamedTuple):
    """One kind of handler."""

    handler: str
    api: str
    batch_size: int


ROWS: Final = (
    Row("async", "aio", 1),
    Row("async", "aio", 32),
    Row("sync", "blocking", 1),
    Row("sync", "blocking", 32),
)
TARGETS: Final = {ROWS[0]: 100_000, ROWS[2]: 60_000}


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    with broker() as ours:
        batches = max(QUEUES, round(effort.seconds * MESSAGES_A_SECOND / BATCH))
        batches -= batches % QUEUES
        run_loop(_fill(ours, batches))
        results = {row: _compare(ours, row, batches * BATCH, effort) for row in ROWS}
    return {
        "benchmark": "client_consume",
        "body_bytes": len(BODY),
        "messages_a_round": batches * BATCH,
        "scenarios": list(results.values()),
        "targets": [
            at_least(
                f"messages/s by {row.handler} handlers, batches of {row.batch_size}",
                target,
                results[row]["messages_per_second"],
            )
            for row, target in TARGETS.items()
        ],
    }


async def _fill(ours: ServerProcess, batches: int) -> None:
    await ask_successfully(ours.port, [send_batch(TOPIC, 0, BODY, 0, BATCH)])
    commands = [send_batch(TOPIC, n % QUEUES, BODY, n, BATCH) for n in range(1, batches)]
    await ask_successfully(ours.port, commands)


def _compare(ours: ServerProcess, row: Row, count: int, effort: Effort) -> Figures:
    clients: list[ClientRound] = []
    ceilings: list[ClientRound] = []
    for _ in range(effort.rounds):
        if row.api == "blocking":
            clients.append(_blocking(ours, row, count))
        else:
            clients.append(run_loop(_aio(ours, row, count)))
        ceilings.append(run_loop(_raw(ours, count)))
    return {**row._asdict(), **summary(clients, ceilings)}


# ------------------------------------------------------------------------------------- clients


async def _aio(ours: ServerProcess, row: Row, count: int) -> ClientRound:
    began, ended = asyncio.Event(), asyncio.Event()
    seen = 0
    consumer = aio.PushConsumer(
        f"bench-readers-{next(_groups)}",
        namesrv=nameserver(ours),
        start_from="first",
        batch_size=row.batch_size,
    )

    async def handle_one(message: penstock.StoredMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            began.set()
        elif seen == count:
            ended.set()

    async def handle_batch(messages: list[penstock.StoredMessage]) -> None:
        nonlocal seen
        if not seen:
            began.set()
        seen += len(messages)
        if seen >= count:
            ended.set()

    handle: Any = handle_one if row.batch_size == 1 else handle_batch
    consumer.on(TOPIC)(handle)
    await consumer.start()
    try:
        await asyncio.wait_for(began.wait(), GIVE_UP_SECONDS)
        before = seen
        with round_of(ours) as done:
            await asyncio.wait_for(ended.wait(), GIVE_UP_SECONDS)
            done.messages = seen - before
    finally:
        await consumer.stop()
    return done


def _blocking(ours: ServerProcess, row: Row, count: int) -> ClientRound:
    began, ended = threading.Event(), threading.Event()
    # Counting must be correct with twenty threads and must not dominate the measurement.
    tickets = itertools.count(1)

    def handle_one(message: penstock.StoredMessage) -> None:
        number = next(tickets)
        if number == 1:
            began.set()
        elif number == count:
            ended.set()

    def handle_batch(messages: list[penstock.StoredMessage]) -> None:
        for _ in messages:
            number = next(tickets)
        if not began.is_set():
            began.set()
        if number >= count:
            ended.set()

    consumer = penstock.PushConsumer(
        f"bench-readers-{next(_groups)}",
        namesrv=nameserver(ours),
        start_from="first",
        batch_size=row.batch_size,
    )
    handle: Any = handle_one if row.batch_size == 1 else handle_batch
    consumer.on(TOPIC)(handle)
    consumer.start()
    try:
        if not began.wait(GIVE_UP_SECONDS):
            raise RuntimeError("no message arrived")
        with round_of(ours) as done:
            if not ended.wait(GIVE_UP_SECONDS):
                raise RuntimeError(f"{next(tickets) - 1} of {count} messages arrived")
            done.messages = count
    finally:
        consumer.stop()
    return done


# ------------------------------------------------------------------------------------- ceiling


class StructReader(asyncio.Protocol):
    """Pulls its queues from end to end; splits records and keeps nothing."""

    def __init__(self, count: int, ended: Callable[[], None]) -> None:
        self._left = count
        self._ended = ended
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self, queues: int) -> None:
        for queue_id in range(queues):
            self._pull(queue_id, 0)

    def stop(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        start, size = 0, len(data)
        while size - start >= 8:
            length, mark = _LENGTHS.unpack_from(data, start)
            end = start + 4 + length
            if end > size:
                break
            records = cut(data, start + 8 + (mark & 0xFF_FFFF), end)
            if records:
                self.take(records)
                self._pull(records[-1][1], records[-1][2] + 1)
            start = end
        self._rest = data[start:]
        if self._left <= 0:
            self._ended()

    def _pull(self, queue_id: int, queue_offset: int) -> None:
        self._transport.write(encode_command(self.ask(queue_id, queue_offset)))

    def take(self, records: Sequence[RawRecord]) -> None:
        """Process the records of one answer."""
        self._left -= len(records)

    def ask(self, queue_id: int, queue_offset: int) -> Command:
        """The next request for a queue."""
        return pull(TOPIC, queue_id, queue_offset)


def cut(data: bytes, position: int, end: int) -> Sequence[RawRecord]:
    """The records between two positions."""
    records = []
    while position < end:
        head = _HEAD.unpack_from(data, position)
        body = position + _HEAD.size
        topic = body + head[14]
        after = topic + 1 + data[topic]
        position += head[0]
        records.append(
            (
                data[topic + 1 : after].decode(),
                head[3],
                head[5],
                data[body:topic],
                data[after + 2 : position],
            )
        )
    return records


async def _raw(ours: ServerProcess, count: int) -> ClientRound:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    _, reader = await loop.create_connection(
        lambda: StructReader(count, ended.set), "127.0.0.1", ours.port
    )
    with round_of(ours) as done:
        reader.start(QUEUES)
        await asyncio.wait_for(ended.wait(), GIVE_UP_SECONDS)
        done.messages = count
    reader.stop()
    return done


if __name__ == "__main__":
    main(run)
