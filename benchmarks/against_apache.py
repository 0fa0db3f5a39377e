"""The official Java client as the load for Apache RocketMQ's broker and for ours, alternately.

    python -m benchmarks.against_apache [--warm 30] [--rounds 3] [--seconds 5] [--rows ROW ...]
                                        [--busy 2]

Every round starts each broker on an empty directory (one process each, asynchronous flush), runs
all rows and stops it; the order alternates. With ``--warm`` both brokers live through all rounds,
are warmed by each row before it is measured, and are stopped while it is the other's turn
(`benchmarks.warm_apache`). The output is JSON: every figure, the medians, and the ratio of ours to
Apache's (above 1 is better for rates, below 1 for times and memory). ``--busy`` runs other programs
beside all of it that want the cores, too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.processes import busy_neighbours
from benchmarks.warm_apache import compare_warm
from tests.interop.servers import Cluster, apache, penstock_up
from tests.interop.toolchain import BUILD, FAST, Toolchain, Unavailable, prepare

APACHE_VERSION = "5.5.0"
ROWS = (
    "sync-1-128",
    "sync-16-128",
    "async-256-128",
    "async-256-1024",
    "batch-32-128",
    "drain-300000-128",
    "pop-100000-128",
    "lateness-2000-128",
    "latency-1000-128",
    "timer-16-128",
    "due-20000-128",
    # The last one: after its first transaction Apache's broker keeps a core busy, in its turns.
    "transaction-16-128",
)
Figures = dict[str, float]


@contextmanager
def started(target: str, toolchain: Toolchain, directory: Path, heap: str) -> Iterator[Cluster]:
    """Start one of the two brokers on an empty directory."""
    if target == "penstock":
        with penstock_up(directory) as cluster:
            yield cluster
    else:
        with apache(toolchain, directory, heap=heap, options=FAST) as cluster:
            yield cluster


def measure(toolchain: Toolchain, cluster: Cluster, seconds: int, rows: Sequence[str]) -> Figures:
    """Run the load generator once; return figures by ``row:what``."""
    command = toolchain.command(
        "LoadGenerator",
        cluster.namesrv,
        cluster.broker,
        str(seconds),
        *rows,
        heap="1g",
        options=FAST,
    )
    log = BUILD / "logs" / "load-generator.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
    if done.returncode != 0 or done.stdout.count("{") != len(rows):
        raise RuntimeError(f"the load generator ended with {done.returncode}; see {log}")
    figures: Figures = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            row = found.pop("row")
            figures |= {f"{row}:{what}": value for what, value in found.items()}
    return figures


def server_pids(directory: Path) -> list[int]:
    """The server processes, found by the directory on their command line."""
    found: list[int] = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended in the meantime
            if str(directory) in command.read_bytes().decode(errors="replace"):
                found.append(int(command.parent.name))
    return found


def resident_bytes(directory: Path) -> int:
    """Resident memory of the server processes."""
    total = 0
    for pid in server_pids(directory):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total * 1024


def compare(
    toolchain: Toolchain, rounds: int, seconds: int, rows: Sequence[str], heap: str
) -> dict[str, dict[str, list[float]]]:
    """All figures of all rounds, by target and figure."""
    found: dict[str, dict[str, list[float]]] = {"apache": {}, "penstock": {}}
    for number in range(rounds):
        for target in ("apache", "penstock") if number % 2 == 0 else ("penstock", "apache"):
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
                began = time.monotonic()
                with started(target, toolchain, Path(directory) / target, heap) as cluster:
                    figures = {"ready:seconds": time.monotonic() - began}
                    figures |= measure(toolchain, cluster, seconds, rows)
                    figures["resident:bytes"] = resident_bytes(Path(directory) / target)
            for figure, value in figures.items():
                found[target].setdefault(figure, []).append(value)
            sys.stderr.write(f"round {number + 1} {target}: {figures}\n")
    return found


def compare_both_alive(
    toolchain: Toolchain, rounds: int, seconds: int, rows: Sequence[str], heap: str, warm: float
) -> dict[str, dict[str, list[float]]]:
    """`compare`, with brokers that are started once and warmed by each row."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        clusters = {
            target: stack.enter_context(started(target, toolchain, root / target, heap))
            for target in ("apache", "penstock")
        }
        with_pids = {
            target: (cluster, server_pids(root / target)) for target, cluster in clusters.items()
        }
        return compare_warm(toolchain, with_pids, rounds, seconds, rows, warm)


def report(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, object]]:
    """Medians and the ratio of ours to Apache's, by figure."""
    rows: dict[str, dict[str, object]] = {}
    for figure in found["penstock"]:
        ours = statistics.median(found["penstock"][figure])
        theirs = statistics.median(found["apache"][figure])
        rows[figure] = {
            "penstock": ours,
            "apache": theirs,
            "ratio": round(ours / theirs, 3) if theirs else None,
            "penstock_runs": found["penstock"][figure],
            "apache_runs": found["apache"][figure],
        }
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_apache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW")
    parser.add_argument("--heap", default="2g", help="heap of Apache's broker")
    parser.add_argument(
        "--warm", type=float, default=0, metavar="SECONDS", help="warm both brokers for so long"
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="processes that compute beside all of it"
    )
    options = parser.parse_args(arguments)
    try:
        toolchain = prepare(APACHE_VERSION, Path(__file__).with_name("java"))
    except Unavailable as missing:
        print(f"comparison skipped, nothing was measured: {missing}")
        return 0
    plan = (toolchain, options.rounds, options.seconds, options.rows, options.heap)
    with busy_neighbours(options.busy):
        found = compare_both_alive(*plan, options.warm) if options.warm else compare(*plan)
    machine = {"system": platform.platform(), "python": platform.python_version()}
    warm = options.warm
    result = {
        "apache": APACHE_VERSION, "warm_seconds": warm, "busy_neighbours": options.busy,
        "machine": machine, "rows": report(found),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
