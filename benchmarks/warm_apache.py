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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from benchmarks.processes import tree_cpu_seconds, tree_pids
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, FAST, Toolchain

Figures = dict[str, float]
Found = dict[str, dict[str, list[float]]]
"""The figures of all rounds, by target and figure."""


class Generator:
    """A load generator that runs rows as they are given."""

    def __init__(self, process: subprocess.Popen[str], server_pids: Sequence[int]) -> None:
        self.process = process
        self._server_pids = server_pids

    def run(self, row: str) -> Figures:
        """The figures of one row, by ``row:what``."""
        began = self._now()
        ended: list[float] = []
        found: Figures = {}
        for line in self._lines(row):
            # What comes before and after is no part of the row: a topic is filled, polls end.
            if line == "begin":
                began = self._now()
            elif line == "end":
                ended = self._now()
            elif line.startswith("{"):
                found = json.loads(line)
                found.pop("row")
                break
        else:
            name = BUILD / "logs"
            raise RuntimeError(f"the load generator ended in {row}; see its log in {name}")
        seconds, client, server = (
            after - before for after, before in zip(ended or self._now(), began, strict=True)
        )
        found["client_cores"] = client / seconds
        found["server_cores"] = server / seconds
        return {f"{row}:{what}": value for what, value in found.items()}

    def _now(self) -> list[float]:
        server = sum(map(tree_cpu_seconds, self._server_pids))
        return [time.monotonic(), tree_cpu_seconds(self.process.pid), server]

    def _lines(self, row: str) -> Iterator[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{row}\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            yield line.rstrip()


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
        try:
            yield Generator(process, server_pids)
        finally:
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
        running = {
            target: [*pids, load[target].process.pid] for target, (_, pids) in clusters.items()
        }
        give_turn = stack.enter_context(turns(running))
        return alternate(load, rounds, rows, warm_seconds, give_turn)


@contextmanager
def turns(pids: Mapping[str, Sequence[int]]) -> Iterator[Callable[[str], None]]:
    """Yield what gives the machine to one target; the processes of all others stand still.

    A server that was busy uses up to a third of a core for a while after that, compiling.
    """

    def give(chosen: str | None) -> None:
        for target, roots in pids.items():
            sent = signal.SIGCONT if chosen in (target, None) else signal.SIGSTOP
            for pid in {pid for root in roots for pid in tree_pids(root)}:
                with suppress(ProcessLookupError):
                    os.kill(pid, sent)

    try:
        yield give
    finally:
        # One that stands still would not end.
        give(None)


def alternate(
    load: dict[str, Generator],
    rounds: int,
    rows: Sequence[str],
    warm_seconds: float,
    give_turn: Callable[[str], None],
) -> Found:
    """Warm each target by each row, then measure them in turn; all figures of all rounds."""
    found: Found = {target: {} for target in load}

    def measure(row: str, target: str) -> None:
        give_turn(target)
        figures = load[target].run(row)
        for figure, value in figures.items():
            found[target].setdefault(figure, []).append(value)
        sys.stderr.write(f"{row} {target}: {figures}\n")

    for row in rows:
        for target in load:
            give_turn(target)
            warm_up(load[target], row, warm_seconds)
        for number in range(rounds):
            for target in load if number % 2 == 0 else reversed(load):
                measure(row, target)
    return found


def warm_up(load: Generator, row: str, seconds: float) -> None:
    """Repeat a row until ``seconds`` have passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        load.run(row)
