"""``archive``: writes a topic to Parquet by day, each message once, over any number of runs.

The queues are read from the end of the archive to their current end, in chunks. A chunk is staged,
read back and compared with its offsets, and then committed as `state` describes; a crash loses at
most the work of one chunk, and no message is archived twice. Small files are then compacted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from penstock.admin.blocking import Admin
from penstock.admin.reports import QueueRange
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.model import MessageQueue
from penstock.model.names import SPARK_GROUP
from penstock.protocol.validation import check_topic
from penstock.spark.pipelines.archive.directory import ArchiveDirectory, opened
from penstock.spark.pipelines.archive.reading import read_files, store_day
from penstock.spark.pipelines.archive.staging import (
    Staged,
    check_asked,
    check_gone,
    check_shared,
    doubtful,
    holes,
)
from penstock.spark.pipelines.archive.state import DataFile, compactions, plan
from penstock.spark.pipelines.files import Files, open_files
from penstock.spark.pipelines.progress import Progress, silent
from penstock.spark.pipelines.spans import Queue, Span, chunks, read_spans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ROWS_PER_COMMIT = 1_000_000
TARGET_FILE_BYTES = 128 << 20
NEWEST_DAY_FILES = 16


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of a run of `archive`, and what the archive holds now."""

    topic: str
    directory: str
    archived: int
    """Messages this run added."""
    total: int
    files: int
    days: int
    compacted: int
    """Small files that were compacted."""
    gaps: tuple[Span, ...]
    """Messages that were gone; empty unless that was allowed."""
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
    delta: bool = False,
    iceberg: str | None = None,
    fail_on_data_loss: bool = True,
    progress: Progress = silent,
    **keywords: Unpack[AccessKeywords],
) -> ArchiveResult:
    """Add the new messages of ``topic`` since the last run to the archive in ``directory``.

    The directory gets one folder for each day of store time (UTC) with all columns of the source;
    ``spark.read.parquet`` and every other Parquet reader can read it, and `read_archive` sees a
    consistent archive even during a run. Run it as often as you like: a message is archived once,
    also after a run was killed. If the broker deleted messages before they were archived, the run
    fails, or with ``fail_on_data_loss=False`` records the gap and continues; messages that the
    broker still has are never recorded as a gap.

    ``directory`` is a path that driver and executors share, or a URL of any file system that
    Spark knows. Only one run at a time may work on an archive. ``rows_per_commit`` limits what a
    crash can undo. ``compact`` merges the small files of a day, up to ``target_file_bytes``; the
    newest day, which still grows, is compacted when it has ``newest_day_files`` of them.

    With ``delta`` the same files are also a table of Delta Lake in ``directory``; with ``iceberg``,
    as ``"CATALOG.NAMESPACE.TABLE"`` of a catalog that pyiceberg is set up for, a table of Iceberg
    (extra ``[iceberg]``). One run that says so is enough: later ones keep the tables up to date.
    """
    began = time.monotonic()
    check_topic(topic)
    _at_least_one("rows_per_commit", rows_per_commit)
    _at_least_one("target_file_bytes", target_file_bytes)
    _at_least_one("newest_day_files", newest_day_files)
    access = ClusterAccess.of(namesrv, **keywords)
    files = open_files(directory, spark)
    with Admin(**access.as_keywords()) as admin:
        # For an unknown topic no directory may be created.
        known = admin.topic_stats(topic)
    with opened(files, topic) as target:
        target.make_tables(delta=delta, iceberg=iceberg)
        # Asked before the offsets: if the topic is deleted meanwhile, the next run finds out.
        epochs = _epochs(access, topic, known)
        with Admin(**access.as_keywords()) as admin:
            # Read again: another run may have ended meanwhile, and archived more.
            ranges = admin.topic_stats(topic)
        work = plan(target.state, ranges, epochs=epochs, fail_on_data_loss=fail_on_data_loss)
        target.state = target.state.with_epochs(epochs)
        if work.gaps:
            _record_gaps(target, work.gaps)
        archived = done = 0
        gaps = list(work.gaps)
        progress("archiving", 0, work.count)
        for chunk in chunks(work.spans, rows_per_commit):
            added, lost = _archive_chunk(spark, access, target, chunk, fail_on_data_loss)
            archived += added
            gaps += lost
            done += sum(span.count for span in chunk)
            progress("archiving", done, work.count)
        if not target.state.version:
            # Also for a topic without messages, so that reading it gives no rows, and no error.
            target.commit(target.state.after_chunk((), (), ()))
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
        archived,
        state.rows,
        len(state.files),
        len({file.day for file in state.files}),
        compacted,
        tuple(gaps),
        time.monotonic() - began,
    )


def _epochs(access: ClusterAccess, topic: str, ranges: Iterable[QueueRange]) -> dict[Queue, int]:
    """When the topic was last deleted, as the broker of each queue answers."""
    from penstock.spark.source.cluster import Cluster

    queues = [MessageQueue(topic, held.broker_name, held.queue_id) for held in ranges]
    found = Cluster(access, access.long_name(SPARK_GROUP)).epochs(queues)
    return {(queue.broker_name, queue.queue_id): epoch for queue, epoch in found.items()}


# ------------------------------------------------------------------------------------- the chunks


