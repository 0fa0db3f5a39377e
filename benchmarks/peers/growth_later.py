"""The growth of what waits: pending timers, open receipts, gRPC streams, topics in the console.

    python -m benchmarks.peers.growth_later [--full | --tiny]

A curve that should be flat shows what one more message, receipt or client costs while many others
wait. CPU time is that of the broker's process; the gRPC endpoint and the console are processes of
their own, whose memory is listed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.console_page import PAGES, write_tables
from benchmarks.effort import median
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.peers.growth import SPARE_FILES, Curves, Point, spread
from benchmarks.processes import ServerProcess, allow_many_files
from benchmarks.requests import send
from tests.proxy.fleet import Fleet
from tests.proxy.lab import TOPIC as FLEET_TOPIC

from penstock import Message, aio
from penstock.protocol.commands import Command, encode_command
from penstock.remoting.loop import run as run_loop

BODY_BYTES: Final = 128
IN_FLIGHT: Final = 256
FILL_AT_A_TIME: Final = 4096
QUEUES: Final = 8
TOPICS_OF_RECEIPTS: Final = 2
"""So that no queue reaches ``popInflightMessageThreshold``."""
FIRST_DUE_SECONDS: Final = 3_600
DUE_SPAN_SECONDS: Final = 3_600
INVISIBLE: Final = 3_600
BEAT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True)
class LaterGrowth:
    """The points and their durations."""

    timers: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    receipts: tuple[int, ...] = (100, 10_000, 100_000)
    streams: tuple[int, ...] = (10, 100, 1_000)
    console_topics: tuple[int, ...] = (100, 1_000, 10_000)
    rounds: int = 3
    seconds: float = 1.0


TINY_LATER: Final = LaterGrowth((200,), (64,), (3,), (20,), rounds=1, seconds=0.05)
SHORT_LATER: Final = LaterGrowth()
FULL_LATER: Final = LaterGrowth(rounds=5, seconds=3.0)


def run_later_growth(growth: LaterGrowth) -> Curves:
    """All four curves."""
    curves: Curves = {"timers": [], "receipts": [], "streams": [], "console_topics": []}
    for curve, points, measure in (
        ("timers", growth.timers, _timers),
        ("receipts", growth.receipts, _receipts),
        ("streams", growth.streams, _streams),
        ("console_topics", growth.console_topics, _console),
    ):
        for count in points:
            point = measure(count, growth)
            sys.stderr.write(f"growth, {curve}: {point}\n")
            curves[curve].append(point)
    return curves


@contextmanager
def _up(data: str, *options: str) -> Iterator[ServerProcess]:
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    server = ServerProcess(["-m", "penstock", "up", "--data", data, *ports, *options])
    try:
        yield server
    finally:
        server.stop()


def _field(server: ServerProcess, name: str) -> str:
    found = re.search(rf"\b{name}=(\S+)", server.ready_line)
    if found is None:
        raise RuntimeError(f"no {name}= in {server.ready_line!r}: is its extra installed?")
    return found[1]


def _rates(name: str, server: ServerProcess, ring: list[bytes], growth: LaterGrowth) -> Point:
    rounds: list[Measured] = [
        run_loop(load(server, ring, in_flight=IN_FLIGHT, seconds=growth.seconds))
        for _ in range(growth.rounds)
    ]
    return {
        **spread(name, [one.per_second for one in rounds]),
        f"{name}_broker_microseconds": median([one.server_microseconds for one in rounds], 2),
    }


def _plain_ring() -> list[bytes]:
    return [encode_command(send("grow", n % QUEUES, BODY_BYTES, n)) for n in range(1024)]


# -------------------------------------------------------------------------------------- timers


def _timers(count: int, growth: LaterGrowth) -> Point:
    """So many messages wait for their time; sends of plain and of timer messages beside them."""
    due = round(time.time()) + FIRST_DUE_SECONDS
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as data:
        with _up(data, "--grpc-port", "off", "--console", "off") as server:
            began = time.perf_counter()
            run_loop(_park(server.port, count, due))
            filled = time.perf_counter() - began
        with _up(data, "--grpc-port", "off", "--console", "off") as server:
            ready = server.ready_seconds
            plain = _rates("sends", server, _plain_ring(), growth)
            ring = [encode_command(_timer(n, due)) for n in range(1024)]
            parked = _rates("timer_sends", server, ring, growth)
            resident = server.resident_bytes()
    return {
        "timers": count,
        "fill_per_second": round(count / filled),
        "restart_seconds": round(ready, 3),
        **plain,
        **parked,
        "resident_bytes": resident,
    }


def _timer(number: int, first_due: int) -> Command:
    """A message that is due at one of many seconds."""
    command = send("grow-timers", number % QUEUES, BODY_BYTES, number)
    at = (first_due + number % DUE_SPAN_SECONDS) * 1000
    assert command.ext is not None
    command.ext["i"] += f"TIMER_DELIVER_MS\x01{at}\x02"
    return command


async def _park(port: int, count: int, due: int) -> None:
    for first in range(0, count, FILL_AT_A_TIME):
        part = [_timer(n, due) for n in range(first, min(count, first + FILL_AT_A_TIME))]
        await ask_successfully(port, part, in_flight=IN_FLIGHT)


# ------------------------------------------------------------------------------------ receipts


def _receipts(count: int, growth: LaterGrowth) -> Point:
    """So many messages are popped and not finished; pops and acknowledgements beside them."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-growth-") as data,
        _up(data, "--grpc-port", "off", "--console", "off") as server,
    ):
        return asyncio.run(_popped(server, count, growth))


