"""All measurements: Penstock alone and compared with its peers on the same machine, in turn.

    python -m benchmarks.peers [--tiny | --full] [--only NAME ...] [--parts PART ...] ...

`make bench` first creates the environment of the peers' clients. The parts: Penstock's own
benchmarks, Python clients on their servers, the official Java client on both RocketMQ brokers (just
started, and warm), the official gRPC clients on both endpoints, Spark compared with its Kafka
connector, and the growth of Penstock's broker. Missing software is skipped and listed. All results
go to ``benchmarks/results`` as JSON, Markdown and SVG, updated after each part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from benchmarks.__main__ import ALL_NAMES, machine, run_all
from benchmarks.effort import FULL as FULL_EFFORT
from benchmarks.effort import QUICK, Effort
from benchmarks.effort import TINY as TINY_EFFORT
from benchmarks.grpc_against_apache import compare as run_grpc
from benchmarks.grpc_against_apache import options_of as grpc_options
from benchmarks.peers.growth import (
    FULL_GROWTH,
    SHORT_GROWTH,
    TINY_GROWTH,
    Growth,
    fitting,
    run_growth,
)
from benchmarks.peers.growth_later import (
    FULL_LATER,
    SHORT_LATER,
    TINY_LATER,
    LaterGrowth,
    run_later_growth,
)
from benchmarks.peers.java_client import (
    FULL_JAVA,
    SHORT_JAVA,
    TINY_JAVA,
    JavaPlan,
    run_java,
    run_warm_java,
)
from benchmarks.peers.plan import PAIRS, Plan, chosen
from benchmarks.peers.rounds import Found, run_plan
from benchmarks.peers.servers.apache import Apache
from benchmarks.peers.servers.kafka import Kafka
from benchmarks.peers.servers.nats import Nats
from benchmarks.peers.servers.penstock import Penstock
from benchmarks.peers.servers.rabbitmq import RabbitMq
from benchmarks.peers.servers.redis import Redis
from benchmarks.peers.servers.server import PROJECT, Server, Unavailable
from benchmarks.peers.spark.plan import FULL_SPARK, SHORT_SPARK, TINY_SPARK, SparkPlan
from benchmarks.peers.spark.run import run_spark
from benchmarks.report import RESULTS, Document, write_report

SERVERS: Final[tuple[type[Server], ...]] = (Penstock, Apache, Kafka, Nats, Redis, RabbitMq)
Skipped = list[dict[str, str]]
PARTS: Final = ("own", "clients", "java", "warm", "grpc", "spark", "growth")
OWN, CLIENTS, JAVA, WARM, GRPC, SPARK, GROWTH = PARTS
TINY_GRPC: Final = ("java-send-8-128", "java-push-200-128")
TINY: Final = Plan(rounds=1, seconds=0.2)
SHORT: Final = Plan()
FULL: Final = Plan(rounds=5, seconds=10.0, rates=(1000, 5000), synced_rounds=3)


def prepared(names: Sequence[str]) -> tuple[dict[str, Server], dict[str, str], Skipped]:
    """The available servers, their versions, and why the others are missing."""
    servers: dict[str, Server] = {}
    versions: dict[str, str] = {}
    skipped: Skipped = []
    for kind in SERVERS:
        if kind.name not in names:
            continue
        server = kind()
        try:
            versions[kind.name] = server.prepare()
        except Unavailable as missing:
            skipped.append({"what": kind.name, "why": str(missing)})
            sys.stderr.write(f"{kind.name} is skipped: {missing}\n")
        else:
            servers[kind.name] = server
    return servers, versions, skipped


def client_versions(python: Path) -> dict[str, str]:
    """The packages installed in the environment of the peers' clients."""
    packages = sorted({pair.client for pair in PAIRS if not pair.is_ours})
    # Some packages are not available for every machine; then the rows of that client fail.
    program = """\
import importlib.metadata, json, sys
sys.path.append(sys.prefix + "/cpp")
installed = {one.name: one.version for one in importlib.metadata.distributions()}
print(json.dumps({name: installed.get(name, "not installed") for name in sys.argv[1:]}))
"""
    done = subprocess.run(
        [str(python), "-c", program, *packages], capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def document(
    plan: Plan, found: Found, versions: dict[str, dict[str, str]], skipped: Skipped
) -> Document:
    """The results of the clients as a document; the other parts are added to it."""
    settings = asdict(plan) | {"pairs": [str(pair) for pair in plan.pairs]}
    return {
        "machine": machine(),
        "plan": settings,
        "versions": versions,
        "skipped": skipped,
        "failures": found.failures,
        "servers": found.servers,
        "rows": found.rows,
        "growth": {},
    }


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--full", action="store_true", help="hours, for figures to be quoted")
    effort.add_argument("--tiny", action="store_true", help="only check that it works")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="client, server, client@server")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="duration of each sending row")
    parser.add_argument("--rates", type=int, nargs="+", help="messages per second, for latency")
    parser.add_argument("--synced-rounds", type=int, help="rounds with an fsync for each message")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all by default")
    parser.add_argument("--backlogs", type=int, nargs="+", help="stored messages, for a curve")
    parser.add_argument("--peers-python", type=Path, default=PROJECT / ".venv-peers/bin/python")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    try:
        options.pairs = chosen(options.only) if options.only else PAIRS
    except ValueError as error:
        parser.error(str(error))
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    """The size of the run."""
    plan = FULL if options.full else TINY if options.tiny else SHORT
    given = {
        name: value
        for name in ("rounds", "seconds", "rates", "synced_rounds", "pairs")
        if (value := getattr(options, name)) is not None
    }
    if "rates" in given:
        given["rates"] = tuple(given["rates"])
    return replace(plan, **given)


