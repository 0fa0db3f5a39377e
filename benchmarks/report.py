"""One report of all benchmark results: JSON, Markdown and SVG plots in ``benchmarks/results``.

    python -m benchmarks.report [--results DIRECTORY]

It is made from the documents in that directory and can be made again at any time: ``peers.json``
from `benchmarks.peers`, ``latest.json`` from `benchmarks`, ``apache.json`` and ``warm.json``, the
outputs of `benchmarks.against_apache` without and with ``--warm``, ``grpc.json``, that of
`benchmarks.grpc_against_apache`. Every figure is a median with the lowest and the highest round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results")
OURS: Final = ("penstock on penstock", "penstock-blocking on penstock")
Document = dict[str, Any]
Values = Sequence[float]
TIMES: Final = ("p50_ms", "p99_ms", "p999_ms")
PROMISES: Final = (
    ("penstock on apache", None),
    ("rocketmq-python-client on apache", 10.0),
    ("rocketmq on apache", 1.0),
    ("aiokafka on kafka", 1.0),
    ("kafka-python on kafka", 1.0),
    ("confluent-kafka on kafka", None),
)
"""Comparisons of our client on our broker, with the targeted speed ratio."""


HOW: Final = """\
- *send single*: one message at a time, each awaited. *send*: up to 4,096 may be unacknowledged, and
  may wait 2 ms to share a request; redis-py sends pipelines of 100. *consume*: the messages of
  *send*, read and acknowledged by a new group. *Latency*: from the call of send until a handler in
  another process has the message; a client that delays the sender is charged for it.
- *penstock* is the asyncio client with a handler that receives batches, *penstock-blocking* sends
  and polls as Kafka's clients do; both are one package.
- *rocketmq* is the binding of Apache's C++ client; *rocketmq-python-client* uses gRPC to the
  broker's proxy.
- Every client runs in its own process, asyncio clients on uvloop. Four queues or partitions where
  the server has them, acknowledgements from the server, one node, no compression, and otherwise
  each client's defaults.
- Before its rows a client sends for the duration of a row without recording, so that a JVM can
  compile.
- Messages reach the disk soon after they are acknowledged, by the servers' own flushing; Redis
  syncs its file every second. Where each message is on the disk before its acknowledgement, both
  RocketMQ brokers flush synchronously, Kafka flushes after each message (`log.flush.interval`),
  NATS and Redis always sync; messages that arrive together may share a sync. RabbitMQ has no such
  setting: both durabilities are the same.
- A server is ready when it answers. Apache RocketMQ is its name server, and its broker and gRPC
  proxy in one process. A server's CPU time is counted from the start of a client to its end."""


# ------------------------------------------------------------------------------------- figures


def spread(values: Values) -> dict[str, float]:
    """The median, with the lowest and the highest round."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(found: Any) -> Any:
    """The same tree with the spread instead of each list of rounds."""
    if isinstance(found, Mapping):
        return {key: summary(value) for key, value in found.items()}
    return spread(found) if found else None


def ratio(ours: Values, theirs: Values) -> dict[str, float]:
    """The ratio of ours to theirs, round by round, because a busy moment slows both."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=False)]
    return spread(ratios)


def compared(rows: Mapping[str, Mapping[str, Mapping[str, Values]]]) -> list[Document]:
    """Our client compared with the others, by row, and whether the targets were met."""
    found = []
    for (who, promised), own in itertools.product(PROMISES, OURS):
        for row, figures in rows.get(who, {}).items():
            ours = rows.get(own, {}).get(row, {}).get("per_second")
            if ours and row.startswith(("send", "consume")):
                times = ratio(ours, figures["per_second"])
                met = None if promised is None else times["median"] >= promised
                about = {"row": row, "ours": own, "beside": who, "promised": promised}
                found.append({**about, "met": met, **times})
    return found


# ------------------------------------------------------------------------------------ Markdown


