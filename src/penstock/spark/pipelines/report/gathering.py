"""Gathers the numbers of a report: Spark counts stored messages, brokers are asked for the rest."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.admin.blocking import Admin
from penstock.admin.reports import QueueLag
from penstock.client.cluster_access import ClusterAccess
from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX, Redrive, dead_letter_topic, retry_topic
from penstock.spark.pipelines.dead_letters import NOT_RECORDED, with_reasons
from penstock.spark.pipelines.report.data import (
    GroupFigures,
    Point,
    ReasonCount,
    Sample,
    Spread,
    TopicFigures,
)
from penstock.spark.pipelines.report.group_watch import consumed
from penstock.spark.pipelines.spans import Span, read_topics, topic_spans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

BUCKETS = 120
_STEPS_MS = (
    *(100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000),
)
_REASON_CHARACTERS = 200
_QUEUES_LOOKED_AT = 64
"""The maximum number of queues of a group that are asked for their oldest unconsumed message."""
_PERCENTILES = (0.5, 0.95, 0.99)


class Window(NamedTuple):
    """The time range of a report, divided into buckets."""

    from_ms: int
    to_ms: int
    bucket_ms: int

    @classmethod
    def of(cls, from_ms: int, to_ms: int) -> Window:
        """About `BUCKETS` buckets, of a round length."""
        wanted = (to_ms - from_ms) / BUCKETS
        step = next((step for step in _STEPS_MS if step >= wanted), None)
        if step is None:
            step = -(-int(wanted) // _STEPS_MS[-1]) * _STEPS_MS[-1]
        return cls(from_ms, to_ms, step)

    def filled(self, points: Mapping[int, float]) -> list[Point]:
        """A value for every bucket, 0 for an empty one."""
        first = self.from_ms // self.bucket_ms * self.bucket_ms
        return [Point(at, points.get(at, 0.0)) for at in range(first, self.to_ms, self.bucket_ms)]


class Stored(NamedTuple):
    """The figures from topics."""

    topics: tuple[TopicFigures, ...]
    throughput: dict[str, list[Point]]
    store_latency: tuple[Spread, ...]
    end_to_end: tuple[Spread, ...]
    of_group: dict[str, Spread]
    """By group: from birth to commit, in the whole window."""


class Failed(NamedTuple):
    """The figures from the groups' retry and dead-letter topics."""

    retries: dict[str, list[Point]]
    retried: dict[str, int]
    attempts: dict[int, int]
    dead: dict[str, int]
    redriven: dict[str, int]
    reasons: tuple[ReasonCount, ...]


# ---------------------------------------------------------------------------------------- topics


def spans_of(admin: Admin, topics: Sequence[str], window: Window) -> dict[str, list[Span]]:
    """The messages of each topic in the window; topics without any are left out."""
    found = {topic: topic_spans(admin, topic, window.from_ms, window.to_ms) for topic in topics}
    return {topic: spans for topic, spans in found.items() if spans}


def stored(
    spark: SparkSession,
    access: ClusterAccess,
    topics: Sequence[str],
    spans: Mapping[str, Sequence[Span]],
    window: Window,
    samples: Sequence[Sample],
) -> Stored:
    """Count stored messages, and the time from birth to store."""
    from pyspark.sql import functions as F

    empty = tuple(TopicFigures(topic, 0, 0, None, None) for topic in topics)
    if not spans:
        return Stored(empty, {}, (), (), {})
    columns = "topic,broker,queue_id,offset,body,born_timestamp,store_timestamp"
    rows = _within(read_topics(spark, access, spans, columns=columns), window)
    took = F.greatest(F.lit(0), F.unix_millis("store_timestamp") - F.unix_millis("born_timestamp"))
    facts = rows.select(
        "topic", "broker", "queue_id", "offset",
        F.unix_millis("born_timestamp").alias("born_ms"),
        F.octet_length("body").alias("bytes"),
        _bucket("store_timestamp", window).alias("bucket"),
        took.alias("took"),
    )  # fmt: skip
    counted = (
        facts.groupingSets([["topic", "bucket"], ["topic"], ["bucket"]], "topic", "bucket")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("bytes").alias("bytes"),
            F.percentile_approx("took", list(_PERCENTILES), 1000).alias("took"),
        )
        .collect()
    )
    of_topic = {row["topic"]: row for row in counted if row["bucket"] is None}
    throughput: dict[str, dict[int, float]] = {}
    for row in counted:
        if row["topic"] is not None and row["bucket"] is not None:
            throughput.setdefault(row["topic"], {})[row["bucket"]] = float(row["count"])
    end_to_end, of_group = _end_to_end(spark, facts, window, samples)
    return Stored(
        tuple(_topic_figures(topic, of_topic.get(topic)) for topic in topics),
        {topic: window.filled(points) for topic, points in throughput.items()},
        _spreads(row for row in counted if row["topic"] is None),
        end_to_end,
        of_group,
    )


