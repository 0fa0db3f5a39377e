"""``redrive``: repairs dead letters, sends each once, and writes an audit.

The audit is a directory of Parquet, with one folder a run:

    AUDIT/run=20261116T101500123-1a2b3c4d/*.parquet  a row for each letter of the run
    AUDIT/_penstock/run-....started.json             its user, time and group
    AUDIT/_penstock/run-....finished.json            all its rows are written

Whether a letter was redriven is not looked up in the audit but at the broker, by the properties of
the copy. So a run that was killed sends nothing twice when it is repeated, and its rows are written
from the copies it left.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

import orjson

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.client.producing.outgoing import checked_topic
from penstock.errors import InvalidArgument, StoreDamaged
from penstock.model import MessageQueue
from penstock.model.names import Redrive, dead_letter_topic, retry_topic
from penstock.spark.pipelines.dead_letters import pending_spans
from penstock.spark.pipelines.files import Files, open_files
from penstock.spark.pipelines.pacing import check_rate
from penstock.spark.pipelines.progress import Progress, silent
from penstock.spark.pipelines.redrive_task import (
    LETTER_COLUMNS,
    Audit,
    Outcome,
    Redriver,
    Repair,
    record_schema,
)
from penstock.spark.pipelines.replay import new_replay_id
from penstock.spark.pipelines.spans import read_spans, topic_spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRIVATE = "_penstock"
_STARTED = re.compile(r"run-(.+)\.started\.json")
_PLACE = ["broker", "queue_id", "offset"]
_DONE = frozenset({Outcome.REDRIVEN, Outcome.ALREADY})


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """The result of a run of `redrive`."""

    run: str
    group: str
    sent_to: str
    letters: int
    redriven: int
    """Copies that were sent; in a dry run: that would be sent."""
    skipped: int
    failed: int
    already: int
    """Redriven by an earlier run, or by ``penstock dlq redrive``."""
    gone: int
    details: tuple[tuple[str, int], ...]
    """The reasons of failures, with their counts."""
    dry_run: bool
    seconds: float


def redrive(
    letters: DataFrame,
    *,
    group: str,
    audit: str | os.PathLike[str] | None,
    repair: Repair | None = None,
    to: str | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    by: str | None = None,
    namesrv: str | Iterable[str] | None = None,
    progress: Progress = silent,
    **keywords: Unpack[AccessKeywords],
) -> RedriveResult:
    """Send dead letters to their group again, each once, and write an audit.

    ``letters`` are rows of `dead_letters`, filtered and changed as you like. They need ``broker``,
    ``queue_id`` and ``offset``; ``body``, ``keys``, ``tags`` and ``properties`` are sent as they
    are in the row. A letter with two rows, as after a join, is sent once, from one of them.
    ``repair`` is called for each letter on the executors and may change or skip it. Copies are sent
    to the group's retry topic, where no other group sees them, or to topic ``to``.

    A letter that was redriven before, by this or any other tool, is never sent again, and a run
    that was killed can simply be repeated. ``audit`` is a directory with a row for each letter: its
    outcome, the user (``by``, else the user's name and machine) and the time; `redrive_audit` reads
    it. A ``dry_run`` does everything but send, and needs no audit.
    """
    began = time.monotonic()
    spark = letters.sparkSession
    check_rate(rate)
    if to is not None:
        checked_topic(to)
    _check_columns(letters)
    access = ClusterAccess.of(namesrv, **keywords)
    author = by or f"{getpass.getuser()}@{socket.gethostname()}"
    run = new_replay_id()
    letters = _once_each(letters)
    total = letters.count()
    work = Redriver(access, group, to, repair, run, author, rate, dry_run)
    progress("redriving", 0, total)
    if dry_run:
        return _result(work, _collected(_worked(letters, work)), began)
    if audit is None:
        raise InvalidArgument(
            "a redrive without an audit", expected="audit=DIR, a directory for the audit"
        )
    files = open_files(audit, spark)
    with files.locked(PRIVATE):
        _finish_killed_runs(spark, access, files)
        _refuse_foreign(files)
        files.create(_record_name(run, "started"), _started(work, total))
        _worked(letters, work).write.parquet(f"{files.root}/run={run}")
        records = _collected(_rows(spark, files, run))
        with Admin(**access.as_keywords()) as admin:
            _settle(admin, group, records)
        files.create(_record_name(run, "finished"), orjson.dumps({"letters": len(records)}))
    progress("redriving", total, total)
    return _result(work, records, began)


def redrive_audit(spark: SparkSession, directory: str | os.PathLike[str]) -> DataFrame:
    """Every letter that `redrive` processed with this audit directory.

    Columns: ``run``, ``by``, ``at``, ``consumer_group``, where the letter is (``broker``,
    ``queue_id``, ``offset``) and its ids, ``reason`` and ``attempts``, ``outcome`` with ``detail``,
    ``sent_to`` and ``copy_id``.
    """
    from pyspark.sql import functions as F

    files = open_files(directory, spark)
    runs = [name.removeprefix("run=") for name in files.names("") if name.startswith("run=")]
    rows = spark.createDataFrame([], record_schema()).withColumn("run", F.lit(""))
    for run in runs:
        if files.exists(f"run={run}/_SUCCESS"):
            rows = rows.union(_rows(spark, files, run).withColumn("run", F.lit(run)))
    return rows.select("run", *record_schema().names)


# ----------------------------------------------------------------------------------------- a run


def _once_each(letters: DataFrame) -> DataFrame:
    """One row a letter: two tasks would not see each other's copies, nor one task its own.

    Partitioned by range, because executors read neighbouring letters together.
    """
    chosen = letters.select(*(name for name in LETTER_COLUMNS if name in letters.columns))
    return chosen.repartitionByRange(*_PLACE).dropDuplicates(_PLACE)


def _worked(letters: DataFrame, work: Redriver) -> DataFrame:
    if work.rate is not None:
        letters = letters.coalesce(1)
    # Oldest first, in the order of the queue.
    ordered = letters.sortWithinPartitions(*_PLACE)
    return ordered.mapInArrow(work, record_schema())


def _rows(spark: SparkSession, files: Files, run: str) -> DataFrame:
    return spark.read.schema(record_schema()).parquet(f"{files.root}/run={run}")


def _collected(records: DataFrame) -> list[dict[str, Any]]:
    wanted = records.select("broker", "queue_id", "offset", "outcome", "detail")
    return [row.asDict() for row in wanted.collect()]


def _check_columns(letters: DataFrame) -> None:
    for name in _PLACE:
        if name not in letters.columns:
            raise InvalidArgument(
                f"the letters have no column {name!r}",
                expected="rows of penstock.spark.dead_letters, with broker, queue_id and offset",
            )


def _settle(admin: Admin, group: str, records: list[dict[str, Any]]) -> None:
    """Move the group's settled offsets past its redriven letters, up to the first other one."""
    done: dict[tuple[str, int], set[int]] = {}
    for record in records:
        if record["outcome"] in _DONE:
            queue = record["broker"], record["queue_id"]
            done.setdefault(queue, set()).add(record["offset"])
    marks = {}
    for span in pending_spans(admin, group):
        mark = span.start
        while mark in done.get(span.queue, ()):
            mark += 1
        if mark > span.start:
            marks[MessageQueue(dead_letter_topic(group), span.broker, span.queue_id)] = mark
    if marks:
        admin.settle_dead_letters(group, marks)


def _result(work: Redriver, records: list[dict[str, Any]], began: float) -> RedriveResult:
    counts: dict[str, int] = {}
    details: dict[str, int] = {}
    for record in records:
        counts[record["outcome"]] = counts.get(record["outcome"], 0) + 1
        if record["detail"]:
            details[record["detail"]] = details.get(record["detail"], 0) + 1
    return RedriveResult(
        work.run,
        work.group,
        work.to or retry_topic(work.group),
        len(records),
        counts.get(Outcome.REDRIVEN, 0),
        counts.get(Outcome.SKIPPED, 0),
        counts.get(Outcome.FAILED, 0),
        counts.get(Outcome.ALREADY, 0),
        counts.get(Outcome.GONE, 0),
        tuple(sorted(details.items(), key=lambda item: (-item[1], item[0]))),
        work.dry_run,
        time.monotonic() - began,
    )


# ------------------------------------------------------------------------------------- the audit


def _record_name(run: str, what: str) -> str:
    return f"{PRIVATE}/run-{run}.{what}.json"


def _started(work: Redriver, letters: int) -> bytes:
    return orjson.dumps(
        {
            "run": work.run,
            "by": work.by,
            "at_ms": int(datetime.now(UTC).timestamp() * 1000),
            "group": work.group,
            "sent_to": work.to or retry_topic(work.group),
            "letters": letters,
        },
        option=orjson.OPT_INDENT_2,
    )


def _refuse_foreign(files: Files) -> None:
    foreign = [name for name in files.names("") if not name.startswith(("_", ".", "run="))]
    if foreign:
        raise InvalidArgument(
            f"directory {files} is not an audit, but holds {foreign[0]!r}",
            expected="an empty directory, one that does not exist, or an audit",
        )


def _finish_killed_runs(spark: SparkSession, access: ClusterAccess, files: Files) -> None:
    """Write the audit rows of runs that were killed before they could."""
    names = files.names(PRIVATE)
    for name in names:
        found = _STARTED.fullmatch(name)
        if found is None or f"run-{found[1]}.finished.json" in names:
            continue
        run = found[1]
        if not files.exists(f"run={run}/_SUCCESS"):
            try:
                started = orjson.loads(files.read(f"{PRIVATE}/{name}"))
                copies = _copies_of(spark, access, run, started)
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise StoreDamaged(
                    f"the audit record {files}/{PRIVATE}/{name} cannot be read: {error!r}",
                    hint="restore it from a copy, or move it away",
                ) from error
            files.delete(f"run={run}")
            copies.write.parquet(f"{files.root}/run={run}")
        with contextlib.suppress(FileExistsError):
            files.create(_record_name(run, "finished"), orjson.dumps({"found_later": True}))


def _copies_of(
    spark: SparkSession, access: ClusterAccess, run: str, started: dict[str, Any]
) -> DataFrame:
    """The rows that a killed run would have written, from the properties of its copies."""
    from pyspark.sql import functions as F

    from penstock.spark.source.columns import spark_schema

    topic = str(started["sent_to"])
    with Admin(**access.as_keywords()) as admin:
        # Clocks differ; an hour is more than enough, and cheap.
        since = int(started["at_ms"]) - 3_600_000
        known = topic in admin.topics(internal=True)
        spans = topic_spans(admin, topic, since, None) if known else []
    if spans:
        copies = read_spans(spark, access, topic, spans)
    else:
        copies = spark.createDataFrame([], spark_schema())
    properties = F.col("properties")
    values = {
        "by": properties[Audit.BY],
        "at": F.col("store_timestamp"),
        "consumer_group": F.lit(str(started["group"])),
        "letter_id": properties[Redrive.FROM],
        "msg_id": F.col("msg_id"),
        "outcome": F.lit(Outcome.REDRIVEN),
        "detail": F.lit("found after the run was killed"),
        "sent_to": F.lit(topic),
    }
    # A copy that failed and was retried has the same properties, but a higher reconsume_times.
    return copies.where((properties[Audit.RUN] == run) & (F.col("reconsume_times") == 0)).select(
        *(
            values.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in record_schema().fields
        )
    )
