"""The official gRPC clients as the load for Apache's proxy in local mode and for `penstock up`.

    python -m benchmarks.grpc_against_apache [--warm 20] [--rounds 3] [--seconds 5] [--rows ROW ...]

Both servers run through all rounds, each with a Java and a Python client that run as long. Every
row is repeated on both until ``--warm`` seconds have passed, then measured alternately, while the
other server and its clients stand still (`benchmarks.warm_apache`). The output is JSON: every
figure, medians, ratios, and the targets. A row is one of

    LANGUAGE-send-INFLIGHT-SIZE     sends for ``--seconds``
    LANGUAGE-push-MESSAGES-SIZE     a topic that was filled before is drained by a push consumer,
    LANGUAGE-simple-MESSAGES-SIZE   or by a simple one: the rate from the first delivery to the last
    remoting                        how long sends of a remoting client take on `penstock up`, alone
                                    and beside a gRPC producer that sends as fast as it can

``--also`` measures further servers in the same run: ``inside`` is a broker with the endpoint in its
process, ``canned`` an endpoint that answers with prepared bytes, which shows what the client itself
reaches (`benchmarks.grpc_one_process`).

Cores are counted while the rate is measured: those of the client and of its server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.__main__ import machine
from benchmarks.against_apache import APACHE_VERSION, report, server_pids
from benchmarks.effort import Figures, Target, at_least, at_most
from benchmarks.sends_beside import compare_latencies
from benchmarks.warm_apache import Found, Generator, alternate, generator, turns, warm_up
from tests.interop.grpc_programs import java_program, python_program
from tests.interop.servers import Cluster, apache_proxy, penstock_up, process
from tests.interop.toolchain import FAST, Unavailable, prepare_proxy

from penstock import Admin

PROGRAMS: Final = Path(__file__).with_name("grpc_load")
LANGUAGES: Final = ("java", "python")
KINDS: Final = ("send", "push", "simple")
REMOTING: Final = "remoting"
ROWS: Final = (
    "java-send-64-128",
    "java-send-64-1024",
    "java-push-20000-128",
    "java-simple-10000-128",
    "python-send-64-128",
    "python-push-5000-128",
    "python-simple-5000-128",
    REMOTING,
)
INSIDE: Final = "inside"
CANNED: Final = "canned"
BESIDE: Final = "send-64-128"
RATE_TARGET: Final = 1.5
P99_TARGET: Final = 2.0


class Row(NamedTuple):
    """A row of one client."""

    language: str
    work: str
    """As the client's program reads it."""


def parse_row(text: str) -> Row | None:
    """A row of the command line; None is the remoting row. Raises ``ValueError``."""
    if text == REMOTING:
        return None
    words = text.split("-")
    if (
        len(words) != 4
        or words[0] not in LANGUAGES
        or words[1] not in KINDS
        or not all(word.isdecimal() and int(word) for word in words[2:])
    ):
        raise ValueError(
            f"no row {text!r}; expected {REMOTING}, or one of {', '.join(LANGUAGES)}, one of "
            f"{', '.join(KINDS)}, a number and a size: java-send-64-128"
        )
    return Row(words[0], "-".join(words[1:]))


def program(language: str) -> list[str]:
    """The command of a client's load program, or `Unavailable`."""
    if language == "java":
        return java_program(PROGRAMS / "GrpcLoad.java", "-Xmx1g", *FAST)
    return python_program(PROGRAMS / "grpc_load.py")


@contextmanager
def one_process(kind: str, directory: Path) -> Iterator[Cluster]:
    """A server of `benchmarks.grpc_one_process`."""
    command = [sys.executable, "-m", "benchmarks.grpc_one_process", kind, str(directory / "data")]
    with process(command, directory / "server.log", "ready namesrv=") as line:
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        yield Cluster(
            fields["namesrv"],
            fields["broker"],
            "DefaultCluster",
            "broker-a",
            Path(fields["data"]),
            fields["grpc"],
            is_penstock=True,
        )


def prepare_cluster(cluster: Cluster, suffixes: Iterable[str]) -> None:
    """Create the topics and groups of the clients."""
    with Admin(namesrv=cluster.namesrv) as admin:
        for suffix in suffixes:
            for topic in (f"send_{suffix}", f"receive_{suffix}"):
                admin.create_topic(topic, attributes={"message.type": "NORMAL"})
            admin.create_group(f"load_{suffix}")


