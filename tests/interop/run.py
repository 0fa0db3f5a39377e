"""``make interop``: every client against every broker, as a matrix of real runs.

    python -m tests.interop.run [--target penstock] [--only NAME ...] [--versions 5.5.0 4.9.7]

``--only`` takes rows or parts (java, mqadmin, signed, client, cli, console, groups, traces, mixed,
swap, go, node, signed-others, grpc, grpc-apache, grpc-before-apache).

The targets ``apache-VERSION`` check the harness itself: if Apache's own broker fails a row, the
harness is wrong. The exit code is 0 if nothing failed. If the Java tools are missing, only the rows
of the other languages run; rows that lack Go, Node or their packages are shown as skipped.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.interop import (
    agent_traces,
    cli_scenarios,
    client_failover,
    client_guarded,
    client_scenarios,
    console_scenarios,
    go_clients,
    grpc_clients,
    mixed_groups,
    mqadmin,
    node_clients,
    scenarios,
    signed_clients,
    signed_others,
    store_swap,
)
from tests.interop.programs import not_run
from tests.interop.results import FAIL, NOT_APPLICABLE, Cell, matrix, save, shorten, summary
from tests.interop.servers import (
    Cluster,
    apache,
    apache_broker,
    apache_namesrv,
    apache_proxy,
    penstock_broker,
    penstock_nameserver,
    penstock_proxy,
    penstock_up,
)
from tests.interop.toolchain import (
    BUILD,
    QUICK,
    VERSIONS,
    Toolchain,
    Unavailable,
    prepare,
    prepare_proxy,
)

APACHE = tuple(f"apache-{version}" for version in VERSIONS)
TARGETS = (
    "penstock",
    *APACHE,
    *(f"penstock-under-apache-{version}" for version in VERSIONS),
    *(f"apache-{version}-under-penstock" for version in VERSIONS),
)
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
OTHER_ROWS = (
    *go_clients.SCENARIOS,
    *mixed_groups.GO_NAMES,
    *node_clients.SCENARIOS,
    *grpc_clients.SCENARIOS,
    *grpc_clients.GUARDED,
    grpc_clients.RESTART,
    *signed_others.NAMES,
)
# Rows in which a broker depends on its name server, run by default with servers of two kinds.
MIXED = ("send_sync", "send_auto_create", "push_concurrent", "push_orderly", "topic_delete")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def started(target: str, directory: Path) -> Iterator[Cluster]:
    """The servers of a target: ``BROKER`` or ``BROKER-under-NAMESERVER``."""
    kind, _, keeper = target.partition("-under-")
    keeper = keeper or kind
    with ExitStack() as running:
        if target == "penstock":
            yield running.enter_context(penstock_up(directory))
            return
        if keeper == "penstock":
            namesrv = running.enter_context(penstock_nameserver(directory))
        else:
            tools = prepare(keeper.removeprefix("apache-"))
            namesrv = running.enter_context(apache_namesrv(tools, directory))
        if kind == "penstock":
            yield running.enter_context(penstock_broker(directory, namesrv))
        else:
            tools = prepare(kind.removeprefix("apache-"))
            yield running.enter_context(apache_broker(tools, directory, namesrv))


# Known differences of Apache's 4.9.7 broker, for every client or only for those of 5.x. Most 5.x
# cases are requests that 4.9 does not have; then the request code is in the evidence.
UNKNOWN_REQUEST = re.compile(r"request type \d+ not supported")
OLD_BROKER = {
    "retry_orderly_to_dead_letters": "4.9 delays the dead letter as if it were a retry",
}
OLD_BROKER_NEW_CLIENT = {
    "lite_pull_subscribe": "a 5.x client lite-pulls with request 361, which 4.9 does not know",
    "lite_pull_assign": "a 5.x client lite-pulls with request 361, which 4.9 does not know",
    "timer_message": "4.9 has no timer messages and delivers at once",
    "recall_message": "4.9 has neither timer messages nor recall",
    "send_batch": "4.9 replaces each unique key by that of the batch, which 5.x clients set",
    "exportMetrics": "the tool reads a figure that 4.9 does not report",
}

# Data that the 4.9.7 tool reads and that a 5.x broker no longer has.
NEW_BROKER_OLD_CLIENT = {
    "clusterList": "the 4.9 tool reads getTransferedTps, which 5.x spells differently",
    "exportMetrics": "the 4.9 tool reads getTransferedTps, which 5.x spells differently",
    "exportConfigs": "the 4.9 tool reads the setting filterServerNums, which 5.x dropped",
}


def documented(cell: Cell, target: str, client: str) -> Cell:
    """Known differences between Apache's own versions are not failures of the harness."""
    target = target.partition("-under-")[0]  # only the broker matters
    if cell.status != FAIL or not target.startswith("apache-"):
        return cell
    if target != "apache-4.9.7":
        if client == "4.9.7" and cell.row in NEW_BROKER_OLD_CLIENT:
            return replace(cell, status=NOT_APPLICABLE, evidence=NEW_BROKER_OLD_CLIENT[cell.row])
        return cell
    if cell.row in OLD_BROKER:
        return replace(cell, status=NOT_APPLICABLE, evidence=OLD_BROKER[cell.row])
    if client == "4.9.7":
        return cell
    if (unknown := UNKNOWN_REQUEST.search(cell.evidence)) is not None:
        return replace(cell, status=NOT_APPLICABLE, evidence=unknown.group())
    if cell.row in OLD_BROKER_NEW_CLIENT:
        return replace(cell, status=NOT_APPLICABLE, evidence=OLD_BROKER_NEW_CLIENT[cell.row])
    return cell


