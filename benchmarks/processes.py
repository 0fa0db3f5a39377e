"""Servers in separate processes: a broker, and the baselines it is compared with.

        echo      writes back its input without parsing it
        framed    the same, but first splits its input into frames by their lengths
    canned    answers each frame with a prepared one of a given size
    remoting  `penstock.remoting.Server` with a handler that answers at once
    broker    `penstock up`, as a user starts it

Run as a script it is one of the first four: it prints its port and serves until killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, cast

from penstock.protocol.commands import Command, reply
from penstock.remoting import Peer, Server
from penstock.remoting.loop import run as run_loop

_unpack_length: Final = Struct(">i").unpack_from
_STOP_SECONDS: Final = 10.0


# ------------------------------------------------------------------------------- the processes


class ServerProcess:
    """A server process, and its figures from the system."""

    def __init__(self, arguments: list[str]) -> None:
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline().strip()
        self.ready_seconds = time.perf_counter() - self._started
        if not self.ready_line:
            self._process.stdout.close()
            raise RuntimeError(f"{arguments} ended with {self._process.wait()} before it was ready")
        self.port = int(self.ready_line.rpartition("broker=")[2].split()[0].rpartition(":")[2])

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, user and system."""
        total = 0
        for task in Path(f"/proc/{self._process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has ended in the meantime
                total += int(task.read_text().split()[0])
        return total / 1e9

    def resident_bytes(self) -> int:
        """Its current memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def tree_cpu_seconds(self) -> float:
        """The same with its living child processes: the gRPC endpoint, the console."""
        return tree_cpu_seconds(self._process.pid)

    def tree_resident_bytes(self) -> int:
        """Its memory with that of its child processes."""
        pages = 0
        for pid in process_tree(self._process.pid):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def baseline(kind: str, answer_bytes: int = 0) -> Iterator[ServerProcess]:
    """One of the baseline servers of this module."""
    server = ServerProcess([__file__, kind, str(answer_bytes)])
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def broker(*options: str) -> Iterator[ServerProcess]:
    """`penstock up` on an empty directory and free ports."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as data:
        server = ServerProcess(
            [
                *("-m", "penstock", "up", "--data", data),
                *("--nameserver-port", "0", "--broker-port", "0"),
                *options,
            ]
        )
        try:
            yield server
        finally:
            server.stop()


def tree_cpu_seconds(root: int) -> float:
    """CPU time of a process and its living descendants: the JVM and its workers."""
    return sum(process_tree(root).values()) / os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> dict[int, int]:
    """A process and its living descendants, with the clock ticks that each has used."""
    ticks, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            ticks[pid] = int(fields[11]) + int(fields[12])
    found = {}
    for pid, spent in ticks.items():
        ancestor = pid
        while ancestor not in (root, 0, 1):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root:
            found[pid] = spent
    return found


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """So many processes that compute all the time, as other programs of a machine do."""
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def allow_many_files(count: int) -> int:
    """Raise the limit of open files, also for child processes; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


# ------------------------------------------------------------------------------- the baselines


class Echo(asyncio.Protocol):
    """Writes back its input."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class FramedEcho(Echo):
    """Writes back the frames of its input: the minimum for any server per request."""

    def __init__(self) -> None:
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        frames = list(split(data))
        self._rest = data[sum(map(len, frames)) :]
        if frames:
            self._transport.write(b"".join(frames))


class Canned(Echo):
    """Answers every frame with the same bytes."""

    def __init__(self, size: int) -> None:
        self._rest = b""
        self._answer = (size - 4).to_bytes(4, "big") + bytes(size - 4)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        frames = list(split(data))
        self._rest = data[sum(map(len, frames)) :]
        if frames:
            self._transport.writelines([self._answer] * len(frames))


def split(data: bytes) -> Iterator[bytes]:
    """The complete frames at the start of ``data``."""
    start = 0
    while len(data) - start >= 4:
        end = start + 4 + _unpack_length(data, start)[0]
        if end > len(data):
            return
        yield data[start:end]
        start = end


def answer(_peer: Peer, request: Command) -> Command:
    return reply(request, ext={"offset": "4711"})


async def serve(kind: str, answer_bytes: int) -> None:
    """Print the port, then serve."""
    if kind == "remoting":
        server = Server(answer)
        await server.start()
        port = server.port
    else:
        factories = {
            "echo": Echo,
            "framed": FramedEcho,
            "canned": lambda: Canned(answer_bytes),
        }
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(factories[kind], "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
    print(f"ready broker=127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(serve(sys.argv[1], int(sys.argv[2])))
