"""Runs a plan: servers one after the other, each client in its own process.

A row that fails is reported with its reason and does not affect the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.peers.plan import (
    CONSUME,
    DISK,
    SEND,
    SEND_LARGE,
    SINGLE,
    WARM_UP,
    WINDOW,
    Pair,
    Plan,
    SendRow,
    latency_row,
    rotated,
)
from benchmarks.peers.servers.server import BUILD, PROJECT, Running, Server
from benchmarks.peers.worker import Figures, Task

from penstock.errors import PenstockError

SETTLE_SECONDS: Final = 2.0
"""Time until memory is measured and files count as written."""
GRACE_SECONDS: Final = 180.0
"""Time allowed beyond the measurement: connecting, joining the group, closing."""


LEAVE_SECONDS: Final = 15.0


class RowFailed(Exception):
    """A worker did not finish; the text gives the reason."""


FAILURES: Final = (RowFailed, PenstockError, OSError, RuntimeError)
"""Errors that end only the current row."""


@dataclass(slots=True)
class Found:
    """All figures of all rounds: by durability, by server or pair, by row and by figure."""

    servers: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    rows: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)

    def server(self, name: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one server in one round."""
        kept = self.servers.setdefault(name, {})
        for what, value in figures.items():
            kept.setdefault(what, []).append(value)

    def row(self, durability: str, pair: Pair, row: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one row in one round."""
        kept = self.rows.setdefault(durability, {}).setdefault(str(pair), {}).setdefault(row, {})
        for what, value in figures.items():
            kept.setdefault(what, []).append(value)

    def failed(self, durability: str, pair: Pair | str, row: str, reason: object) -> None:
        """Add the reason for missing figures."""
        self.failures.append(
            {"durability": durability, "who": str(pair), "row": row, "why": str(reason)}
        )


ASYNC: Final = "async"
SYNCED: Final = "fsync"


def run_plan(
    plan: Plan,
    servers: Mapping[str, Server],
    peers_python: Path,
    after_round: Callable[[Found], object] = lambda found: None,
) -> Found:
    """Run every round of a plan with the available servers; report the results after each."""
    found = Found()
    turns = [(ASYNC, number) for number in range(plan.rounds)]
    turns += [(SYNCED, number) for number in range(plan.synced_rounds)]
    for durability, number in turns:
        names = [name for name in plan.servers() if name in servers]
        for name in rotated(names, number):
            _report(f"{durability} round {number + 1}: {name}")
            pairs = plan.on(name, number)
            try:
                _one_server(found, plan, servers[name], pairs, durability, peers_python)
            except (*FAILURES, subprocess.SubprocessError) as error:
                found.failed(durability, name, "start", error)
                _report(f"  {name} failed: {error}")
        after_round(found)
    return found


def _one_server(
    found: Found,
    plan: Plan,
    server: Server,
    pairs: Sequence[Pair],
    durability: str,
    peers_python: Path,
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="bench-peers-", ignore_cleanup_errors=True) as made,
        server.run(Path(made) / server.name, fsync=durability == SYNCED) as running,
    ):
        time.sleep(min(SETTLE_SECONDS, plan.seconds))
        if durability == ASYNC:
            idle = running.resident_bytes()
            figures = {"ready_seconds": running.ready_seconds, "idle_resident_bytes": idle}
            found.server(server.name, figures)
        for pair in pairs:
            python = Path(sys.executable) if pair.is_ours else peers_python
            _Client(found, plan, server, running, pair, durability, python).run()
        if durability == ASYNC:
            found.server(server.name, {"loaded_resident_bytes": running.resident_bytes()})


@dataclass(frozen=True, slots=True)
class _Client:
    """All rows of one client on one running server."""

    found: Found
    plan: Plan
    server: Server
    running: Running
    pair: Pair
    durability: str
    python: Path

    def run(self) -> None:
        # Not recorded: a JVM compiles frequent code first, and no row should include that time.
        with suppress(*FAILURES):
            self._send(WARM_UP)
        self._row(SINGLE.name, lambda: self._send(SINGLE))
        self._stored()
        if self.durability == ASYNC:
            self._row(SEND_LARGE.name, lambda: self._send(SEND_LARGE))
        for rate in self.plan.rates:
            self._row(latency_row(rate), lambda rate=rate: self._latency(rate))

    def _row(self, row: str, measure: Any) -> Figures:
        try:
            figures: Figures = measure()
        except FAILURES as error:
            self.found.failed(self.durability, self.pair, row, error)
            _report(f"  {self.pair}, {row}: failed, {error}")
            return {}
        self.found.row(self.durability, self.pair, row, figures)
        shown = ", ".join(f"{what} {value:,.4g}" for what, value in figures.items())
        _report(f"  {self.pair}, {row}: {shown}")
        return figures

    def _stored(self) -> None:
        """Sends, their size on the disk, and the rate at which they are read."""
        before = self.running.disk_bytes()
        sent = self._row(SEND.name, lambda: self._send(SEND))
        if not sent or self.durability == SYNCED:
            return
        time.sleep(min(SETTLE_SECONDS, self.plan.seconds))
        taken = self.running.disk_bytes() - before
        self._row(DISK, lambda: {"bytes_per_message": taken / sent["stored"]})
        self._row(CONSUME, lambda: self._drain(round(sent["stored"])))

    def _topic(self, row: str) -> str:
        return f"{self.pair.module.removesuffix('_client')}-{row}".replace("_", "-")

    def _make_topic(self, row: str) -> None:
        topic = self._topic(row)
        self.server.make_topic(self.running, topic, f"{topic}-readers")

    def _task(self, what: str, row: str, **more: Any) -> Task:
        topic = self._topic(row)
        group = f"{topic}-readers"
        return Task(self.pair.module, what, self.running.addresses, topic, group, **more)

    def _send(self, row: SendRow) -> Figures:
        self._make_topic(row.name)
        more = {"body_bytes": row.body_bytes, "window": row.window, "linger": row.linger}
        task = self._task("send", row.name, seconds=self.plan.seconds, **more)
        return self._with_server_time(task)

    def _drain(self, messages: int) -> Figures:
        seconds = 2 * self.plan.seconds
        return self._with_server_time(
            self._task("drain", SEND.name, seconds=seconds, messages=messages)
        )

    def _with_server_time(self, task: Task) -> Figures:
        """The worker's figures, and the CPU time of the server per message."""
        before = self.running.cpu_seconds()
        with Worker(self.python, task) as worker:
            figures = worker.result(task.seconds + GRACE_SECONDS)
        spent = self.running.cpu_seconds() - before
        figures["server_microseconds"] = spent / figures["messages"] * 1e6
        return figures

    def _latency(self, rate: int) -> Figures:
        row = latency_row(rate)
        self._make_topic(row)
        count = max(20, round(rate * self.plan.seconds))
        more = {"messages": count, "rate": rate, "window": WINDOW}
        allowed = 2 * self.plan.seconds + GRACE_SECONDS
        with (
            Worker(self.python, self._task("pace", row, **more)) as sender,
            Worker(self.python, self._task("receive", row, **more)) as receiver,
        ):
            if receiver.line(GRACE_SECONDS) != "warm":
                raise RowFailed("the receiver received no message")
            sender.write_line("go")
            sent = sender.result(allowed)
            with suppress(BrokenPipeError):  # it has received them all and ended
                receiver.write_line(str(round(sent["messages"])))
            received = receiver.result(allowed)
            sender.write_line("enough")
        return {**received, "per_second": sent["per_second"]}


class Worker:
    """A worker process; it runs inside the block."""

    def __init__(self, python: Path, task: Task) -> None:
        log = BUILD / "logs" / f"{task.client}-{task.what}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.peers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=PROJECT,
                # Apache's client writes a log below the home directory.
                env={**os.environ, "PYTHONPATH": str(PROJECT), "HOME": str(BUILD)},
            )
        self.write_line(json.dumps(asdict(task)))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # A worker that has printed its figures ends by itself within a short time.
        try:
            self._process.wait(LEAVE_SECONDS if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                _pipe(stream).close()

    def write_line(self, line: str) -> None:
        """Write one line to its stdin."""
        stdin = _pipe(self._process.stdin)
        stdin.write(line + "\n")
        stdin.flush()

    def line(self, seconds: float) -> Any:
        """The next line of JSON from its stdout; lines of other libraries are skipped."""
        deadline = time.monotonic() + seconds
        while True:
            # A read cannot be cancelled, but it ends with the process.
            timer = threading.Timer(deadline - time.monotonic(), self._process.kill)
            timer.start()
            text = _pipe(self._process.stdout).readline()
            timer.cancel()
            if not text:
                raise RowFailed(self._ending(time.monotonic() >= deadline, seconds))
            with suppress(ValueError):
                return json.loads(text)

    def result(self, seconds: float) -> Figures:
        """Its figures, once it has printed them."""
        while not isinstance(figures := self.line(seconds), dict):
            pass
        return {what: float(value) for what, value in figures.items()}

    def _ending(self, killed: bool, seconds: float) -> str:
        if killed:
            return f"no answer within {seconds:.0f} s; see {self._log.name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"ended with {self._process.wait()}: {lines[-1] if lines else 'no output'}"


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _report(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