def _topic_figures(topic: str, row: Row | None) -> TopicFigures:
    if row is None:
        return TopicFigures(topic, 0, 0, None, None)
    return TopicFigures(
        topic, int(row["count"]), int(row["bytes"] or 0), float(row["took"][0]),
        float(row["took"][2]),
    )  # fmt: skip


def _end_to_end(
    spark: SparkSession, facts: DataFrame, window: Window, samples: Sequence[Sample]
) -> tuple[tuple[Spread, ...], dict[str, Spread]]:
    """From birth to commit: each message is joined with the sample that found it consumed."""
    from pyspark.sql import functions as F

    looks = consumed(samples)
    if not looks:
        return (), {}
    schema = (
        "`consumer_group` string, topic string, broker string, queue_id int, start bigint, "
        "stop bigint, after_ms bigint, before_ms bigint"
    )
    found = spark.createDataFrame(looks, schema)
    inside = (F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("stop"))
    share = (F.col("offset") - F.col("start") + 1) / (F.col("stop") - F.col("start"))
    at = F.col("after_ms") + share * (F.col("before_ms") - F.col("after_ms"))
    counted = (
        facts.join(F.broadcast(found), ["topic", "broker", "queue_id"])
        .where(inside)
        .select(
            "consumer_group",
            "bucket",
            F.greatest(F.lit(0.0), at - F.col("born_ms")).alias("took"),
        )
        .groupingSets([["consumer_group"], ["bucket"]], "consumer_group", "bucket")
        .agg(F.percentile_approx("took", list(_PERCENTILES), 1000).alias("took"))
        .collect()
    )
    spreads = _spreads(row for row in counted if row["consumer_group"] is None)
    of_group = {
        row["consumer_group"]: Spread(window.from_ms, *map(float, row["took"]))
        for row in counted
        if row["consumer_group"] is not None
    }
    return spreads, of_group


def _spreads(rows: Iterable[Row]) -> tuple[Spread, ...]:
    found = (Spread(int(row["bucket"]), *(float(value) for value in row["took"])) for row in rows)
    return tuple(sorted(found))


def _within(rows: DataFrame, window: Window) -> DataFrame:
    from pyspark.sql import functions as F

    at = F.unix_millis("store_timestamp")
    return rows.where((at >= window.from_ms) & (at < window.to_ms))


def _bucket(column: str, window: Window) -> Column:
    from pyspark.sql import functions as F

    return F.unix_millis(column) - F.unix_millis(column) % window.bucket_ms


# ---------------------------------------------------------------------------------------- groups