def effort_of(options: argparse.Namespace) -> Effort:
    """The effort for our own benchmarks."""
    return FULL_EFFORT if options.full else TINY_EFFORT if options.tiny else QUICK


def growth_of(options: argparse.Namespace) -> Growth:
    """The points of the growth curves."""
    growth = FULL_GROWTH if options.full else TINY_GROWTH if options.tiny else SHORT_GROWTH
    return replace(growth, backlogs=tuple(options.backlogs)) if options.backlogs else growth


def later_growth_of(options: argparse.Namespace) -> LaterGrowth:
    """The points of the curves of what waits."""
    return FULL_LATER if options.full else TINY_LATER if options.tiny else SHORT_LATER


def java_of(options: argparse.Namespace) -> JavaPlan:
    """The size of the Java part."""
    java = FULL_JAVA if options.full else TINY_JAVA if options.tiny else SHORT_JAVA
    return replace(java, rounds=options.rounds) if options.rounds else java


def grpc_of(options: argparse.Namespace) -> argparse.Namespace:
    """The size of the gRPC part: the options of `benchmarks.grpc_against_apache`."""
    if options.tiny:
        return grpc_options(
            ["--rounds", "1", "--seconds", "1", "--warm", "1", "--rows", *TINY_GRPC]
        )
    words = ["--seconds", "8", "--warm", "30"] if options.full else []
    return grpc_options([*words, "--rounds", str(options.rounds or (5 if options.full else 3))])


def spark_of(options: argparse.Namespace) -> SparkPlan:
    """The size of the Spark part."""
    spark = FULL_SPARK if options.full else TINY_SPARK if options.tiny else SHORT_SPARK
    return replace(spark, rounds=options.rounds) if options.rounds else spark


def run_clients(
    options: argparse.Namespace, plan: Plan, keep: Callable[[Document], object]
) -> Document:
    """Python clients on their servers; saved after each round, since a full run may take hours."""
    servers, versions, skipped = prepared(plan.servers())
    all_versions = {"servers": versions}
    if options.peers_python.exists():
        all_versions["clients"] = client_versions(options.peers_python)
    else:
        ours = tuple(pair for pair in plan.pairs if pair.is_ours)
        skipped += [
            {"what": str(pair), "why": f"there is no {options.peers_python}; run make bench"}
            for pair in plan.pairs
            if pair not in ours
        ]
        plan = replace(plan, pairs=ours)

    def made(found: Found) -> Document:
        return document(plan, found, all_versions, skipped)

    return made(run_plan(plan, servers, options.peers_python, lambda found: keep(made(found))))


def run_curves(growth: Growth, later: LaterGrowth, measured: Document) -> None:
    """Measure the growth curves, as far as the disk has space."""
    fits, too_large = fitting(growth, shutil.disk_usage(tempfile.gettempdir()).free)
    for count in too_large:
        why = f"not enough space in {tempfile.gettempdir()}"
        measured["skipped"].append({"what": f"growth, backlog of {count:,}", "why": why})
    measured["growth"] = run_growth(fits) | run_later_growth(later)


def save(path: Path, found: object) -> None:
    """Save the results of a part, for the report."""
    path.write_text(json.dumps(found, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results."""
    options = options_of(arguments)
    plan = plan_of(options)
    results: Path = options.results
    results.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    measured = document(plan, Found(), {}, [])
    before = measured["machine"]  # with the load of the machine before this run
    written: list[Path] = []

    def keep(found: Document) -> None:
        found |= {"machine": before, "minutes": round((time.monotonic() - began) / 60, 1)}
        found["tiny"] = options.tiny
        written[:] = write_report(found, results)

    for part in (part for part in PARTS if part in options.parts):
        sys.stderr.write(f"{part}, after {(time.monotonic() - began) / 60:.1f} minutes\n")
        try:
            if part == OWN:
                save(results / "latest.json", run_all(list(ALL_NAMES), effort_of(options)))
            elif part == CLIENTS:
                measured = run_clients(options, plan, keep)
            elif part == JAVA:
                save(results / "apache.json", run_java(java_of(options)))
            elif part == WARM:
                save(results / "warm.json", run_warm_java(java_of(options)))
            elif part == GRPC:
                save(results / "grpc.json", run_grpc(grpc_of(options)))
            elif part == SPARK:
                measured["spark"] = run_spark(spark_of(options))
            else:
                run_curves(growth_of(options), later_growth_of(options), measured)
        except (Unavailable, RuntimeError, OSError) as missing:
            measured["skipped"].append({"what": part, "why": str(missing)})
            sys.stderr.write(f"{part}: {missing}\n")
        keep(measured)
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
