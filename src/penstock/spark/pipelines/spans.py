"""Ranges of queue offsets: found by time, cut into parts, and read exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import ClusterAccess
from penstock.spark.access_options import access_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Queue = tuple[str, int]
"""Broker name and queue id; the topic is known from elsewhere."""


@dataclass(frozen=True, slots=True)
class Span:
    """Messages of one queue: ``start`` up to, and without, ``end``."""

    broker: str
    queue_id: int
    start: int
    end: int

    @property
    def queue(self) -> Queue:
        return self.broker, self.queue_id

    @property
    def count(self) -> int:
        return self.end - self.start


def topic_spans(admin: Admin, topic: str, start_ms: int | None, end_ms: int | None) -> list[Span]:
    """What each queue of a topic holds of a time range; without an end, up to now.

    Brokers may return the neighbour of the first message, so callers filter by time again.
    """
    ends = {
        (row.broker_name, row.queue_id): (row.min_offset, row.max_offset)
        for row in admin.topic_stats(topic)
    }

    def at(moment_ms: int) -> dict[tuple[str, int], int]:
        offsets = admin.offsets_at(topic, moment_ms)
        return {(q.broker_name, q.queue_id): offset for q, offset in offsets.items()}

    starts = {} if start_ms is None else at(start_ms)
    stops = {} if end_ms is None else at(end_ms)
    spans = []
    for queue, (low, high) in sorted(ends.items()):
        begin = max(low, starts.get(queue, low))
        # One more, for brokers that round down; the condition on the time drops it.
        stop = min(high, stops[queue] + 1 if queue in stops else high)
        if begin < stop:
            spans.append(Span(*queue, begin, stop))
    return spans


def chunks(spans: Sequence[Span], rows: int) -> list[tuple[Span, ...]]:
    """Cut spans into parts of about ``rows`` messages; every part advances every queue.

    So a part holds messages of about the same time in all queues.
    """
    total = sum(span.count for span in spans)
    if not total:
        return []
    number = -(-total // rows)

    def part(span: Span, index: int) -> Span:
        low, high = span.count * index // number, span.count * (index + 1) // number
        return Span(span.broker, span.queue_id, span.start + low, span.start + high)

    cut = [tuple(part(span, index) for span in spans) for index in range(number)]
    return [kept for chunk in cut if (kept := tuple(span for span in chunk if span.count))]


def read_spans(
    spark: SparkSession, access: ClusterAccess, topic: str, spans: Sequence[Span], **options: str
) -> DataFrame:
    """Exactly these messages of a topic."""
    return read_topics(spark, access, {topic: spans}, **options)


def read_topics(
    spark: SparkSession, access: ClusterAccess, topics: Mapping[str, Sequence[Span]], **options: str
) -> DataFrame:
    """Exactly these messages of some topics."""
    queues: dict[str, dict[str, list[int]]] = {}
    starts: dict[str, dict[str, dict[str, int]]] = {}
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for topic, spans in topics.items():
        for span in spans:
            queues.setdefault(topic, {}).setdefault(span.broker, []).append(span.queue_id)
            for table, offset in ((starts, span.start), (ends, span.end)):
                table.setdefault(topic, {}).setdefault(span.broker, {})[str(span.queue_id)] = offset
    return (
        spark.read.format("penstock")
        .options(**access_options(access), **options)
        .option("assign", orjson.dumps(queues).decode())
        .option("startingOffsets", orjson.dumps(starts).decode())
        .option("endingOffsets", orjson.dumps(ends).decode())
        .load()
    )
