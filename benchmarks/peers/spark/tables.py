"""Spark's rows in Markdown: rates, what a row costs, and ours beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.peers.spark.plan import BROKER, IDLE, KAFKA, PARQUET, PATH, SCAN, SINK, STREAM
from benchmarks.report import cell, count, ratio, table

Rows = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
SIDES: Final = (BROKER, PATH, KAFKA, PARQUET)
RATES: Final = (SCAN, STREAM, SINK)
TARGET: Final = 1.0
"""Beside spark-sql-kafka; Parquet is shown only."""

HOW: Final = """\
- *scan*: offset, time and body of every row into `noop`. *stream*: the same in micro-batches until
  all is read (`availableNow`), whole triggers with planning and checkpoint; the first batch is
  left out. *sink*: rows that Spark makes, until the last is acknowledged. *idle*: one message at a
  time into a stream that waits; *batch* is its micro-batch without the wait for the message,
  *end* the time from before the send until the batch is reported as done.
- The same 200-byte bodies everywhere, in two queues or partitions, and as uncompressed Parquet
  files. Penstock's messages have the properties a Java producer gives them besides, Kafka's only
  their value. One Spark session with two cores; the brokers share those with it."""


def compared(rows: Rows) -> list[dict[str, Any]]:
    """Ours beside theirs, by row: how many times as fast, round by round."""
    found: list[dict[str, Any]] = []
    for row, what in ((SCAN, None), (STREAM, None), (SINK, None), (IDLE, "batch_ms")):
        for ours in (BROKER, PATH):
            for theirs, target in ((KAFKA, TARGET), (PARQUET, None)):
                figure = what or "per_second"
                mine = rows.get(row, {}).get(ours, {}).get(figure)
                other = rows.get(row, {}).get(theirs, {}).get(figure)
                if not mine or not other:
                    continue
                # Of times the smaller one is the better one.
                times = ratio(other, mine) if what else ratio(mine, other)
                met = None if target is None else times["median"] >= target
                about = {"row": row, "ours": ours, "beside": theirs}
                found.append({**about, "target": target, "met": met, **times})
    return found


def spark_markdown(result: Mapping[str, Any]) -> str:
    """The section about Spark."""
    plan, rows = result["plan"], result["rows"]
    versions = ", ".join(f"{name} {found}" for name, found in result["versions"].items())
    parts = [
        "## Spark",
        f"{versions}. {plan['messages']:,} rows, {plan['messages'] // plan['batches']:,} a"
        f" micro-batch, {plan['written']:,} into a sink; {plan['rounds']} rounds in turn.",
        HOW,
    ]
    spark, connector = result["versions"].get("spark"), result["versions"].get(KAFKA)
    if connector and connector != spark:
        parts.append(
            f"The connector is that of Spark {connector}, used with Spark {spark}: the newest that"
            " was published when its hashes were taken."
        )
    if rows:
        parts += [_rates(rows), _costs(rows), "![Spark](peers-spark.svg)"]
    if beside := compared(rows):
        parts.append(_compared(beside))
    return "\n\n".join(parts)


def _rates(rows: Rows) -> str:
    head = ["Rows a second", *RATES, "idle: batch, ms", "idle: end, ms"]
    lines = [
        [
            side,
            *(cell(rows.get(row, {}).get(side, {}).get("per_second")) for row in RATES),
            cell(rows.get(IDLE, {}).get(side, {}).get("batch_ms")),
            cell(rows.get(IDLE, {}).get(side, {}).get("send_to_end_ms")),
        ]
        for side in SIDES
    ]
    return table(head, lines)


def _costs(rows: Rows) -> str:
    costly = (SCAN, SINK)
    lines = [
        [
            side,
            *(
                f"{cell(found.get('spark_microseconds'))}; {cell(found.get('server_microseconds'))}"
                for row in costly
                if (found := rows.get(row, {}).get(side, {})) is not None
            ),
        ]
        for side in SIDES
    ]
    return table(["Microseconds of CPU a row: Spark; server", *costly], lines)


def _compared(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        [
            f"{one['row']}, {one['ours']}",
            one["beside"],
            f"{count(one['median'])} ({count(one['low'])} to {count(one['high'])})",
            "shown only" if one["target"] is None else f"{one['target']:g}",
            "-" if one["met"] is None else "yes" if one["met"] else "no",
        ]
        for one in found
    ]
    return table(["Ours", "beside", "times as fast", "target", "met"], lines)