@dataclass(frozen=True, slots=True)
class Choice:
    """The rows to run: all, or those in ``--only`` (rows or whole parts)."""

    only: Sequence[str]

    def of(self, part: str, names: Sequence[str]) -> list[str]:
        """The selected rows of a part."""
        everything = not self.only or part in self.only
        return [name for name in names if everything or name in self.only]


def cells_of(target: str, toolchain: Toolchain, choice: Choice, directory: Path) -> Iterator[Cell]:
    """All selected rows with the client and the tools of one RocketMQ version."""
    version = toolchain.version
    names = choice.of("java", scenarios.SCENARIOS)
    commands = choice.of("mqadmin", [row.row for row in mqadmin.COMMANDS])
    if names or commands:
        with started(target, directory / "target") as cluster:
            say(f"{target} at {cluster.namesrv} and {cluster.broker}, RocketMQ {version}")
            for options, column in clients(version):
                yield from scenarios.run_scenarios(
                    toolchain, cluster, names, column, options=options, limits=limits_of(target)
                )
            rows = [row for row in mqadmin.COMMANDS if row.row in commands]
            if rows:
                yield from mqadmin.run_commands(toolchain, cluster, rows, f"java {version}")
    yield from client_cells(target, toolchain, choice, directory)
    if target != "penstock":
        return
    signed = choice.of("signed", signed_clients.NAMES)
    yield from signed_clients.run_signed(toolchain, directory / "signed", signed, f"java {version}")
    if choice.of("mixed", [scenarios.SEVERAL_BROKERS]):
        with penstock_up(directory / "several", None, "--brokers=2") as cluster:
            yield from scenarios.run_scenarios(
                toolchain, cluster, [scenarios.SEVERAL_BROKERS], f"java {version}"
            )
    column = f"apache {version}"
    for mixed in (f"penstock-under-apache-{version}", f"apache-{version}-under-penstock"):
        label = mixed.replace(f"-{version}", "")
        chosen = [name for name in MIXED if choice.of("mixed", [f"{label}: {name}"])]
        if chosen:
            with started(mixed, directory / mixed) as cluster:
                for cell in scenarios.run_scenarios(toolchain, cluster, chosen, column):
                    row = f"{label}: {cell.row}"
                    yield replace(cell, section="name server of the other kind", row=row)
    swaps = choice.of("swap", list(store_swap.SWAPS))
    yield from store_swap.run_swaps(toolchain, directory, swaps, column)