def _archive_chunk(
    spark: SparkSession,
    access: ClusterAccess,
    target: ArchiveDirectory,
    chunk: Sequence[Span],
    fail_on_data_loss: bool,
) -> tuple[int, list[Span]]:
    """Returns the number of added messages, and the gaps."""
    topic = target.state.topic
    rows = read_spans(
        spark, access, topic, chunk, failOnDataLoss="true" if fail_on_data_loss else "false"
    )
    found = _staged(spark, target, rows)
    check_asked(topic, chunk, found)
    count = sum(file.rows for file in found)
    lost: list[Span] = []
    if count < sum(span.count for span in chunk):
        lost = _lost(spark, access, target, chunk, found)
    if lost and fail_on_data_loss:
        raise NotFound(
            f"{sum(gap.count for gap in lost)} messages of topic {topic!r} were deleted by the "
            f"broker while they were being archived",
            expected="all of them",
            hint="fail_on_data_loss=False (--allow-gaps) records the gap and goes on",
        )
    new, moves = _placed(found, target.state.version + 1)
    target.commit(target.state.after_chunk(chunk, new, moves, lost))
    return count, lost


def _staged(spark: SparkSession, target: ArchiveDirectory, rows: DataFrame) -> list[Staged]:
    """Stage rows, and check that all of them are there."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    staging = target.new_staging()
    counted = Observation()
    with _times_in_microseconds(spark):
        (
            rows.observe(counted, F.count(F.lit(1)).alias("written"))
            .withColumn("day", store_day())
            .write.partitionBy("day")
            .option("compression", "zstd")
            .parquet(f"{target.files.root}/{staging}")
        )
    found = _read_back(spark, target.files, staging)
    check_shared(str(target.files), int(counted.get["written"]), found)
    return found


@contextlib.contextmanager
def _times_in_microseconds(spark: SparkSession) -> Iterator[None]:
    """Write times in Parquet's own type, and not in the old one that Spark chooses.

    That one has no time zone, so Iceberg refuses it, and no statistics that let readers skip rows.
    """
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(name, before or "INT96")


def _file_name() -> Column:
    from pyspark.sql import functions as F

    return F.col("_metadata.file_name").alias("name")


def _read_back(spark: SparkSession, files: Files, staging: str) -> list[Staged]:
    """The staged files as they are read back; only these are committed."""
    from pyspark.sql import functions as F

    from penstock.spark.source.columns import spark_schema

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
        # A task writes files of the same name for all its days.
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
            Staged(
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


def _lost(
    spark: SparkSession,
    access: ClusterAccess,
    target: ArchiveDirectory,
    chunk: Sequence[Span],
    found: Sequence[Staged],
) -> list[Span]:
    """The messages of a chunk that the broker no longer has; an error if it still has them."""
    from penstock.spark.source.columns import spark_schema

    topic = target.state.topic
    place = spark_schema(("broker", "queue_id", "offset"))
    paths = [f"{target.files.root}/{file.path}" for file in found]
    there = _stretches(spark.read.schema(place).parquet(*paths)) if paths else []
    missing = holes(chunk, there)
    with Admin(**access.as_keywords()) as admin:
        unsure = doubtful(topic, missing, admin.topic_stats(topic))
    if unsure:
        queues = {hole.queue for hole in unsure}
        again = read_spans(
            spark,
            access,
            topic,
            [span for span in chunk if span.queue in queues],
            failOnDataLoss="false",
            columns="broker,queue_id,offset",
        )
        check_gone(topic, unsure, _stretches(again))
    return missing


def _stretches(rows: DataFrame) -> list[Span]:
    """The offsets of the rows, as spans without gaps."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    queue = Window.partitionBy("broker", "queue_id").orderBy("offset")
    # Offset minus row number is constant until an offset is missing.
    numbered = rows.withColumn("stretch", F.col("offset") - F.row_number().over(queue))
    found = numbered.groupBy("broker", "queue_id", "stretch").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    return [Span(r["broker"], r["queue_id"], r["first"], r["last"] + 1) for r in found.collect()]


def _placed(found: Sequence[Staged], version: int) -> tuple[list[DataFile], list[tuple[str, str]]]:
    """The final paths of staged files, and the moves to them."""
    new, moves = [], []
    for number, file in enumerate(found):
        path = f"day={file.day}/part-{version:012d}-{number:04d}.parquet"
        times = file.from_ms, file.to_ms
        new.append(DataFile(path, file.day, file.rows, file.bytes, *times, file.spans))
        moves.append((file.path, path))
    return new, moves


def _record_gaps(target: ArchiveDirectory, gaps: Sequence[Span]) -> None:
    """Commit the gaps at once, so that the next chunks begin where the queue does."""
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
    # By range, so that each file has one span of each queue, in the order of the queue.
    ordered = rows.repartitionByRange(parts, "store_timestamp").sortWithinPartitions(
        "broker", "queue_id", "offset"
    )
    found = _staged(spark, target, ordered)
    before, after = sum(file.rows for file in group), sum(file.rows for file in found)
    if before != after:
        raise StoreDamaged(
            f"{after} rows came out of {len(group)} files of day {group[0].day} in {target.files}",
            expected=f"{before}, as the archive's state says",
            hint="the files were changed by another program: restore them from a copy",
        )
    new, moves = _placed(found, target.state.version + 1)
    target.commit(target.state.after_compaction(group, new, moves))


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidArgument(f"{name} is {value}", expected="1 or more")
