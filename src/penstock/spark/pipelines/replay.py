"""``replay``: sends messages of an archive, a topic or a store to a topic again.

Every copy names its replay and its original message, so that consumers can recognise it, and a
replay that was killed can be finished without sending anything twice.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack

from penstock.admin.blocking import Admin
from penstock.client.arguments import Time, timestamp_ms
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.client.producing.outgoing import checked_topic
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.model.names import Property
from penstock.protocol.validation import check_topic
from penstock.spark.access_options import access_options
from penstock.spark.pipelines.archive.directory import load_existing
from penstock.spark.pipelines.archive.gaps import check_gaps
from penstock.spark.pipelines.archive.reading import overlapping, read_files, store_day
from penstock.spark.pipelines.archive.state import DataFile, State
from penstock.spark.pipelines.files import Files, open_files
from penstock.spark.pipelines.pacing import check_rate, paced, small_batches
from penstock.spark.pipelines.progress import Progress, silent
from penstock.spark.pipelines.spans import Queue, chunks, read_spans, topic_spans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_PER_STEP = 1_000_000
_ID_TIME = re.compile(r"(\d{8}T\d{6})(\d{3})?-")
"""To the millisecond; an id without milliseconds covers its whole second."""


class Replay:
    """Keys of the properties of a replayed copy."""

    ID: Final = "PENSTOCK_REPLAY"
    FROM: Final = "PENSTOCK_REPLAYED_FROM"
    """Topic, broker, queue and offset of the message it is a copy of."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a run of `replay`."""

    replay_id: str
    to: str
    source: str
    matched: int
    """Messages that were selected."""
    sent: int
    """Copies this run sent: none in a dry run, fewer when it finished an earlier one."""
    days: tuple[tuple[str, int], ...]
    """Matches by day of store time in UTC; only of a dry run."""
    dry_run: bool
    seconds: float


class _Step(NamedTuple):
    """A part of the rows, the unit of progress."""

    rows: DataFrame
    weight: int


class _Source(NamedTuple):
    """The messages to replay."""

    name: str
    steps: list[_Step]
    latest_ms: int = 0
    """The latest store time of a message, by the brokers' clocks; 0 if it is not known."""