async def _popped(server: ServerProcess, count: int, growth: LaterGrowth) -> Point:
    namesrv = _field(server, "namesrv")
    topics = [f"grow-{n}" for n in range(TOPICS_OF_RECEIPTS)]
    measured = 4096 if count >= 4096 else 256
    async with aio.Admin(namesrv=namesrv) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues=QUEUES)
    async with aio.Producer("bench", namesrv=namesrv) as producer:
        wanted = count + measured * growth.rounds
        for first in range(0, wanted, 32):
            topic = topics[first // 32 % len(topics)]
            await producer.send_batch([Message(topic, b"x" * BODY_BYTES) for _ in range(32)])
    consumer = aio.SimpleConsumer("grow", namesrv=namesrv, invisible=INVISIBLE, start_from="first")
    async with consumer:
        for topic in topics:
            await consumer.subscribe(topic)
        held = 0
        while held < count:
            held += len(await consumer.receive(min(32, count - held), wait=1))
        took: list[float] = []
        used: list[float] = []
        for _ in range(growth.rounds):
            done, began, cpu = 0, time.perf_counter(), server.cpu_seconds()
            while done < measured:
                got = await consumer.receive(min(32, measured - done), wait=1)
                await consumer.ack_all(got)
                done += len(got)
            took.append(measured / (time.perf_counter() - began))
            used.append((server.cpu_seconds() - cpu) / measured * 1e6)
        return {
            "receipts": held,
            **spread("popped_and_acknowledged", took),
            "broker_microseconds": median(used, 2),
            "resident_bytes": server.resident_bytes(),
        }


# ------------------------------------------------------------------------------------- streams


def _streams(count: int, growth: LaterGrowth) -> Point:
    """So many gRPC clients with stream, heartbeats and a poll; sends of a remoting client beside
    them."""
    allow_many_files(count * 2 + SPARE_FILES)
    with (
        tempfile.TemporaryDirectory(prefix="bench-growth-") as data,
        _up(data, "--grpc-port", "0", "--console", "off") as server,
    ):
        return asyncio.run(_connected(server, count, growth))


async def _connected(server: ServerProcess, count: int, growth: LaterGrowth) -> Point:
    async with aio.Admin(namesrv=_field(server, "namesrv")) as admin:
        await admin.create_topic(FLEET_TOPIC, queues=QUEUES)
    fleet = Fleet(_field(server, "grpc"), count, BEAT_SECONDS)
    fleet.connect()
    try:
        began = time.perf_counter()
        await fleet.works(WAIT_SECONDS)
        connected = time.perf_counter() - began
        cpu, since = server.tree_cpu_seconds(), time.perf_counter()
        await asyncio.sleep(growth.seconds * growth.rounds)
        share = (server.tree_cpu_seconds() - cpu) / (time.perf_counter() - since)
        ring = _plain_ring()
        rounds = [
            await load(server, ring, in_flight=IN_FLIGHT, seconds=growth.seconds)
            for _ in range(growth.rounds)
        ]
    finally:
        await fleet.close()
    return {
        "streams": count,
        "all_connected_and_served_seconds": round(connected, 2),
        "share_of_a_core_by_heartbeats_and_polls": round(share, 4),
        "sends_broker_microseconds": median([one.server_microseconds for one in rounds], 2),
        "resident_bytes_of_all_processes": server.tree_resident_bytes(),
    }


# ------------------------------------------------------------------------------------- console


def _console(count: int, growth: LaterGrowth) -> Point:
    """The pages of a cluster with so many topics, and a tenth of that in groups."""
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as data:
        write_tables(Path(data) / "broker-a/config", count, max(1, count // 10))
        with _up(data, "--grpc-port", "off", "--console", "0") as server:
            url = _field(server, "console")
            point: Point = {"console_topics": count}
            with httpx.Client(timeout=WAIT_SECONDS, follow_redirects=True) as client:
                for name, path in PAGES.items():
                    took = []
                    for _ in range(growth.rounds + 1):
                        began = time.perf_counter()
                        client.get(f"{url}c/local/{path}").raise_for_status()
                        took.append((time.perf_counter() - began) * 1000)
                    # The first one reads what the others find in the console's memory.
                    point[f"{name}_first_ms"] = round(took[0], 1)
                    point[f"{name}_ms"] = median(took[1:], 1)
            point["resident_bytes_of_all_processes"] = server.tree_resident_bytes()
    return point


def main(arguments: list[str]) -> None:
    """Run this part alone; prints JSON."""
    kinds = {"--full": FULL_LATER, "--tiny": TINY_LATER}
    growth = next((kinds[word] for word in arguments if word in kinds), SHORT_LATER)
    curves: Any = run_later_growth(growth)
    print(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
