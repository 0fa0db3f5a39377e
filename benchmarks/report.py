"""One report of what the benchmarks found: JSON, Markdown and SVG plots in ``benchmarks/results``.

    python -m benchmarks.report [--results DIRECTORY]

It is made of the documents that lie there and can be made again at any time: ``peers.json`` of
`benchmarks.peers`, ``latest.json`` of `benchmarks`, and ``apache.json``, which is what
`benchmarks.against_apache` prints. Every figure is a median; the lowest and the highest round
stand beside it.
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
"""What our client on our broker is compared with, and how many times as fast it is meant to be."""


HOW: Final = """\
- *send single*: one message at a time, each waited for. *send*: up to 4,096 may be unacknowledged,
  and may wait 2 ms for others to share a request; redis-py sends pipelines of 100. *consume*: what
  *send* left, read by a new group that acknowledges it. *Latency*: from handing a message over
  until a handler in another process has it; a client that holds the sender up is charged for it.
- *penstock* is the asyncio client with a handler that gets batches, *penstock-blocking* sends and
  polls in the way of Kafka's clients; both are one package.
- *rocketmq* is the binding of Apache's C++ client; *rocketmq-python-client* speaks gRPC to the
  broker's proxy.
- Every client runs in a process of its own, asyncio clients on uvloop. Four queues or partitions
  where a server has such, acknowledgements from the server, one node, no compression, and each
  client's own defaults otherwise.
- Before its rows a client sends unrecorded for as long as a row: a JVM compiles what it needs.
- Messages reach the disk soon after they are acknowledged, by the servers' own flushing; Redis
  syncs its file every second. Where each message is on the disk before its acknowledgement, both
  RocketMQ brokers flush synchronously, Kafka flushes after each message (`log.flush.interval`),
  NATS and Redis sync always; messages that arrive together may share a sync. RabbitMQ has no
  setting for it: both durabilities are the same there.
- A server is ready when it answers. Apache RocketMQ is its name server, and its broker and gRPC
  proxy in one process. A server's CPU time counts from the start of a client to its end."""


# ------------------------------------------------------------------------------------- figures


def spread(values: Values) -> dict[str, float]:
    """The median, and what the rounds lay between."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(found: Any) -> Any:
    """The same tree with the spread in place of each list of rounds."""
    if isinstance(found, Mapping):
        return {key: summary(value) for key, value in found.items()}
    return spread(found) if found else None


def ratio(ours: Values, theirs: Values) -> dict[str, float]:
    """How many times as much as they: round by round, for a busy moment slows both."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=False)]
    return spread(ratios)


