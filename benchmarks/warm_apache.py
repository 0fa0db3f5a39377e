"""`benchmarks.against_apache` on servers and clients that have run for a while.

A JVM compiles what it runs often, so a broker of Apache's that has just started is several times
slower than one that has served the same load for half a minute. Here both brokers run through all
rounds, and each has one load generator that runs as long: every row is repeated on both until
``warm_seconds`` have passed, then measured alternately. The broker and the load generator whose
turn it is not are stopped (SIGSTOP) meanwhile, on either side: Apache's broker takes 0.08 of a core
when nothing is asked of it, and a whole one for ever after its first transaction. How many cores
the client and the server kept busy during a row shows which of them was the limit.

    python -m benchmarks.against_apache --warm 30 [--rounds 3] [--seconds 8] [--rows ROW ...]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress

from benchmarks.processes import tree_cpu_seconds, tree_pids
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, FAST, Toolchain

Figures = dict[str, float]
Found = dict[str, dict[str, list[float]]]
"""The figures of all rounds, by target and figure."""


class Generator:
    """A load generator that runs rows as they are given."""

    def __init__(self, process: subprocess.Popen[str], server_pids: Sequence[int]) -> None:
        self._process = process
        self._server_pids = server_pids

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its turn: the load generator and its servers run in here, and are stopped outside."""
        self.send_all(signal.SIGCONT)
        try:
            yield
        finally:
            self.send_all(signal.SIGSTOP)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the load generator and all processes of its servers."""
        for root in (self._process.pid, *self._server_pids):
            for pid in tree_pids(root):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def run(self, row: str) -> Figures:
        """The figures of one row, by ``row:what``."""
        began, client, server = self._now()
        found = self._answer(row)
        ended, client_after, server_after = self._now()
        found["client_cores"] = (client_after - client) / (ended - began)
        found["server_cores"] = (server_after - server) / (ended - began)
        return {f"{row}:{what}": value for what, value in found.items()}

    def _now(self) -> tuple[float, float, float]:
        server = sum(map(tree_cpu_seconds, self._server_pids))
        return time.monotonic(), tree_cpu_seconds(self._process.pid), server

    def _answer(self, row: str) -> Figures:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{row}\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                found.pop("row")
                return found
        raise RuntimeError(f"the load generator ended in {row}; see its log in {BUILD / 'logs'}")


@contextmanager
def generator(command: Sequence[str], name: str, server_pids: Sequence[int]) -> Iterator[Generator]:
    """Start a load generator for one broker; its errors go to a log of this name."""
    log = BUILD / "logs" / f"load-generator-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        started = Generator(process, server_pids)
        try:
            yield started
        finally:
            started.send_all(signal.SIGCONT)  # A stopped process does not hear that it is to end.
            process.kill()


def compare_warm(
    toolchain: Toolchain,
    clusters: Mapping[str, tuple[Cluster, Sequence[int]]],
    rounds: int,
    seconds: int,
    rows: Sequence[str],
    warm_seconds: float,
) -> Found:
    """All figures of all rounds, by target and figure; a cluster comes with its processes."""
    with ExitStack() as stack:
        load: dict[str, Generator] = {}
        for target, (cluster, pids) in clusters.items():
            words = (cluster.namesrv, cluster.broker, str(seconds), "-")
            command = toolchain.command("LoadGenerator", *words, heap="1g", options=FAST)
            load[target] = stack.enter_context(generator(command, target, pids))
        return alternate(load, rounds, rows, warm_seconds)


def alternate(
    load: dict[str, Generator],
    rounds: int,
    rows: Sequence[str],
    warm_seconds: float,
    *,
    stops_others: bool = True,
) -> Found:
    """Warm each target by each row, then measure them in turn; all figures of all rounds.

    ``stops_others`` needs load generators that share no server with others.
    """
    found: Found = {target: {} for target in load}
    turn = Generator.running if stops_others else nullcontext

    def measure(row: str, target: str) -> None:
        with turn(load[target]):
            figures = load[target].run(row)
        for figure, value in figures.items():
            found[target].setdefault(figure, []).append(value)
        sys.stderr.write(f"{row} {target}: {figures}\n")

    for target in load.values() if stops_others else ():
        target.send_all(signal.SIGSTOP)
    for row in rows:
        for target in load.values():
            with turn(target):
                warm_up(target, row, warm_seconds)
        for number in range(rounds):
            for name in load if number % 2 == 0 else reversed(load):
                measure(row, name)
    return found


def warm_up(load: Generator, row: str, seconds: float) -> None:
    """Repeat a row until ``seconds`` have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        load.run(row)