def failed(
    spark: SparkSession,
    access: ClusterAccess,
    spans: Mapping[str, Sequence[Span]],
    window: Window,
) -> Failed:
    """Count retries and dead letters."""
    from pyspark.sql import functions as F

    if not spans:
        return Failed({}, {}, {}, {}, {}, ())
    columns = "topic,properties,store_timestamp,reconsume_times"
    rows = _within(read_topics(spark, access, spans, columns=columns), window)
    is_dead = F.col("topic").startswith(DLQ_PREFIX)
    # A redriven copy is in the retry topic, too, but was not retried yet.
    is_retry = ~is_dead & (F.col("reconsume_times") > 0)
    is_redriven = ~is_dead & ~is_retry & F.col("properties")[Redrive.FROM].isNotNull()
    kind = F.coalesce("reason_type", F.lit(""))
    text = F.coalesce("reason", F.lit(""))
    reason = F.when(kind == "", text).when(text == "", kind)
    reason = reason.otherwise(F.concat_ws(": ", kind, text))
    counted = (
        with_reasons(rows.where(is_dead | is_retry | is_redriven), "")
        .groupBy(
            "topic",
            F.when(is_retry, _bucket("store_timestamp", window)).alias("bucket"),
            F.when(is_retry, F.col("reconsume_times")).alias("attempt"),
            F.when(is_dead, F.substring(reason, 1, _REASON_CHARACTERS)).alias("reason"),
        )
        .count()
        .collect()
    )
    retries: dict[str, dict[int, float]] = {}
    attempts: dict[int, int] = {}
    redriven: dict[str, int] = {}
    reasons = []
    for row in counted:
        count = int(row["count"])
        if row["topic"].startswith(DLQ_PREFIX):
            group = row["topic"].removeprefix(DLQ_PREFIX)
            reasons.append(ReasonCount(group, row["reason"] or NOT_RECORDED, count))
            continue
        group = row["topic"].removeprefix(RETRY_PREFIX)
        if row["attempt"] is None:
            redriven[group] = count
            continue
        line = retries.setdefault(group, {})
        line[row["bucket"]] = line.get(row["bucket"], 0.0) + count
        attempts[row["attempt"]] = attempts.get(row["attempt"], 0) + count
    dead: dict[str, int] = {}
    for one in reasons:
        dead[one.group] = dead.get(one.group, 0) + one.count
    return Failed(
        {group: window.filled(line) for group, line in retries.items()},
        {group: int(sum(line.values())) for group, line in retries.items()},
        attempts,
        dead,
        redriven,
        tuple(sorted(reasons, key=lambda one: (-one.count, one.group, one.reason))),
    )


def failure_topics(groups: Sequence[str], known: Iterable[str]) -> list[str]:
    """The existing retry and dead-letter topics of groups."""
    there = set(known)
    wanted = [topic(group) for group in groups for topic in (retry_topic, dead_letter_topic)]
    return [topic for topic in wanted if topic in there]


def group_figures(
    admin: Admin, groups: Sequence[str], of_group: Mapping[str, Spread], failures: Failed
) -> tuple[GroupFigures, ...]:
    """The current figures of each group; one that is deleted meanwhile is left out."""
    figures = []
    for group in groups:
        try:
            queues = admin.group_lag(group)
            members = len(admin.clients(group))
        except PenstockError:
            continue
        took = of_group.get(group)
        figures.append(
            GroupFigures(
                group,
                sum(queue.lag for queue in queues),
                members,
                failures.retried.get(group, 0),
                failures.dead.get(group, 0),
                _behind_ms(admin, queues),
                None if took is None else took.p50,
                None if took is None else took.p99,
                None if took is None else took.p95,
                failures.redriven.get(group, 0),
            )
        )
    return tuple(figures)


def _behind_ms(admin: Admin, queues: Sequence[QueueLag]) -> int | None:
    """The age of the oldest unconsumed message."""
    oldest = None
    behind = sorted((queue for queue in queues if queue.lag), key=lambda queue: -queue.lag)
    for row in behind[:_QUEUES_LOOKED_AT]:
        queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
        try:
            messages = admin.messages(queue, row.committed, count=1).messages
        except PenstockError:
            continue
        if messages:
            oldest = min(oldest or messages[0].store_timestamp, messages[0].store_timestamp)
    return None if oldest is None else max(0, time.time_ns() // 1_000_000 - oldest)