def client_cells(
    target: str, toolchain: Toolchain, choice: Choice, directory: Path
) -> Iterator[Cell]:
    """Our client, alone and in groups with Java's: on the target, by default also on Apache's."""
    version = toolchain.version
    apache = f"apache-{version}"
    # Alone it runs once per broker: on Apache's together with that version.
    names = choice.of("client", list(client_scenarios.RUNS))
    verbs = choice.of("cli", list(cli_scenarios.RUNS))
    looks = choice.of("console", list(console_scenarios.RUNS))
    groups = choice.of("groups", mixed_groups.NAMES)
    traces = choice.of("traces", agent_traces.NAMES)
    for place in ("penstock", apache) if target == "penstock" else (target,):
        first = version == VERSIONS[0] and place not in APACHE
        is_turn = place == apache or first
        alone, commands, pages = (names, verbs, looks) if is_turn else ([], [], [])
        if not any((alone, commands, pages, groups, traces)):
            continue
        with started(place, directory / f"client-{place}") as cluster:
            say(f"our client, and groups with Java {version}: {place} at {cluster.namesrv}")
            on = place.replace("-", " ")
            limits = client_scenarios.PENSTOCK_LIMITS if place == "penstock" else {}
            yield from client_scenarios.run_clients(cluster, alone, f"on {on}", limits=limits)
            yield from cli_scenarios.run_cli(cluster, commands, f"on {on}")
            yield from console_scenarios.run_console(cluster, pages, f"on {on}")
            column = f"java {version} on {on}"
            yield from mixed_groups.run_groups(toolchain, cluster, groups, column)
            yield from agent_traces.run_traces(toolchain, cluster, traces, column)
    if target in ("penstock", apache):
        guarded = choice.of("client", client_guarded.NAMES)
        column = f"on {apache.replace('-', ' ')}"
        yield from client_guarded.run_guarded(toolchain, directory / "guarded", guarded, column)
        failover = choice.of("client", client_failover.NAMES)
        yield from client_failover.run_failover(toolchain, directory / "two", failover, column)


def other_cells(target: str, choice: Choice, directory: Path) -> Iterator[Cell]:
    """The clients in other languages; there is one version of each."""
    go = choice.of("go", go_clients.SCENARIOS)
    groups = choice.of("go", mixed_groups.GO_NAMES)
    node = choice.of("node", node_clients.SCENARIOS)
    grpc = choice.of("grpc", grpc_clients.SCENARIOS)
    if not (go or groups or node or grpc):
        return
    refuses = target.startswith("penstock")
    with started(target, directory) as cluster:
        say(f"{target} at {cluster.namesrv} and {cluster.broker}, clients in other languages")
        if go:
            limits = go_clients.PENSTOCK_LIMITS if refuses else None
            yield from go_clients.run_go(cluster, go, limits=limits)
        yield from mixed_groups.run_go_groups(cluster, groups)
        if node:
            limits = node_clients.PENSTOCK_LIMITS if refuses else None
            yield from node_clients.run_node(cluster, node, limits=limits)
        if grpc:
            yield from grpc_clients.run_grpc(cluster, grpc)


def grpc_cells(target: str, choice: Choice, directory: Path) -> Iterator[Cell]:
    """gRPC rows with servers of their own: users, a restart, and Apache's endpoint and broker."""
    if target != "penstock":
        return
    guarded = choice.of("grpc", grpc_clients.GUARDED)
    if guarded:
        yield from grpc_clients.run_guarded(directory / "guarded", guarded)
    if choice.of("grpc", [grpc_clients.RESTART]):
        yield from grpc_clients.run_restart(directory / "restart")
    places = (
        ("grpc-apache", grpc_clients.APACHE, apache_endpoint),
        ("grpc-before-apache", grpc_clients.BEFORE_APACHE, before_apache),
    )
    for part, place, start in places:
        names = list(grpc_clients.SCENARIOS)
        if not choice.of(part, [part]):
            continue
        try:
            with start(directory / part) as cluster:
                say(f"{part} at {cluster.grpc}")
                yield from grpc_clients.run_grpc(cluster, names, place)
        except Unavailable as missing:
            yield from not_run(names, place.section, "all clients", missing)


@contextmanager
def apache_endpoint(directory: Path) -> Iterator[Cluster]:
    """Apache's proxy in local mode."""
    with apache_proxy(prepare_proxy(VERSIONS[0]), directory) as cluster:
        yield cluster


