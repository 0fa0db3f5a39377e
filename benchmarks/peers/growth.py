"""The growth of Penstock's broker: more queues, more consumers, more stored messages.

    python -m benchmarks.peers.growth [--full | --tiny]

The load is the generator of `benchmarks.load`: requests encoded beforehand, answers counted.
Each point has its own broker; rounds at one point are not interleaved with other points, since a
backlog of millions is filled only once. Each rate comes with the broker's CPU time.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.client_requests import send_batch
from benchmarks.effort import median
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.peers.servers.server import allocated_bytes
from benchmarks.processes import ServerProcess, allow_many_files, broker
from benchmarks.requests import MESSAGES_PER_PULL, pull, send

from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

BODY: Final = b"x" * 128
IN_FLIGHT: Final = 256
QUEUES_A_TOPIC: Final = 8
"""Queues of a topic that is created by a send."""
BATCH: Final = 64
FILL_AT_A_TIME: Final = 4096
"""Requests encoded at a time when a backlog is filled."""
SPARE_FILES: Final = 300
DISK_A_MESSAGE: Final = 400
"""Free bytes required for each message of a backlog: more than it uses."""
Point = dict[str, float]
Curves = dict[str, list[Point]]


@dataclass(frozen=True, slots=True)
class Growth:
    """The points and their durations."""

    queues: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    consumers: tuple[int, ...] = (1, 10, 100, 1_000, 2_000)
    backlogs: tuple[int, ...] = (1_000_000, 10_000_000)
    rounds: int = 3
    seconds: float = 1.0


TINY_GROWTH: Final = Growth((1, 10), (1, 5), (2_000,), rounds=1, seconds=0.05)
SHORT_GROWTH: Final = Growth()
FULL_GROWTH: Final = Growth(
    queues=(1, 10, 100, 1_000, 10_000),
    consumers=(1, 10, 100, 300, 1_000, 2_000),
    backlogs=(1_000_000, 10_000_000, 50_000_000),
    rounds=5,
    seconds=3.0,
)


def fitting(growth: Growth, free_bytes: int) -> tuple[Growth, list[int]]:
    """Without the backlogs that do not fit on the disk; also returns those."""
    fits = tuple(count for count in growth.backlogs if count * DISK_A_MESSAGE <= free_bytes)
    return replace(growth, backlogs=fits), [n for n in growth.backlogs if n not in fits]


def run_growth(growth: Growth) -> Curves:
    """All three curves."""
    return {
        "queues": [_reported("queues", _queues(count, growth)) for count in growth.queues],
        "consumers": [
            _reported("consumers", _consumers(count, growth)) for count in growth.consumers
        ],
        "backlog": [_reported("backlog", _backlog(count, growth)) for count in growth.backlogs],
    }


def _reported(curve: str, point: Point) -> Point:
    sys.stderr.write(f"growth, {curve}: {point}\n")
    return point


def _summed(name: str, rounds: Sequence[Measured], messages: int = 1) -> Point:
    rates = [one.per_second * messages for one in rounds]
    return {
        **spread(name, rates),
        f"{name}_broker_microseconds": median(
            [one.server_microseconds / messages for one in rounds], 3
        ),
    }


def spread(name: str, rates: Sequence[float]) -> Point:
    """The figures of one rate in several rounds."""
    return {
        f"{name}_per_second": median(rates),
        f"{name}_per_second_low": round(min(rates)),
        f"{name}_per_second_high": round(max(rates)),
    }


def _rounds(
    server: ServerProcess,
    ring: Sequence[bytes],
    growth: Growth,
    *,
    connections: int = 1,
    in_flight: int = IN_FLIGHT,
) -> list[Measured]:
    return [
        run_loop(
            load(
                server,
                ring,
                connections=connections,
                in_flight=in_flight,
                seconds=growth.seconds,
            )
        )
        for _ in range(growth.rounds)
    ]


# -------------------------------------------------------------------------------------- queues


def _queues(count: int, growth: Growth) -> Point:
    """Sends to this many queues in turn, and pulls from them."""
    places = [(f"grow-{n // QUEUES_A_TOPIC}", n % QUEUES_A_TOPIC) for n in range(count)]
    # Enough messages in each queue for a full pull, so that pulls do not depend on the queue count.
    filling = [
        send_batch(topic, queue, BODY, n, MESSAGES_PER_PULL)
        for n, (topic, queue) in enumerate(places)
    ]
    sends = [send(topic, queue, len(BODY), n) for n, (topic, queue) in enumerate(places)]
    pulls = [encode_command(pull(topic, queue, 0)) for topic, queue in places]
    ring = [encode_command(command) for command in sends]
    allow_many_files(count + SPARE_FILES)
    with broker() as server:
        run_loop(ask_successfully(server.port, filling, in_flight=1024))
        sent = _rounds(server, ring, growth)
        pulled = _rounds(server, pulls, growth, in_flight=16)
        resident = server.resident_bytes()
    return {
        "queues": count,
        **_summed("sends", sent),
        **_summed("messages", pulled, MESSAGES_PER_PULL),
        "resident_bytes": resident,
    }


# ----------------------------------------------------------------------------------- consumers


def _consumers(count: int, growth: Growth) -> Point:
    """This many connections, each of which pulls 32 messages at a time from the same queue."""
    allowed = allow_many_files(count + SPARE_FILES) - SPARE_FILES
    count = min(count, allowed)
    commands = [send_batch("grow", 0, BODY, n, BATCH) for n in range(64)]
    offsets = range(0, 64 * BATCH - MESSAGES_PER_PULL, MESSAGES_PER_PULL)
    with broker() as server:
        run_loop(ask_successfully(server.port, commands))
        ring = [encode_command(pull("grow", 0, offset)) for offset in offsets]
        before = server.resident_bytes()
        pulled = _rounds(server, ring, growth, connections=count, in_flight=1)
        grown = server.resident_bytes() - before
    return {
        "consumers": count,
        **_summed("messages", pulled, MESSAGES_PER_PULL),
        "resident_bytes_grown": grown,
    }


# ------------------------------------------------------------------------------------- backlog


def _backlog(count: int, growth: Growth) -> Point:
    """A broker with this many stored messages: restart, sends, and pulls from all over the log."""
    with TemporaryDirectory(prefix="bench-growth-") as data, ExitStack() as stack:
        server = ServerProcess(_up(data))
        stack.callback(lambda: server.stop())
        began = time.perf_counter()
        in_queue = run_loop(_fill(server, count))
        filled = time.perf_counter() - began
        server.stop()
        taken = allocated_bytes(Path(data))
        server = ServerProcess(_up(data))
        offsets = range(0, in_queue, MESSAGES_PER_PULL)
        oldest = _rounds(server, _pulls(offsets[:1024]), growth, in_flight=16)
        scattered = _rounds(server, _pulls(offsets), growth, in_flight=16)
        newest = _rounds(server, _pulls(offsets[-1024:]), growth, in_flight=16)
        ring = [encode_command(send("grow", n % 4, len(BODY), n)) for n in range(1024)]
        sent = _rounds(server, ring, growth)
        resident = server.resident_bytes()
        return {
            "backlog": in_queue * 4,
            "fill_per_second": round(in_queue * 4 / filled),
            "restart_seconds": round(server.ready_seconds, 3),
            "disk_bytes_per_message": round(taken / in_queue / 4, 1),
            **_summed("oldest", oldest, MESSAGES_PER_PULL),
            **_summed("scattered", scattered, MESSAGES_PER_PULL),
            **_summed("newest", newest, MESSAGES_PER_PULL),
            **_summed("sends", sent),
            "resident_bytes": resident,
        }


def _up(data: str) -> list[str]:
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    return ["-m", "penstock", "up", "--data", data, *ports]


async def _fill(server: ServerProcess, count: int) -> int:
    """Fill four queues; return the number of messages in each."""
    batches = max(4, count // BATCH // 4 * 4)
    await ask_successfully(server.port, [send_batch("grow", 0, BODY, 0, BATCH)])
    numbers = iter(range(1, batches))
    while part := list(itertools.islice(numbers, FILL_AT_A_TIME)):
        commands = [send_batch("grow", n % 4, BODY, n, BATCH) for n in part]
        await ask_successfully(server.port, commands, in_flight=16)
    return batches * BATCH // 4


def _pulls(offsets: range) -> list[bytes]:
    """Pulls spread over a range of the backlog, a thousand at most."""
    step = max(1, len(offsets) // 1024)
    return [encode_command(pull("grow", n % 4, at)) for n, at in enumerate(offsets[::step])]


def main(arguments: Sequence[str]) -> None:
    """Run this part alone; prints JSON."""
    kinds = {"--full": FULL_GROWTH, "--tiny": TINY_GROWTH}
    growth = next((kinds[word] for word in arguments if word in kinds), SHORT_GROWTH)
    curves: Any = run_growth(growth)
    print(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