def replay(
    spark: SparkSession,
    to: str,
    *,
    archive: str | os.PathLike[str] | None = None,
    topic: str | None = None,
    path: str | os.PathLike[str] | None = None,
    start: Time | None = None,
    end: Time | None = None,
    keys: Iterable[str] | None = None,
    tags: str | None = None,
    where: str | Column | None = None,
    rate: float | None = None,
    keep_queue: bool = False,
    dry_run: bool = False,
    replay_id: str | None = None,
    rows_per_step: int = ROWS_PER_STEP,
    fail_on_data_loss: bool = True,
    namesrv: str | Iterable[str] | None = None,
    progress: Progress = silent,
    on_start: Callable[[str], None] | None = None,
    **keywords: Unpack[AccessKeywords],
) -> ReplayResult:
    """Send messages that were sent before to topic ``to`` again.

    They come from an ``archive`` directory, from a ``topic`` of the brokers, or from that topic in
    a store directory (``path``). ``start`` and ``end`` (exclusive) limit their store time; ``keys``
    keeps messages with one of these keys, ``tags`` is an expression such as ``"paid || refunded"``,
    ``where`` is any condition on the columns. Body, keys, tags, sharding key and your own
    properties are kept; delays are not. Messages of one queue are sent in their order: those with a
    sharding key to the queue of that key, others to the queue of the same broker and number, or to
    another one if ``to`` does not have it. With ``keep_queue`` all go to the queue of the same
    broker and number, and it is an error if there is none.

    ``rate`` is a limit in messages a second. ``dry_run`` only counts. A replay that was killed is
    finished by passing its ``replay_id``: what it sent is not sent again, nor is anything that was
    stored after it began. ``on_start`` is called with that id before the first message is sent.

    Messages that are gone, or were before they could be archived, are an error before anything is
    sent, or where it is noticed; with ``fail_on_data_loss=False`` they are left out with a warning.
    """
    began = time.monotonic()
    checked_topic(to)
    check_rate(rate)
    if replay_id is not None and not replay_id.strip():
        raise InvalidArgument("replay_id is blank", expected="the id a replay was given")
    access = ClusterAccess.of(namesrv, **keywords)
    bounds = _bounds(start, end)
    condition = _condition(bounds, keys, tags, where)
    source = _source(
        spark,
        access,
        archive,
        topic,
        path,
        bounds,
        rows_per_step,
        fail_on_data_loss=fail_on_data_loss,
    )
    chosen = [_Step(step.rows.where(condition), step.weight) for step in source.steps]
    total = sum(step.weight for step in chosen)
    before = 0
    if replay_id is not None:
        done = _already_sent(spark, access, to, replay_id)
        before = done.places.count()
        chosen = [_Step(_unsent(step.rows, replay_id, done), step.weight) for step in chosen]
    if dry_run:
        days = _count_days(chosen, total, progress)
        matched = sum(count for _, count in days)
        return ReplayResult("", to, source.name, matched, 0, days, True, time.monotonic() - began)
    chosen_id = replay_id or new_replay_id(max(source.latest_ms, time.time_ns() // 1_000_000))
    if on_start is not None:
        on_start(chosen_id)
    sent = 0
    reached = 0
    progress("replaying", 0, total)
    with small_batches(spark, rate):
        for step in chosen:
            copies = _copies(step.rows, chosen_id, keep_queue)
            sent += _send(paced(copies, rate), access, to, keep_queue)
            reached += step.weight
            progress("replaying", reached, total)
    return ReplayResult(
        chosen_id, to, source.name, sent + before, sent, (), False, time.monotonic() - began
    )


def new_replay_id(began_ms: int | None = None) -> str:
    """An id for a replay, with the time it began; by default now."""
    if began_ms is None:
        began_ms = time.time_ns() // 1_000_000
    began = datetime.fromtimestamp(began_ms // 1000, UTC)
    return f"{began:%Y%m%dT%H%M%S}{began_ms % 1000:03d}-{uuid.uuid4().hex[:8]}"


def replay_until_ms(replay_id: str) -> int | None:
    """The first moment that a replay leaves out, from its id; None if the id has no time."""
    found = _ID_TIME.match(replay_id)
    if found is None:
        return None
    try:
        began = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(began.timestamp()) * 1000 + (1000 if found[2] is None else int(found[2]) + 1)


# --------------------------------------------------------------------------------------- sources


class _Bounds(NamedTuple):
    start_ms: int | None
    end_ms: int | None


def _bounds(start: Time | None, end: Time | None) -> _Bounds:
    bounds = _Bounds(
        None if start is None else timestamp_ms(start), None if end is None else timestamp_ms(end)
    )
    if None not in bounds and bounds.start_ms >= bounds.end_ms:  # type: ignore[operator]
        raise InvalidArgument(
            f"from {start} to {end} is an empty time span", expected="start before end"
        )
    return bounds


def _source(
    spark: SparkSession,
    access: ClusterAccess,
    archive: str | os.PathLike[str] | None,
    topic: str | None,
    path: str | os.PathLike[str] | None,
    bounds: _Bounds,
    rows_per_step: int,
    *,
    fail_on_data_loss: bool,
) -> _Source:
    if archive is not None and topic is None and path is None:
        files = open_files(archive, spark)
        state = load_existing(files)
        check_gaps(state, str(files), *bounds, fail_on_data_loss=fail_on_data_loss)
        return _from_archive(spark, files, state, bounds, rows_per_step)
    fails = str(fail_on_data_loss).lower()
    if archive is None and topic is not None:
        check_topic(topic)
        if path is not None:
            return _from_store(spark, access, topic, path, fails)
        return _from_topic(spark, access, topic, bounds, rows_per_step, fails)
    raise InvalidArgument(
        "it is not clear what to replay",
        expected="archive=DIR, topic=NAME, or topic=NAME with path=DIR",
    )


def _from_archive(
    spark: SparkSession, files: Files, state: State, bounds: _Bounds, rows_per_step: int
) -> _Source:
    found = overlapping(state.files, bounds.start_ms, bounds.end_ms)
    steps = [
        _Step(read_files(spark, files, state, part), sum(file.rows for file in part))
        for part in _portions(found, rows_per_step)
    ]
    latest = max((file.to_ms for file in found), default=0)
    return _Source(f"archive {files} of topic {state.topic}", steps, latest)


def _portions(files: Sequence[DataFile], rows: int) -> Iterator[list[DataFile]]:
    """Neighbours in time, of at most ``rows`` rows together, one file at least.

    Only a portion is sorted. So files that do not follow each other in every queue, as after a
    clock was set back, are in one portion, also if that is larger.
    """
    part: list[DataFile] = []
    for at, file in enumerate(files):
        is_full = sum(one.rows for one in part) + file.rows > rows
        if part and is_full and _follow(files[:at], files[at:]):
            yield part
            part = []
        part.append(file)
    if part:
        yield part


def _follow(before: Sequence[DataFile], after: Sequence[DataFile]) -> bool:
    """Whether all messages of some files come before those of others, in every queue."""
    reached: dict[Queue, int] = {}
    for span in (span for file in before for span in file.spans):
        reached[span.queue] = max(span.end, reached.get(span.queue, 0))
    return all(span.start >= reached.get(span.queue, 0) for file in after for span in file.spans)


def _from_topic(
    spark: SparkSession,
    access: ClusterAccess,
    topic: str,
    bounds: _Bounds,
    rows_per_step: int,
    fails: str,
) -> _Source:
    with Admin(**access.as_keywords()) as admin:
        spans = topic_spans(admin, topic, bounds.start_ms, bounds.end_ms)
        # Read after the spans, so that none of their messages is later.
        latest = max((row.last_timestamp for row in admin.topic_stats(topic)), default=0)
    steps = [
        _Step(
            read_spans(spark, access, topic, part, failOnDataLoss=fails),
            sum(span.count for span in part),
        )
        for part in chunks(spans, rows_per_step)
    ]
    return _Source(f"topic {topic}", steps, latest)


def _from_store(
    spark: SparkSession, access: ClusterAccess, topic: str, path: str | os.PathLike[str], fails: str
) -> _Source:
    rows = (
        spark.read.format("penstock")
        # For the namespace: a store has the brokers' names of topics.
        .options(**access_options(access))
        .option("path", os.fspath(path))
        .option("topic", topic)
        .option("failOnDataLoss", fails)
    )
    return _Source(f"topic {topic} of store {os.fspath(path)}", [_Step(rows.load(), 1)])


# ----------------------------------------------------------------------------------- the messages


def _condition(
    bounds: _Bounds,
    keys: Iterable[str] | None,
    tags: str | None,
    where: str | Column | None,
) -> Column:
    from pyspark.sql import functions as F

    from penstock.protocol.filters.tags import parse_tags

    condition = F.lit(True)
    if bounds.start_ms is not None:
        condition &= F.unix_millis("store_timestamp") >= bounds.start_ms
    if bounds.end_ms is not None:
        condition &= F.unix_millis("store_timestamp") < bounds.end_ms
    if keys is not None:
        if isinstance(keys, str):
            raise InvalidArgument(f"keys is the text {keys!r}", expected="a list of keys")
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            raise InvalidArgument("keys is empty", expected="at least one key, or None for all")
        condition &= F.arrays_overlap("keys", F.array(*map(F.lit, wanted)))
    exact = None if tags is None else parse_tags(tags).tags
    if exact:
        condition &= F.col("tags").isin(sorted(exact))
    if where is not None:
        condition &= F.expr(where) if isinstance(where, str) else where
    return condition


def _place() -> Column:
    """The identity of a row's message, as text."""
    from pyspark.sql import functions as F

    return F.concat_ws("/", "topic", "broker", "queue_id", "offset")


def _copies(rows: DataFrame, replay_id: str, keep_queue: bool) -> DataFrame:
    """The rows for the sink, each queue in one task and in its order."""
    from pyspark.sql import functions as F

    own = F.map_filter(
        F.coalesce("properties", F.create_map().cast("map<string,string>")),
        lambda key, _: ~key.isin(Replay.ID, Replay.FROM),
    )
    named = F.create_map(F.lit(Replay.ID), F.lit(replay_id), F.lit(Replay.FROM), _place())
    # The sharding key chooses the queue; if the queue is given, it is an ordinary property.
    key = F.col("properties")[Property.SHARDING_KEY].alias("sharding_key")
    queue = [F.col("broker"), F.col("queue_id"), *([] if keep_queue else [key])]
    return (
        rows.repartition("broker", "queue_id")
        .sortWithinPartitions("broker", "queue_id", "offset")
        .select("body", "keys", "tags", F.map_concat(own, named).alias("properties"), *queue)
    )


def _send(rows: DataFrame, access: ClusterAccess, to: str, keep_queue: bool) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from penstock.spark.jvm import activate

    activate(rows.sparkSession)
    counted = Observation()
    (
        rows.observe(counted, F.count(F.lit(1)).alias("sent"))
        .write.format("penstock")
        .options(**access_options(access), topic=to, keepQueue="true" if keep_queue else "prefer")
        .mode("append")
        .save()
    )
    return int(counted.get["sent"])


def _count_days(
    steps: Sequence[_Step], total: int, progress: Progress
) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    day = store_day().cast("string").alias("day")
    reached = 0
    progress("counting", 0, total)
    for step in steps:
        for row in step.rows.groupBy(day).count().collect():
            counts[row["day"]] = counts.get(row["day"], 0) + int(row["count"])
        reached += step.weight
        progress("counting", reached, total)
    return tuple(sorted(counts.items()))


# ------------------------------------------------------------------------------------- finishing


class _Sent(NamedTuple):
    """The copies that a replay sent before it was killed."""

    places: DataFrame
    """The identities of the messages it copied."""
    until_ms: int | None
    """The first moment that it leaves out; None if its begin is not known."""


def _already_sent(spark: SparkSession, access: ClusterAccess, to: str, replay_id: str) -> _Sent:
    from pyspark.sql import functions as F

    until_ms = replay_until_ms(replay_id)
    # Clocks differ; an hour is more than enough, and cheap.
    since_ms = None if until_ms is None else until_ms - 3_600_000
    try:
        with Admin(**access.as_keywords()) as admin:
            spans = topic_spans(admin, to, since_ms, None)
    except TopicNotFound:
        # It was killed before its first copy created the topic.
        spans = []
    if not spans:
        return _Sent(spark.createDataFrame([], "place string"), until_ms)
    copies = read_spans(spark, access, to, spans, columns="properties,store_timestamp")
    properties = F.col("properties")
    found = (
        copies.where(properties[Replay.ID] == replay_id)
        .groupBy(properties[Replay.FROM].alias("place"))
        .agg(F.unix_millis(F.min("store_timestamp")).alias("at"))
        .localCheckpoint()
    )
    if until_ms is None:
        # The id has no time: it began no later than its first copy was stored.
        first = found.agg(F.min("at")).collect()[0][0]
        until_ms = None if first is None else int(first) + 1
    return _Sent(found.select("place"), until_ms)


def _unsent(rows: DataFrame, replay_id: str, done: _Sent) -> DataFrame:
    """The rows that a replay has not sent yet.

    A topic that is replayed to itself has the copies by now; any topic or archive may have newer
    messages, which do not belong to the replay.
    """
    from pyspark.sql import functions as F

    rows = rows.where(~F.col("properties")[Replay.ID].eqNullSafe(replay_id))
    if done.until_ms is not None:
        rows = rows.where(F.unix_millis("store_timestamp") < done.until_ms)
    return rows.withColumn("place", _place()).join(done.places, "place", "left_anti").drop("place")
