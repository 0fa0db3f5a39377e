"""``archive``: a topic to Parquet by day, once each message, however often it is run.

The broker's queues are read from where the archive ends to where they end now, in chunks. A chunk
is written aside, read back and counted against its offsets, and then committed as
`archive_state` describes; only one chunk's work can be lost to a crash, and nothing ever counts
twice. Small files are then written together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.protocol.validation import check_topic
from penstock.spark.pipelines.archive_directory import ArchiveDirectory, opened
from penstock.spark.pipelines.archive_state import (
    DataFile,
    Span,
    chunks,
    compactions,
    plan,
)
from penstock.spark.pipelines.cluster import Access, Cluster
from penstock.spark.pipelines.files import Files, open_files
from penstock.spark.pipelines.progress import Progress, silent
from penstock.spark.pipelines.reading import read_files, read_spans, store_day

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ROWS_PER_COMMIT = 1_000_000
TARGET_FILE_BYTES = 128 << 20
NEWEST_DAY_FILES = 16


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What a run of `archive` did, and what the archive holds now."""

    topic: str
    directory: str
    archived: int
    """Messages this run added."""
    total: int
    files: int
    days: int
    compacted: int
    """Small files that were written together."""
    gaps: tuple[Span, ...]
    """What this run found gone; empty unless that was allowed."""
    seconds: float


def archive(
    spark: SparkSession,
    topic: str,
    directory: str | os.PathLike[str],
    *,
    namesrv: str | Iterable[str] | None = None,
    rows_per_commit: int = ROWS_PER_COMMIT,
    compact: bool = True,
    target_file_bytes: int = TARGET_FILE_BYTES,
    newest_day_files: int = NEWEST_DAY_FILES,
    fail_on_data_loss: bool = True,
    progress: Progress = silent,
    **access: Unpack[Access],
) -> ArchiveResult:
    """Add what ``topic`` has gained since the last run to the archive in ``directory``.

    The directory gets one folder for each day of store time (UTC) with all columns of the source;
    ``spark.read.parquet`` and every other Parquet reader take it as it is, and `read_archive`
    sees a whole archive even while a run is at work. Run it as often as you like: a message is
    archived once, also after a run was killed. Where the broker deleted messages before they were
    archived the run fails, or with ``fail_on_data_loss=False`` records the gap and goes on.

    ``directory`` is a path that driver and executors share, or a URL of any file system that
    Spark knows. One run at a time works on an archive. ``rows_per_commit`` bounds what a crash
    can undo. ``compact`` writes the small files of a day together, up to ``target_file_bytes``; the
    newest day, which still grows, waits until it has ``newest_day_files`` of them.
    """
    began = time.monotonic()
    check_topic(topic)
    _at_least_one("rows_per_commit", rows_per_commit)
    _at_least_one("target_file_bytes", target_file_bytes)
    _at_least_one("newest_day_files", newest_day_files)
    cluster = Cluster.of(namesrv, access)
    files = open_files(directory, spark)
    with cluster.admin() as admin:
        # A topic that nobody knows must leave no directory behind.
        admin.topic_stats(topic)
    with opened(files, topic) as target:
        with cluster.admin() as admin:
            # Asked only now: another run may have ended since, and got further than an old answer.
            ranges = admin.topic_stats(topic)
        work = plan(target.state, ranges, fail_on_data_loss=fail_on_data_loss)
        if work.gaps:
            _record_gaps(target, work.gaps)
        done = 0
        progress("archiving", 0, work.count)
        for chunk in chunks(work.spans, rows_per_commit):
            _archive_chunk(spark, cluster, target, chunk, fail_on_data_loss)
            done += sum(span.count for span in chunk)
            progress("archiving", done, work.count)
        compacted = 0
        if compact:
            chosen = compactions(
                target.state.files, target_bytes=target_file_bytes, newest_after=newest_day_files
            )
            compacted = _compact(spark, target, chosen, target_file_bytes, progress)
        state = target.state
    return ArchiveResult(
        topic,
        str(files),
        done,
        state.rows,
        len(state.files),
        len({file.day for file in state.files}),
        compacted,
        work.gaps,
        time.monotonic() - began,
    )


# ------------------------------------------------------------------------------------- the chunks


def _archive_chunk(
    spark: SparkSession,
    cluster: Cluster,
    target: ArchiveDirectory,
    chunk: Sequence[Span],
    fail_on_data_loss: bool,
) -> None:
    topic = target.state.topic
    rows = read_spans(
        spark, cluster, topic, chunk, failOnDataLoss="true" if fail_on_data_loss else "false"
    )
    staging = target.new_staging()
    _write(rows, f"{target.files.root}/{staging}")
    found = _read_back(spark, target.files, staging)
    lost = _check(topic, chunk, found, fail_on_data_loss)
    new, moves = _placed(found, target.state.version + 1)
    target.commit(target.state.after_chunk(chunk, new, moves, lost))


def _write(rows: DataFrame, path: str) -> None:
    (
        rows.withColumn("day", store_day())
        .write.partitionBy("day")
        .option("compression", "zstd")
        .parquet(path)
    )


