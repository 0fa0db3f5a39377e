"""500 gRPC clients for a long time: each has its settings stream, heartbeats and an open poll.

First the server is stopped and started again under them, later it is killed: every client must get
its settings, heartbeats and messages again. In between all clients leave without a word and come
back, again and again, on one server process, which must use no more memory, connections, streams
and tasks than after the first of these cycles.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.proxy.fleet import Fleet
from tools.soak.memory import GROWTH, own_kb
from tools.soak.outcome import Outcome, say

from penstock.runtime.child_process import ChildProcess
from penstock.testing.eventually import eventually

CLIENTS: Final = 500
BEAT_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 120.0
MIN_CYCLES: Final = 6
MORE_CONNECTIONS: Final = 10
_COUNTS: Final = re.compile(r"streams=(\d+) clients=(\d+) tasks=(\d+)")


class Sample(NamedTuple):
    """What the server uses while all clients are connected."""

    kb: int
    connections: int
    streams: int
    clients: int
    tasks: int


def watch(seconds: float, clients: int = CLIENTS) -> Outcome:
    """Let clients come and go, and the server restart under them."""
    say(f"streams: {seconds:.0f} s, {clients} clients")
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        samples, failures = asyncio.run(_watched(Path(directory), seconds, clients))
    return Outcome("streams", _told(samples, clients), failures + growth(samples, clients))


async def _watched(directory: Path, seconds: float, clients: int) -> tuple[list[Sample], list[str]]:
    until = time.monotonic() + seconds
    samples: list[Sample] = []
    server = _server(directory, 0)
    port = await asyncio.to_thread(_started, server)
    alone = _connections(server.pid)
    fleet = Fleet(f"127.0.0.1:{port}", clients, BEAT_SECONDS)
    fleet.connect()
    what = "the first connections"
    try:
        await fleet.works(WAIT_SECONDS)
        what = "a restart"
        await asyncio.to_thread(server.terminate)
        server = _server(directory, port)
        await asyncio.to_thread(_started, server)
        await fleet.works(WAIT_SECONDS)
        while len(samples) < MIN_CYCLES or time.monotonic() < until:
            what = f"cycle {len(samples) + 1}"
            await fleet.leave()
            await eventually(
                lambda: (
                    _counts(server)[0] == 0 and _connections(server.pid) <= alone + MORE_CONNECTIONS
                ),
                WAIT_SECONDS,
                interval=0.2,
            )
            fleet.connect()
            await fleet.works(WAIT_SECONDS)
            await eventually(lambda: _counts(server)[0] == clients, WAIT_SECONDS, interval=0.2)
            samples.append(_sample(server))
            say(f"streams: {what}, {samples[-1]}")
        what = "a kill"
        await asyncio.to_thread(server.kill)
        server = _server(directory, port)
        await asyncio.to_thread(_started, server)
        await fleet.works(WAIT_SECONDS)
    except AssertionError as error:
        return samples, [f"not all clients work after {what}: {error}"]
    finally:
        await fleet.close()
        await asyncio.to_thread(server.kill)
    return samples, ["the server wrote a traceback"] if "Traceback" in server.output else []


def _server(directory: Path, port: int) -> ChildProcess:
    command = [sys.executable, "-m", "tools.soak.stream_server", str(directory), str(port)]
    return ChildProcess(command, directory=Path(__file__).parents[2])


def _started(server: ChildProcess) -> int:
    return int(server.start().wait_for_line(r"^ready grpc=\S+:(\d+)")[1])


def _counts(server: ChildProcess) -> tuple[int, int, int]:
    """The newest streams, clients and tasks that the server has reported."""
    found = _COUNTS.findall(server.output)
    streams, clients, tasks = found[-1] if found else (-1, -1, -1)
    return int(streams), int(clients), int(tasks)


def _connections(pid: int) -> int:
    """Open sockets; files of queues stay open, too, up to a bound that is not reached soon."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed in the meantime
            count += str(link.readlink()).startswith("socket:")
    return count


def _sample(server: ChildProcess) -> Sample:
    return Sample(own_kb(server.pid), _connections(server.pid), *_counts(server))


def growth(samples: list[Sample], clients: int) -> list[str]:
    """What has grown since the first third of the cycles, which is warm-up."""
    if len(samples) < MIN_CYCLES:
        return []
    third = len(samples) // 3
    warm, last = samples[third : 2 * third], samples[-third:]
    found: list[str] = []
    before, after = (statistics.median(one.kb for one in part) for part in (warm, last))
    if after > before * GROWTH:
        found.append(f"memory grew from {before / 1024:.0f} to {after / 1024:.0f} MB")
    # Calls come and go; one left task for each client would be more.
    for what, more in (("connections", MORE_CONNECTIONS), ("tasks", clients // 2)):
        most, now = (max(getattr(one, what) for one in part) for part in (warm, last))
        if now > most + more:
            found.append(f"{what} grew from {most} to {now}")
    # One more client is the producer.
    if any(one.streams != clients or one.clients > clients + 1 for one in last):
        found.append(f"{last[-1].streams} streams of {last[-1].clients} clients, not {clients}")
    return found


def _told(samples: list[Sample], clients: int) -> str:
    ends = f", first {samples[0]}, last {samples[-1]}" if samples else ""
    return f"{clients} clients came back {len(samples)} times and saw 2 restarts{ends}"