def measure(
    clusters: Mapping[str, Cluster],
    pids: Mapping[str, Sequence[int]],
    commands: Mapping[str, list[str]],
    rows: Sequence[Row | None],
    options: argparse.Namespace,
) -> tuple[Found, Figures | None]:
    """The figures of both servers by row, and those of the remoting row if it was wanted."""
    found: Found = {target: {} for target in clusters}
    beside: Figures | None = None
    for cluster in clusters.values():
        prepare_cluster(cluster, commands)
    with ExitStack() as stack:
        load: dict[str, dict[str, Generator]] = {}
        for language, command in commands.items():
            load[language] = {}
            for target, cluster in clusters.items():
                assert cluster.grpc is not None, "both servers serve gRPC"
                words = [*command, cluster.grpc, language, str(options.seconds)]
                name = f"grpc-{language}-{target}"
                started = generator(words, name, pids[target])
                load[language][target] = stack.enter_context(started)
        running = {
            target: [*pids[target], *(load[language][target].process.pid for language in load)]
            for target in clusters
        }
        give_turn = stack.enter_context(turns(running))
        for row in rows:
            if row is None:
                for target in ("penstock", *options.also):
                    if target == CANNED:
                        continue
                    give_turn(target)
                    busy = load["java"][target]
                    warm_up(busy, BESIDE, options.warm)
                    figures = compare_latencies(
                        clusters[target].namesrv,
                        partial(busy.run, BESIDE),
                        options.rounds,
                        options.seconds,
                    )
                    sys.stderr.write(f"{REMOTING} {target}: {figures}\n")
                    beside = beside or figures
                continue
            figures = alternate(
                load[row.language], options.rounds, [row.work], options.warm, give_turn
            )
            for target, by_figure in figures.items():
                for figure, values in by_figure.items():
                    found[target][f"{row.language}-{figure}"] = values
    return found, beside


def targets(rows: Mapping[str, Mapping[str, object]], beside: Figures | None) -> list[Target]:
    """What is demanded, and what this run reached."""
    made: list[Target] = []
    for figure, values in rows.items():
        reached = values["ratio"]
        if figure.endswith(":messages_per_second") and isinstance(reached, float):
            made.append(at_least(f"{figure}, ratio to Apache's proxy", RATE_TARGET, reached))
    if beside is not None:
        name = "p99 of remoting sends beside a gRPC producer, ratio to alone"
        made.append(at_most(name, P99_TARGET, beside["p99_ratio"]))
    return made


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_against_apache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="duration of a row of sends")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW")
    parser.add_argument("--heap", default="2g", help="heap of Apache's proxy")
    parser.add_argument("--also", nargs="+", default=[], choices=(INSIDE, CANNED))
    parser.add_argument("--warm", type=float, default=20, metavar="SECONDS")
    options = parser.parse_args(arguments)
    try:
        options.rows = [parse_row(text) for text in options.rows]
    except ValueError as error:
        parser.error(str(error))
    return options


def compare(options: argparse.Namespace) -> Figures:
    """Measure; raise `Unavailable` without a JDK, Maven or the official clients."""
    rows = options.rows
    languages = dict.fromkeys("java" if row is None else row.language for row in rows)
    conditions = machine()
    toolchain = prepare_proxy(APACHE_VERSION)
    commands = {language: program(language) for language in languages}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        proxy = apache_proxy(toolchain, root / "apache", heap=options.heap, options=FAST)
        clusters = {
            "apache": stack.enter_context(proxy),
            "penstock": stack.enter_context(penstock_up(root / "penstock")),
            **{one: stack.enter_context(one_process(one, root / one)) for one in options.also},
        }
        pids = {target: server_pids(root / target) for target in clusters}
        found, beside = measure(clusters, pids, commands, rows, options)
    figures = report(found)
    return {
        "apache": APACHE_VERSION,
        "warm_seconds": options.warm,
        "machine": conditions,
        "rows": figures,
        "also": {
            target: {figure: statistics.median(values) for figure, values in found[target].items()}
            for target in options.also
        },
        REMOTING: beside,
        "targets": targets(figures, beside),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    try:
        result = compare(options_of(arguments))
    except Unavailable as missing:
        print(f"comparison skipped, nothing was measured: {missing}")
        return 0
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
