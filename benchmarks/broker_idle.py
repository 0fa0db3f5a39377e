"""The cost of an idle `penstock up`: time to start, memory, and 2,000 waiting consumers.

Each consumer has a connection and one held pull. Sends to another topic are measured with and
without them, alternately on two brokers. Then one message is sent to the queue that all consumers
wait for, and the time until the last one has received it is reported.

    python -m benchmarks.broker_idle [--full]
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.effort import QUICK, Effort, Figures, at_least, at_most, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, allow_many_files, broker
from benchmarks.requests import pull, send, sends
from benchmarks.script import main

from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

CONSUMERS: Final = 2_000
BUSY: Final = "bench-busy"
QUIET: Final = "bench-quiet"
IN_FLIGHT: Final = 256
HOLD_MS: Final = 60_000
SPARE_FILES: Final = 200
TARGET_READY_SECONDS: Final = 1.0
TARGET_RESIDENT_BYTES: Final = 100_000_000
TARGET_RATIO: Final = 0.9


def run(effort: Effort = QUICK) -> Figures:
    """Measure; rates and times are medians of interleaved rounds."""
    ready, resident = _starts(effort)
    wanted = effort.scaled(CONSUMERS)
    count = min(wanted, allow_many_files(wanted + SPARE_FILES) - SPARE_FILES)
    with broker() as lonely, broker() as watched:
        with_them, without, figures = run_loop(_measure(lonely, watched, count, effort))
    compared = ratio([one.per_second for one in with_them], [one.per_second for one in without])
    return {
        "benchmark": "broker_idle",
        "ready_seconds": ready,
        "resident_bytes": resident,
        "waiting_consumers": count,
        "sends_per_second_beside_them": median([one.per_second for one in with_them]),
        "sends_per_second_without": median([one.per_second for one in without]),
        "broker_microseconds_beside_them": median([m.server_microseconds for m in with_them], 2),
        "broker_microseconds_without": median([m.server_microseconds for m in without], 2),
        **compared,
        **figures,
        "targets": [
            at_most("seconds until ready", TARGET_READY_SECONDS, ready),
            at_most("resident bytes when idle", TARGET_RESIDENT_BYTES, resident),
            at_least(f"send rate with {count} waiting pulls", TARGET_RATIO, compared["ratio"]),
        ],
    }


def _starts(effort: Effort) -> tuple[float, float]:
    """Seconds until the ready line, and resident bytes soon afterwards."""
    seconds, resident = [], []
    for _ in range(effort.rounds):
        with broker() as server:
            seconds.append(server.ready_seconds)
            time.sleep(min(1.0, effort.seconds))
            resident.append(server.resident_bytes())
    return median(seconds, 3), median(resident)


async def _measure(
    lonely: ServerProcess, watched: ServerProcess, count: int, effort: Effort
) -> tuple[list[Measured], list[Measured], Figures]:
    for server in (lonely, watched):
        await ask_successfully(server.port, [send(BUSY, 0, 128, 0), send(QUIET, 0, 128, 0)])
    before = watched.resident_bytes()
    consumers = [await _Consumer.connect(watched.port) for _ in range(count)]
    # A pull on a new connection is served after theirs; once it is answered, all of them are held.
    await ask_successfully(watched.port, [pull(QUIET, 0, 0)])
    held_bytes = watched.resident_bytes() - before
    ring = [encode_command(command) for command in sends(BUSY, (0, 1, 2, 3), 128, 1024)]
    with_them: list[Measured] = []
    without: list[Measured] = []
    for _ in range(effort.rounds):
        for server, measured in ((watched, with_them), (lonely, without)):
            measured.append(await load(server, ring, in_flight=IN_FLIGHT, seconds=effort.seconds))
    started = time.perf_counter()
    await ask_successfully(watched.port, [send(QUIET, 0, 128, 1)])
    await asyncio.gather(*(consumer.answered.wait() for consumer in consumers))
    woken = time.perf_counter() - started
    for consumer in consumers:
        consumer.leave()
    return (
        with_them,
        without,
        {
            "bytes_per_waiting_consumer": round(held_bytes / count),
            "milliseconds_until_all_are_woken": round(woken * 1000, 1),
        },
    )


class _Consumer(asyncio.Protocol):
    """One connection with one held pull at the end of a queue."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self.answered = asyncio.Event()

    @classmethod
    async def connect(cls, port: int) -> _Consumer:
        loop = asyncio.get_running_loop()
        transport, consumer = await loop.create_connection(cls, "127.0.0.1", port)
        transport.write(encode_command(pull(QUIET, 0, 1, hold_ms=HOLD_MS)))
        consumer._transport = transport
        return consumer

    def data_received(self, data: bytes) -> None:
        self.answered.set()

    def leave(self) -> None:
        self._transport.abort()


if __name__ == "__main__":
    main(run)