def compared(rows: Mapping[str, Mapping[str, Mapping[str, Values]]]) -> list[Document]:
    """Our client beside the others, by row of rates, and whether what was promised was kept."""
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
    """A number for people: three digits that mean something."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def megabytes(value: float) -> str:
    """Bytes as megabytes."""
    return count(value / 1e6)


def cell(values: Values | None, show: Callable[[float], str] = count) -> str:
    """The median with its spread, or a dash where nothing was measured."""
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
    """Clients by rows of rates, with the CPU time of one message on either side."""
    names = [name for name in _row_names(rows) if name.startswith(("send", "consume"))]
    head = ["Messages a second", *(name.replace("_", " ") for name in names)]
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
    costs = table(["Microseconds of CPU a message: client; server", *head[1:]], cost)
    return f"{table(head, lines)}\n\n{costs}"


def latency_table(rows: Mapping[str, Any]) -> str:
    """Clients by percentiles, one line for each rate."""
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
    return table(["Send to handler, ms", "p50", "p99", "p99.9", "reached a second"], lines)


def servers_table(servers: Mapping[str, Mapping[str, Values]], rows: Mapping[str, Any]) -> str:
    """What a server needs to be there, and what it leaves on the disk."""
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
    return table(["Rate", "of", "beside", "times as much", "target", "met"], lines)


def growth_table(points: Sequence[Mapping[str, float]]) -> str:
    """One curve; what lies between is in the JSON."""
    names = [name for name in points[0] if not name.endswith(("_low", "_high"))]
    head = [name.replace("_", " ") for name in names]
    return table(head, [[count(point[name]) for name in names] for point in points])


def _row_names(rows: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for found in rows.values() for name in found))


def peers_markdown(told: Document) -> str:
    """The part about the peers."""
    plan, rows = told["plan"], told["rows"]
    versions = ", ".join(
        f"{name} {found}" for kind in told["versions"].values() for name, found in kind.items()
    )
    parts = [
        "# Penstock beside its peers",
        f"{told['machine']['system']}, {told['machine']['cores']} cores"
        f" ({told['machine']['processor']}), load before {told['machine']['load_before'][0]},"
        f" Python {told['machine']['python']}. {plan['rounds']} rounds in turn,"
        f" {plan['seconds']:g} s a row. Medians; in brackets the lowest and the highest round.",
    ]
    if told.get("tiny"):
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
            parts += ["## Our client on our broker beside others", compared_table(comparison)]
    if told["servers"]:
        parts += ["## Servers", servers_table(told["servers"], unsynced)]
        parts += ["![Servers](peers-servers.svg)"]
    if rows.get("fsync"):
        parts += ["## Every message on the disk before its acknowledgement"]
        parts += [rows_table(rows["fsync"]), latency_table(rows["fsync"])]
    spark = told.get("spark")
    if spark:
        from benchmarks.peers.spark.tables import spark_markdown

        parts.append(spark_markdown(spark))
    for name, points in told["growth"].items():
        if points:
            parts += [f"## Growth: {name}", growth_table(points), f"![{name}](growth-{name}.svg)"]
    missing = [f"- {one['what']} was skipped: {one['why']}" for one in told["skipped"]]
    missing += [f"- {one['who']}, {one['row']} failed: {one['why']}" for one in told["failures"]]
    if spark:
        missing += [f"- Spark: {one['what']} was skipped: {one['why']}" for one in spark["skipped"]]
        missing += [
            f"- Spark: {one['who']}, {one['row']} failed: {one['why']}" for one in spark["failures"]
        ]
    if missing:
        parts += ["## Not measured", "\n".join(missing)]
    return "\n\n".join(parts) + "\n"


def bench_markdown(told: Document) -> str:
    """The targets of ``latest.json``."""
    lines = [
        [one["name"], count(one["reached"]), count(one["target"]), "yes" if one["met"] else "no"]
        for figures in told["benchmarks"].values()
        for one in figures.get("targets", ())
    ]
    return f"# Targets of one run\n\n{table(['Figure', 'reached', 'target', 'met'], lines)}\n"


def apache_markdown(told: Document) -> str:
    """The Java client on both brokers."""
    lines = [
        [name, cell(row["penstock_runs"]), cell(row["apache_runs"]), str(row["ratio"])]
        for name, row in told["rows"].items()
    ]
    head = ["Official Java client", "Penstock", f"Apache {told['apache']}", "ratio"]
    return f"# The Java client on both brokers\n\n{table(head, lines)}\n"


# ----------------------------------------------------------------------------------- the report

PARTS: Final[Mapping[str, Callable[[Document], str]]] = {
    "peers": peers_markdown,
    "apache": apache_markdown,
    "latest": bench_markdown,
}


def write_report(told: Document, results: Path = RESULTS) -> list[Path]:
    """Keep what `benchmarks.peers` found, and make the report of everything that lies there."""
    results.mkdir(parents=True, exist_ok=True)
    (results / "peers.json").write_text(json.dumps(told, indent=1) + "\n")
    return make_report(results)


def make_report(results: Path = RESULTS) -> list[Path]:
    """Write ``report.json``, ``report.md`` and the plots; return what was written."""
    from benchmarks.peers import plots

    found: dict[str, Document] = {}
    for name in PARTS:
        if (results / f"{name}.json").is_file():
            found[name] = json.loads((results / f"{name}.json").read_text())
    document = dict(found)
    written = [results / "report.json", results / "report.md"]
    if "peers" in found:
        told = found["peers"]
        document["peers"] = told | {
            "summary": summary({"servers": told["servers"], "rows": told["rows"]}),
            "compared": compared(told["rows"].get("async", {})),
        }
        if told.get("spark"):
            from benchmarks.peers.spark import tables

            found_by_spark = told["spark"]["rows"]
            document["peers"]["summary"]["spark"] = summary(found_by_spark)
            document["peers"]["compared_in_spark"] = tables.compared(found_by_spark)
        written += plots.draw(told, results)
    written[0].write_text(json.dumps(document, indent=1) + "\n")
    written[1].write_text("\n".join(PARTS[name](told) for name, told in found.items()))
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the report again from what lies there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report")
    parser.add_argument("--results", type=Path, default=RESULTS)
    print("\n".join(map(str, make_report(parser.parse_args(arguments).results))))


if __name__ == "__main__":
    main()
