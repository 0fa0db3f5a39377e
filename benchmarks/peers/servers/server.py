"""The common interface of all servers, and how their processes are observed.

All run on loopback, on an empty directory that is on their command line: this identifies their
processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.toolchain import PROJECT, Unavailable

__all__ = ["BUILD", "PROJECT", "Running", "Server", "Unavailable", "answering", "class_path"]

BUILD: Final = PROJECT / "build" / "peers"
JARS: Final = Path(__file__).parent.parent / "jars"
READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 30.0
_PROBE_SECONDS: Final = 1.0
_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """A running server."""

    addresses: dict[str, str]
    directory: Path
    ready_seconds: float

    def resident_bytes(self) -> int:
        """The current memory of all its processes."""
        total = 0
        for process in processes_of(self.directory):
            with contextlib.suppress(OSError):  # it ended in the meantime
                lines = (process / "status").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return total * 1024

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        total = 0
        for process in processes_of(self.directory):
            for task in process.glob("task/*/schedstat"):
                with contextlib.suppress(OSError):
                    total += int(task.read_text().split()[0])
        return total / 1e9

    def disk_bytes(self) -> int:
        """The disk space of its files; holes in preallocated files do not count."""
        return allocated_bytes(self.directory)


class Server(ABC):
    """One kind of server."""

    name: str

    @abstractmethod
    def prepare(self) -> str:
        """Download what it needs and return its version, or raise `Unavailable` with the reason."""

    @abstractmethod
    def run(self, directory: Path, *, fsync: bool) -> AbstractContextManager[Running]:
        """Serve from an empty directory until the block ends.

        With ``fsync`` a message is on the disk before it is acknowledged, otherwise soon after.
        """

    def make_topic(self, running: Running, topic: str, group: str) -> None:
        """Create a topic and a group, unless the server or the clients do so themselves."""
        return


def processes_of(directory: Path) -> list[Path]:
    """The ``/proc`` directories of the processes of one server."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in command.read_bytes():
                found.append(command.parent)
    return found


def allocated_bytes(directory: Path) -> int:
    """Allocated blocks of all files below a directory, in bytes."""
    total = 0
    for parent, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_blocks * 512
    return total


@contextmanager
def answering(
    command: Sequence[str],
    directory: Path,
    port: int,
    question: bytes,
    env: Mapping[str, str] | None = None,
) -> Iterator[float]:
    """Run a server until the block ends; yield the seconds until it answered a request."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "output.log"
    began = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **(env or {})},
        )
    try:
        while not _answers(port, question):
            if process.poll() is not None:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]} ended with {process.returncode}:\n{tail}")
            if time.perf_counter() - began > READY_SECONDS:
                raise RuntimeError(f"{command[0]} was not ready after {READY_SECONDS} s; see {log}")
            time.sleep(_PAUSE)
        yield time.perf_counter() - began
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int, question: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), _PROBE_SECONDS) as connection:
            connection.sendall(question)
            return bool(connection.recv(1))
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Unused ports."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def class_path(maven: str, artifacts: str, version: str) -> str:
    """The jars listed in ``jars/<artifacts>.xml``, downloaded once; or raise `Unavailable`.

    Each must have its hash from ``jars/<artifacts>-<version>.sha256``.
    """
    cache = BUILD / f"{artifacts}-{version}.txt"
    jars = cache.read_text() if cache.is_file() else ""
    if not jars or not all(Path(jar).is_file() for jar in jars.split(":")):
        jars = _fetch(maven, artifacts, version, cache)
    check_hashes([Path(jar) for jar in jars.split(":")], JARS / f"{artifacts}-{version}.sha256")
    return jars


def check_hashes(jars: Sequence[Path], pinned: Path) -> None:
    """Raise `Unavailable` unless the files are exactly those in the `sha256sum` list."""
    wanted = {}
    for line in pinned.read_text().splitlines():
        digest, name = line.split()
        wanted[name] = digest
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}
    if wrong := sorted(name for name, _ in wanted.items() ^ found.items()):
        raise Unavailable(f"{', '.join(dict.fromkeys(wrong))}: not what {pinned.name} expects")


def _fetch(maven: str, artifacts: str, version: str, cache: Path) -> str:
    cache.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(maven, "-q", "-B", "-Dstyle.color=never"),
            f"--file={JARS / f'{artifacts}.xml'}",
            f"-Dwanted={version}",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={cache}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        reason = errors[0] if errors else f"mvn ended with {done.returncode}"
        raise Unavailable(f"Maven could not fetch {artifacts} {version}: {reason}")
    return cache.read_text()
