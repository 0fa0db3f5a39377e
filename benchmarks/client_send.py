"""Messages per second that our producers send to `penstock up`, against prepared frames.

Single sends are awaited by 1, 32 and 256 coroutines (`penstock.aio`), or submitted by one thread
that keeps as many futures open (`penstock`), or sent by 1, 4 and 16 threads that wait for each.
With linger the same calls share requests; batches use `send_batch`. The ceiling of each row is the
load generator of `load`: requests of the same kind encoded beforehand, answers counted by their
length words and not read.

    python -m benchmarks.client_send [--full]
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from benchmarks.client_requests import send_batch
from benchmarks.client_rounds import ClientRound, nameserver, round_of, summary
from benchmarks.effort import QUICK, Effort, Figures, at_least
from benchmarks.load import load
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import send
from benchmarks.script import main

import penstock
from penstock import aio
from penstock.client.producing.receipts import Receipt
from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

TOPIC: Final = "bench-client"
BODY: Final = b"x" * 128
QUEUES: Final = 4
RING: Final = 1024
LINGER: Final = 0.002
LINGERING: Final = 4096
BATCH: Final = 100
BATCHES_IN_FLIGHT: Final = 8


class Row(NamedTuple):
    """One way to send."""

    way: str
    api: str
    in_flight: int
    messages_a_request: int = 1
    linger: float = 0.0


ROWS: Final = (
    Row("awaited singles", "aio", 1),
    Row("awaited singles", "aio", 32),
    Row("awaited singles", "aio", 256),
    Row("submitted singles", "blocking", 1),
    Row("submitted singles", "blocking", 32),
    Row("submitted singles", "blocking", 256),
    Row("waited-for singles", "threads", 1),
    Row("waited-for singles", "threads", 4),
    Row("waited-for singles", "threads", 16),
    Row("linger", "aio", LINGERING, BATCH, LINGER),
    Row("linger", "blocking", LINGERING, BATCH, LINGER),
    Row("batches", "aio", BATCHES_IN_FLIGHT, BATCH),
)
TARGETS: Final = {ROWS[2]: 25_000, ROWS[9]: 150_000}


def run(effort: Effort = QUICK) -> Figures:
    """Measure; every figure is the median of interleaved rounds."""
    with broker() as ours:
        # Creates the topic before the first row.
        run_loop(_raw(ours, ROWS[0], 0.01))
        results = {row: _compare(ours, row, effort) for row in ROWS}
    return {
        "benchmark": "client_send",
        "body_bytes": len(BODY),
        "scenarios": list(results.values()),
        "targets": [
            at_least(
                f"{row.way}/s, {row.in_flight} in flight",
                target,
                results[row]["messages_per_second"],
            )
            for row, target in TARGETS.items()
        ],
    }


def _compare(ours: ServerProcess, row: Row, effort: Effort) -> Figures:
    clients: list[ClientRound] = []
    ceilings: list[ClientRound] = []
    for _ in range(effort.rounds):
        clients.append(_client(ours, row, effort.seconds))
        ceilings.append(run_loop(_raw(ours, row, effort.seconds)))
    return {
        "way": row.way,
        "api": row.api,
        "in_flight": row.in_flight,
        **summary(clients, ceilings),
    }


def _client(ours: ServerProcess, row: Row, seconds: float) -> ClientRound:
    if row.api == "blocking":
        return _blocking(ours, row, seconds)
    if row.api == "threads":
        return _threads(ours, row, seconds)
    return run_loop(_aio(ours, row, seconds))


# ---------------------------------------------------------------------------------------- aio


async def _aio(ours: ServerProcess, row: Row, seconds: float) -> ClientRound:
    message = penstock.Message(TOPIC, BODY, tag="t")
    async with aio.Producer(
        "bench-senders", namesrv=nameserver(ours), linger=row.linger
    ) as producer:
        await producer.send(message)
        count = itertools.count()

        async def singles(deadline: float) -> None:
            while time.perf_counter() < deadline:
                await producer.send(message)
                next(count)

        async def lingering(deadline: float) -> None:
            window: deque[asyncio.Future[Receipt]] = deque()
            while time.perf_counter() < deadline:
                while len(window) < row.in_flight:
                    window.append(await producer.submit(message))
                while window and (window[0].done() or len(window) == row.in_flight):
                    await window.popleft()
                    next(count)
            await asyncio.gather(*window)
            for _ in window:
                next(count)

        async def batches(deadline: float) -> None:
            while time.perf_counter() < deadline:
                await producer.send_batch([message] * BATCH)
                for _ in range(BATCH):
                    next(count)

        send: Callable[[float], Awaitable[None]] = singles
        senders = row.in_flight
        if row.linger:
            send, senders = lingering, 1
        elif row.messages_a_request > 1:
            send = batches
        with round_of(ours) as done:
            deadline = time.perf_counter() + seconds
            await asyncio.gather(*(send(deadline) for _ in range(senders)))
            done.messages = next(count)
    return done


# ----------------------------------------------------------------------------------- blocking


def _blocking(ours: ServerProcess, row: Row, seconds: float) -> ClientRound:
    message = penstock.Message(TOPIC, BODY, tag="t")
    with penstock.Producer(
        "bench-senders", namesrv=nameserver(ours), linger=row.linger
    ) as producer:
        producer.send(message)
        window: deque[Future[Receipt]] = deque()
        count = 0
        with round_of(ours) as done:
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                while len(window) < row.in_flight:
                    window.append(producer.submit(message))
                while window and (window[0].done() or len(window) == row.in_flight):
                    window.popleft().result()
                    count += 1
            for future in window:
                future.result()
            done.messages = count + len(window)
    return done


def _threads(ours: ServerProcess, row: Row, seconds: float) -> ClientRound:
    message = penstock.Message(TOPIC, BODY, tag="t")
    with (
        penstock.Producer("bench-senders", namesrv=nameserver(ours)) as producer,
        ThreadPoolExecutor(row.in_flight) as threads,
    ):
        producer.send(message)

        def singles(deadline: float) -> int:
            count = 0
            while time.perf_counter() < deadline:
                producer.send(message)
                count += 1
            return count

        with round_of(ours) as done:
            deadline = time.perf_counter() + seconds
            done.messages = sum(threads.map(singles, [deadline] * row.in_flight))
    return done


# ------------------------------------------------------------------------------------ ceiling


async def _raw(ours: ServerProcess, row: Row, seconds: float) -> ClientRound:
    size = row.messages_a_request
    if size == 1:
        commands = [send(TOPIC, n % QUEUES, len(BODY), n) for n in range(RING)]
    else:
        commands = [send_batch(TOPIC, n % QUEUES, BODY, n, size) for n in range(QUEUES)]
    requests = max(1, row.in_flight // size) if row.linger else row.in_flight
    ring = [encode_command(command) for command in commands]
    measured = await load(ours, ring, in_flight=requests, seconds=seconds)
    return ClientRound(
        per_second=measured.per_second * size,
        client_microseconds=measured.generator_cpu / measured.per_second / size * 1e6,
        broker_microseconds=measured.server_microseconds / size,
    )


if __name__ == "__main__":
    main(run)