def _file_name() -> Column:
    from pyspark.sql import functions as F

    return F.col("_metadata.file_name").alias("name")


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file that was written aside, and what is in it."""

    path: str
    day: str
    bytes: int
    spans: tuple[Span, ...]
    """From the first to the last offset of each queue; `rows` may be fewer."""
    queue_rows: tuple[int, ...]
    from_ms: int
    to_ms: int

    @property
    def rows(self) -> int:
        return sum(self.queue_rows)


def _read_back(spark: SparkSession, files: Files, staging: str) -> list[_Staged]:
    """What is really there now: nothing is committed that was not read again."""
    from pyspark.sql import functions as F

    from penstock.spark.columns import spark_schema

    paths = [
        f"{staging}/{day}/{name}"
        for day in files.names(staging)
        if day.startswith("day=")
        for name in files.names(f"{staging}/{day}")
        if name.endswith(".parquet")
    ]
    if not paths:
        return []
    wanted = spark_schema(("broker", "queue_id", "offset", "store_timestamp"))
    rows = (
        spark.read.schema(wanted)
        .parquet(*(f"{files.root}/{path}" for path in paths))
        # A task writes files of one name for all days it meets.
        .groupBy(store_day().cast("string").alias("day"), _file_name(), "broker", "queue_id")
        .agg(
            F.count("*").alias("rows"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.unix_millis(F.min("store_timestamp")).alias("from_ms"),
            F.unix_millis(F.max("store_timestamp")).alias("to_ms"),
        )
        .orderBy("broker", "queue_id")
        .collect()
    )
    of_file: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        of_file.setdefault((row["day"], row["name"]), []).append(row)
    found = []
    for path in paths:
        day, name = path.split("/")[-2].removeprefix("day="), path.rpartition("/")[2]
        mine = of_file.get((day, name), [])
        found.append(
            _Staged(
                path,
                day,
                files.size(path),
                tuple(Span(r["broker"], r["queue_id"], r["first"], r["last"] + 1) for r in mine),
                tuple(int(r["rows"]) for r in mine),
                min((int(r["from_ms"]) for r in mine), default=0),
                max((int(r["to_ms"]) for r in mine), default=0),
            )
        )
    return [file for file in found if file.rows]


def _check(
    topic: str, chunk: Sequence[Span], found: Sequence[_Staged], fail_on_data_loss: bool
) -> list[Span]:
    """Every message of the chunk is there once; what may be lost, and is, is returned."""
    counted: dict[tuple[str, int], int] = {}
    first: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for file in found:
        for span, rows in zip(file.spans, file.queue_rows, strict=True):
            counted[span.queue] = counted.get(span.queue, 0) + rows
            first[span.queue] = min(first.get(span.queue, span.start), span.start)
            last[span.queue] = max(last.get(span.queue, span.end), span.end)
    lost = []
    for span in chunk:
        count = counted.pop(span.queue, 0)
        begins, ends = first.get(span.queue, span.end), last.get(span.queue, span.end)
        where = f"queue {span.queue_id} of topic {topic!r} on broker {span.broker!r}"
        if begins < span.start or ends > span.end or count > span.count:
            raise StoreDamaged(
                f"{count} rows from offset {begins} to {ends} came from {where}",
                expected=f"{span.count} from {span.start} to {span.end}",
            )
        if count == span.count:
            continue
        # Brokers delete from the front; a hole in the middle is never right.
        if fail_on_data_loss or count != span.end - begins:
            raise NotFound(
                f"{count} of {span.count} messages from offset {span.start} of {where} could be "
                f"read",
                expected="all of them",
                hint="if the broker deleted them meanwhile: fail_on_data_loss=False (--allow-gaps)",
            )
        lost.append(Span(span.broker, span.queue_id, span.start, begins))
    if counted:
        raise StoreDamaged(f"rows of queues {sorted(counted)} of topic {topic!r} came unasked")
    return lost


def _placed(found: Sequence[_Staged], version: int) -> tuple[list[DataFile], list[tuple[str, str]]]:
    """Where staged files will stand, and the moves that bring them there."""
    new, moves = [], []
    for number, file in enumerate(found):
        path = f"day={file.day}/part-{version:012d}-{number:04d}.parquet"
        new.append(DataFile(path, file.day, file.rows, file.bytes, file.from_ms, file.to_ms))
        moves.append((file.path, path))
    return new, moves


def _record_gaps(target: ArchiveDirectory, gaps: Sequence[Span]) -> None:
    """Commit what is gone at once, so that the chunks after it begin where the queue does."""
    target.commit(target.state.after_chunk(gaps, (), (), gaps))


# --------------------------------------------------------------------------------- the compaction


def _compact(
    spark: SparkSession,
    target: ArchiveDirectory,
    chosen: Sequence[Sequence[DataFile]],
    target_bytes: int,
    progress: Progress,
) -> int:
    for number, group in enumerate(chosen):
        progress("compacting days", number, len(chosen))
        _compact_day(spark, target, group, target_bytes)
    if chosen:
        progress("compacting days", len(chosen), len(chosen))
    return sum(map(len, chosen))


def _compact_day(
    spark: SparkSession, target: ArchiveDirectory, group: Sequence[DataFile], target_bytes: int
) -> None:
    parts = -(-sum(file.bytes for file in group) // target_bytes)
    rows = read_files(spark, target.files, target.state, group)
    staging = target.new_staging()
    # By range, so that each file has a stretch of each queue, and in the order of the queue.
    ordered = rows.repartitionByRange(parts, "store_timestamp").sortWithinPartitions(
        "broker", "queue_id", "offset"
    )
    _write(ordered, f"{target.files.root}/{staging}")
    found = _read_back(spark, target.files, staging)
    before, after = sum(file.rows for file in group), sum(file.rows for file in found)
    if before != after:
        raise StoreDamaged(
            f"{after} rows came out of {len(group)} files of day {group[0].day} in {target.files}",
            expected=f"{before}, as the archive's state says",
            hint="the files were changed by somebody else: restore them from a copy",
        )
    new, moves = _placed(found, target.state.version + 1)
    target.commit(target.state.after_compaction(group, new, moves))


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidArgument(f"{name} is {value}", expected="1 or more")