@contextmanager
def before_apache(directory: Path) -> Iterator[Cluster]:
    """Our proxy in front of Apache's broker."""
    with (
        apache(prepare(VERSIONS[0]), directory) as cluster,
        penstock_proxy(directory, cluster) as seen,
    ):
        yield seen


def needs_java(target: str, only: Sequence[str]) -> bool:
    """Whether a selected row or the servers need Java."""
    parts = ("go", "node", "signed-others", "grpc", "grpc-apache", "grpc-before-apache")
    others = {*parts, *OTHER_ROWS}
    return target != "penstock" or not only or not set(only) <= others


def clients(version: str) -> list[tuple[tuple[str, ...], str]]:
    """JVM options and column for each header encoding of a client version."""
    ways: list[tuple[tuple[str, ...], str]] = [(QUICK, f"java {version}")]
    if version == VERSIONS[0]:
        binary = (*QUICK, "-Drocketmq.serialize.type=ROCKETMQ")
        ways.append((binary, f"java {version} binary headers"))
    return ways


def limits_of(target: str) -> dict[str, re.Pattern[str]] | None:
    """The known refusals of the target's broker."""
    return scenarios.PENSTOCK_LIMITS if target.startswith("penstock") else None


def run(target: str, toolchains: Sequence[Toolchain], only: Sequence[str]) -> list[Cell]:
    """Run the selected rows against one target, print each as it ends; sorted by name."""
    cells: list[Cell] = []

    def keep(cell: Cell) -> None:
        say(f"  {cell.status:5} {cell.row} [{cell.column}] {cell.ms / 1000:.1f}s")
        if cell.status == FAIL:  # the matrix comes much later, or never if the run is stopped
            say(f"        {shorten(cell.evidence)}")
        cells.append(cell)

    with tempfile.TemporaryDirectory(prefix="penstock-interop-") as directory:
        for toolchain in toolchains:
            place = Path(directory) / toolchain.version
            for found in cells_of(target, toolchain, Choice(only), place):
                keep(documented(found, target, toolchain.version))
        for found in other_cells(target, Choice(only), Path(directory) / "others"):
            keep(found)
        if target == "penstock":
            names = Choice(only).of("signed-others", signed_others.NAMES)
            for found in signed_others.run_others(Path(directory) / "signed-others", names):
                keep(found)
        for found in grpc_cells(target, Choice(only), Path(directory) / "grpc"):
            keep(found)
    others = (
        *client_scenarios.RUNS,
        *cli_scenarios.RUNS,
        *console_scenarios.RUNS,
        *client_guarded.NAMES,
        *client_failover.NAMES,
        *OTHER_ROWS,
        *agent_traces.NAMES,
    )
    rows = sorted([*scenarios.SCENARIOS, scenarios.SEVERAL_BROKERS, *others, *mixed_groups.NAMES])
    order = {name: at for at, name in enumerate(rows)}
    return sorted(cells, key=lambda cell: order.get(cell.row, len(order)))


def obey_interrupts() -> None:
    """Make interrupts end this process and those it starts, as at a terminal.

    A shell that runs a command in the background makes it ignore interrupts. Programs inherit that,
    and rows that end a program as a user would, with an interrupt, would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print, save; return 1 if a cell failed."""
    obey_interrupts()
    parser = argparse.ArgumentParser(prog="python -m tests.interop.run", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="penstock")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW")
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--output", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    toolchains: list[Toolchain] = []
    if needs_java(options.target, options.only):
        try:
            toolchains = [prepare(version) for version in options.versions]
        except Unavailable as missing:
            say(f"every row of Java, mqadmin and Apache's servers is skipped: {missing}")
            if options.target != "penstock":
                return 0
    log = BUILD / "logs" / "penstock-client.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # Errors that scenarios provoke are logged there, not between the rows.
    logging.basicConfig(filename=log, filemode="w", level=logging.INFO, format=LOG_FORMAT)
    cells = run(options.target, toolchains, options.only)
    whole = not options.only and {tools.version for tools in toolchains} == set(VERSIONS)
    name = f"results-{options.target}.json" if whole else "results-of-some-rows.json"
    output = options.output or BUILD / name
    save(output, options.target, cells)
    say(matrix(cells))
    say(f"\n{options.target}: {summary(cells)}; results in {output}")
    return 1 if any(cell.status == FAIL for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
