"""Milliseconds from the call of ``send`` to the handler, at 1,000 messages a second.

Producer and consumer share this process and an otherwise idle `penstock up`. Each body contains its
send time. The ceiling does the same with two bare connections: one writes frames that were made
beforehand, the other keeps a held pull at each queue.

    python -m benchmarks.client_latency [--full]
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from struct import Struct
from typing import Any, Final

from benchmarks.client_consume import RawRecord, StructReader
from benchmarks.client_rounds import nameserver
from benchmarks.effort import QUICK, Effort, Figures, at_most
from benchmarks.load import ask_successfully
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import pull, send
from benchmarks.script import main

import penstock
from penstock import aio
from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop
from penstock.testing.eventually import eventually

TOPIC: Final = "bench-latency"
RAW_TOPIC: Final = "bench-latency-raw"
QUEUES: Final = 4
RATE: Final = 1000
PADDING: Final = b"x" * 120
HOLD_MS: Final = 15_000
TARGET_MS: Final = 3.0
SETTLE_SECONDS: Final = 0.5
START_SECONDS: Final = 30.0

_STAMP: Final = Struct(">d")
Latencies = list[float]


def run(effort: Effort = QUICK) -> Figures:
    """Measure; percentiles of the quietest round, and medians over the rounds."""
    with broker() as ours:
        kinds: dict[str, Callable[[ServerProcess, float], Coroutine[Any, Any, Latencies]]] = {
            "async handler": _with_async_handler,
            "sync handler": _with_sync_handler,
            "struct only": _raw,
        }
        rounds: dict[str, list[Latencies]] = {kind: [] for kind in kinds}
        for _ in range(effort.rounds):
            for kind, measure in kinds.items():
                rounds[kind].append(run_loop(measure(ours, effort.seconds)))
    results = [{"kind": kind, **percentiles(latencies)} for kind, latencies in rounds.items()]
    return {
        "benchmark": "client_latency",
        "messages_per_second": RATE,
        "scenarios": results,
        "targets": [
            at_most("ms p99 from send to handler", TARGET_MS, results[0]["p99_ms"]),
        ],
    }


def percentiles(rounds: Sequence[Latencies]) -> Figures:
    """Of rounds of latencies in seconds: medians over the rounds, and the quietest round."""
    middles = [statistics.median(one) for one in rounds]
    tails = [sorted(one)[int(len(one) * 0.99)] for one in rounds]
    return {
        "p50_ms": round(statistics.median(middles) * 1000, 3),
        "p99_ms": round(statistics.median(tails) * 1000, 3),
        "best_p50_ms": round(min(middles) * 1000, 3),
        "best_p99_ms": round(min(tails) * 1000, 3),
        "messages": sum(map(len, rounds)),
    }


def _stamped() -> bytes:
    return _STAMP.pack(time.perf_counter()) + PADDING


def _age(body: bytes) -> float:
    return time.perf_counter() - float(_STAMP.unpack_from(body)[0])


async def pace(seconds: float, send_one: Callable[[], None]) -> None:
    """Call at a steady rate; a late call does not delay the following ones."""
    begin = time.perf_counter()
    for number in range(max(10, round(seconds * RATE))):
        await asyncio.sleep(begin + number / RATE - time.perf_counter())
        send_one()


# ------------------------------------------------------------------------------------- clients


async def _with_async_handler(ours: ServerProcess, seconds: float) -> Latencies:
    latencies: Latencies = []

    async def handle(message: penstock.StoredMessage) -> None:
        latencies.append(_age(message.body))

    return await _through_clients(ours, seconds, handle, latencies)


async def _with_sync_handler(ours: ServerProcess, seconds: float) -> Latencies:
    latencies: Latencies = []

    def handle(message: penstock.StoredMessage) -> None:
        latencies.append(_age(message.body))

    return await _through_clients(ours, seconds, handle, latencies)


async def _through_clients(
    ours: ServerProcess, seconds: float, handle: Callable[..., object], latencies: Latencies
) -> Latencies:
    namesrv = nameserver(ours)
    consumer = aio.PushConsumer("bench-latency-readers", namesrv=namesrv)
    consumer.on(TOPIC)(handle)
    async with aio.Producer("bench-latency-senders", namesrv=namesrv) as producer:
        await producer.send(penstock.Message(TOPIC, _stamped()))
        await consumer.start()
        try:
            # The first message shows that routes, queues and pulls are ready.
            await eventually(lambda: bool(latencies), START_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
            latencies.clear()
            sends: list[asyncio.Task[object]] = []

            def send_one() -> None:
                message = penstock.Message(TOPIC, _stamped())
                sends.append(asyncio.ensure_future(producer.send(message)))

            await pace(seconds, send_one)
            await asyncio.gather(*sends)
            await asyncio.sleep(SETTLE_SECONDS)
        finally:
            await consumer.stop()
    return latencies


# ------------------------------------------------------------------------------------- ceiling


class _HeldReader(StructReader):
    """Keeps a held pull at every queue and records the age of each message."""

    def __init__(self) -> None:
        super().__init__(0, lambda: None)
        self.latencies: Latencies = []

    def take(self, records: Sequence[RawRecord]) -> None:
        self.latencies.extend(_age(record[3]) for record in records)

    def ask(self, queue_id: int, queue_offset: int) -> Command:
        return pull(RAW_TOPIC, queue_id, queue_offset, hold_ms=HOLD_MS)


class _Writer(asyncio.Protocol):
    """Ignores answers."""


async def _raw(ours: ServerProcess, seconds: float) -> Latencies:
    loop = asyncio.get_running_loop()
    await ask_successfully(ours.port, [send(RAW_TOPIC, 0, 128, 0)])
    _, reader = await loop.create_connection(_HeldReader, "127.0.0.1", ours.port)
    writer, _ = await loop.create_connection(_Writer, "127.0.0.1", ours.port)
    # A frame ends with its body, so the time stamp can be written into a prepared frame.
    frames = [encode_command(send(RAW_TOPIC, n, 128, n))[:-128] for n in range(QUEUES)]
    turns = itertools.cycle(frames)
    reader.start(QUEUES)
    await asyncio.sleep(SETTLE_SECONDS)
    reader.latencies.clear()
    await pace(seconds, lambda: writer.write(next(turns) + _stamped()))
    await asyncio.sleep(SETTLE_SECONDS)
    reader.stop()
    writer.abort()
    return reader.latencies


if __name__ == "__main__":
    main(run)