def count(value: float) -> str:
    """A number with three significant digits."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def megabytes(value: float) -> str:
    """Bytes as megabytes."""
    return count(value / 1e6)


def cell(values: Values | None, show: Callable[[float], str] = count) -> str:
    """The median with its spread, or a dash if nothing was measured."""
    if not values:
        return "-"
    found = spread(values)
    if len(values) == 1:
        return show(found["median"])
    return f"{show(found['median'])} ({show(found['low'])} to {show(found['high'])})"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def rows_table(rows: Mapping[str, Any]) -> str:
    """Clients by rows of rates, with the CPU time per message on both sides."""
    names = [name for name in _row_names(rows) if name.startswith(("send", "consume"))]
    head = ["Messages per second", *(name.replace("_", " ") for name in names)]
    lines = []
    for who, found in rows.items():
        lines.append([who, *(cell(found.get(name, {}).get("per_second")) for name in names)])
    cost = [
        [
            who,
            *(
                f"{cell(found.get(name, {}).get('client_microseconds'))};"
                f" {cell(found.get(name, {}).get('server_microseconds'))}"
                for name in names
            ),
        ]
        for who, found in rows.items()
    ]
    costs = table(["CPU microseconds per message: client; server", *head[1:]], cost)
    return f"{table(head, lines)}\n\n{costs}"


def latency_table(rows: Mapping[str, Any]) -> str:
    """Clients by percentiles, one line per rate."""
    names = [name for name in _row_names(rows) if name.startswith("latency")]
    lines = [
        [
            f"{who}, {name.partition('_')[2]}/s",
            *(cell(found[name].get(what)) for what in TIMES),
            cell(found[name].get("per_second")),
        ]
        for name in names
        for who, found in rows.items()
        if name in found
    ]
    return table(["Send to handler, ms", "p50", "p99", "p99.9", "reached per second"], lines)


def servers_table(servers: Mapping[str, Mapping[str, Values]], rows: Mapping[str, Any]) -> str:
    """Start-up time, memory and disk usage of the servers."""
    lines = []
    for name, found in servers.items():
        disk = [
            f"{cell(figures['disk_128']['bytes_per_message'])} by {who.partition(' on ')[0]}"
            for who, figures in rows.items()
            if who.endswith(f" on {name}") and "disk_128" in figures
        ]
        lines.append(
            [
                name,
                cell(found.get("ready_seconds")),
                cell(found.get("idle_resident_bytes"), megabytes),
                cell(found.get("loaded_resident_bytes"), megabytes),
                "; ".join(disk) or "-",
            ]
        )
    return table(
        ["Server", "s until ready", "MB idle", "MB after the load", "bytes on disk for 128"], lines
    )


def compared_table(found: Sequence[Document]) -> str:
    """How many times as fast our client is."""
    lines = [
        [
            one["row"].replace("_", " "),
            one["ours"].partition(" on ")[0],
            one["beside"],
            f"{count(one['median'])} ({count(one['low'])} to {count(one['high'])})",
            "shown only" if one["promised"] is None else f"{one['promised']:g}",
            "-" if one["met"] is None else "yes" if one["met"] else "no",
        ]
        for one in found
    ]
    return table(["Rate", "of", "compared with", "times as fast", "target", "met"], lines)


def growth_table(points: Sequence[Mapping[str, float]]) -> str:
    """One curve; the spread is in the JSON."""
    names = [name for name in points[0] if not name.endswith(("_low", "_high"))]
    head = [name.replace("_", " ") for name in names]
    return table(head, [[count(point[name]) for name in names] for point in points])


def _row_names(rows: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for found in rows.values() for name in found))


def peers_markdown(measured: Document) -> str:
    """The part about the peers."""
    machine, plan, rows = measured["machine"], measured["plan"], measured["rows"]
    versions = ", ".join(
        f"{name} {found}" for kind in measured["versions"].values() for name, found in kind.items()
    )
    parts = [
        "# Penstock compared with its peers",
        f"{machine['system']}, {machine['cores']} cores"
        f" ({machine['processor']}), load before {machine['load_before'][0]},"
        f" Python {machine['python']}. {plan['rounds']} rounds in turn,"
        f" {plan['seconds']:g} s per row. Medians; in brackets the lowest and the highest round.",
    ]
    if measured.get("tiny"):
        parts.append("**A tiny run: it shows that everything works; its figures mean nothing.**")
    if versions:
        parts += [f"Versions: {versions}.", HOW]
    unsynced = rows.get("async", {})
    if unsynced:
        parts += ["## Rates", rows_table(unsynced)]
        parts += ["![Rates](peers-rates.svg)", "## Latency", latency_table(unsynced)]
        parts += ["![Latency](peers-latency.svg)"]
        comparison = compared(unsynced)
        if comparison:
            parts += [
                "## Our client on our broker compared with others",
                compared_table(comparison),
            ]
    if measured["servers"]:
        parts += ["## Servers", servers_table(measured["servers"], unsynced)]
        parts += ["![Servers](peers-servers.svg)"]
    if rows.get("fsync"):
        parts += ["## Every message on the disk before its acknowledgement"]
        parts += [rows_table(rows["fsync"]), latency_table(rows["fsync"])]
    spark = measured.get("spark")
    if spark:
        from benchmarks.peers.spark.tables import spark_markdown

        parts.append(spark_markdown(spark))
    for name, points in measured["growth"].items():
        if points:
            parts += [f"## Growth: {name}", growth_table(points), f"![{name}](growth-{name}.svg)"]
    missing = [f"- {one['what']} was skipped: {one['why']}" for one in measured["skipped"]]
    missing += [
        f"- {one['who']}, {one['row']} failed: {one['why']}" for one in measured["failures"]
    ]
    if spark:
        missing += [f"- Spark: {one['what']} was skipped: {one['why']}" for one in spark["skipped"]]
        missing += [
            f"- Spark: {one['who']}, {one['row']} failed: {one['why']}" for one in spark["failures"]
        ]
    if missing:
        parts += ["## Not measured", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def bench_markdown(measured: Document) -> str:
    """The targets of ``latest.json``."""
    every = measured["benchmarks"].values()
    targets = [one for figures in every for one in figures.get("targets", ())]
    return f"# Targets of one run\n{_targets(targets)}"


def apache_markdown(measured: Document) -> str:
    """The Java client on both brokers; each round starts them."""
    return _both_servers("The Java client on both brokers, just started", measured)


def warm_markdown(measured: Document) -> str:
    """The Java client on both brokers; they run, and are warm."""
    return _both_servers("The Java client on both brokers, warm", measured)


def grpc_markdown(measured: Document) -> str:
    """The gRPC clients on both endpoints; they run, and are warm."""
    return _both_servers("The official gRPC clients on both endpoints, warm", measured)


def _both_servers(title: str, measured: Document) -> str:
    lines = [
        [name, cell(row["penstock_runs"]), cell(row["apache_runs"]), str(row["ratio"])]
        for name, row in measured["rows"].items()
    ]
    head = ["Row", "Penstock", f"Apache {measured['apache']}", "ratio"]
    text = f"# {title}\n\n{table(head, lines)}\n"
    return text + _targets(measured["targets"]) if measured.get("targets") else text


def _targets(targets: Sequence[Document]) -> str:
    lines = [
        [one["name"], count(one["reached"]), count(one["target"]), "yes" if one["met"] else "no"]
        for one in targets
    ]
    return f"\n{table(['Figure', 'reached', 'target', 'met'], lines)}\n"


# ----------------------------------------------------------------------------------- the report

PARTS: Final[Mapping[str, Callable[[Document], str]]] = {
    "peers": peers_markdown,
    "apache": apache_markdown,
    "warm": warm_markdown,
    "grpc": grpc_markdown,
    "latest": bench_markdown,
}


def write_report(measured: Document, results: Path = RESULTS) -> list[Path]:
    """Save the results of `benchmarks.peers`, and make the report from all saved results."""
    results.mkdir(parents=True, exist_ok=True)
    (results / "peers.json").write_text(json.dumps(measured, indent=1) + "\n")
    return make_report(results)


def make_report(results: Path = RESULTS) -> list[Path]:
    """Write ``report.json``, ``report.md`` and the plots; return the written files."""
    from benchmarks.peers import plots

    found: dict[str, Document] = {}
    for name in PARTS:
        if (results / f"{name}.json").is_file():
            found[name] = json.loads((results / f"{name}.json").read_text())
    document = dict(found)
    written = [results / "report.json", results / "report.md"]
    if "peers" in found:
        measured = found["peers"]
        document["peers"] = measured | {
            "summary": summary({"servers": measured["servers"], "rows": measured["rows"]}),
            "compared": compared(measured["rows"].get("async", {})),
        }
        if measured.get("spark"):
            from benchmarks.peers.spark import tables

            found_by_spark = measured["spark"]["rows"]
            document["peers"]["summary"]["spark"] = summary(found_by_spark)
            document["peers"]["compared_in_spark"] = tables.compared(found_by_spark)
        written += plots.draw(measured, results)
    written[0].write_text(json.dumps(document, indent=1) + "\n")
    written[1].write_text("\n".join(PARTS[name](measured) for name, measured in found.items()))
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the report again from the saved results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report")
    parser.add_argument("--results", type=Path, default=RESULTS)
    print("\n".join(map(str, make_report(parser.parse_args(arguments).results))))


if __name__ == "__main__":
    main()
