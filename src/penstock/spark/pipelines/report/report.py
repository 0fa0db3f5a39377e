"""``report``: the recent activity of a cluster as one HTML page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from penstock.admin.blocking import Admin
from penstock.client.arguments import Time, timestamp_ms
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.model import MessageQueue
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX
from penstock.runtime.durations import Duration, seconds
from penstock.spark.pipelines.progress import Progress, silent
from penstock.spark.pipelines.report import gathering
from penstock.spark.pipelines.report.data import ReportData, Sample
from penstock.spark.pipelines.report.figures import require_matplotlib
from penstock.spark.pipelines.report.gathering import Window
from penstock.spark.pipelines.report.group_watch import GroupWatch, lag_series
from penstock.spark.pipelines.report.page import render
from penstock.spark.pipelines.spans import Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_WINDOW_MS = 3_600_000
_SHORTEST_MS = 1000
_STEPS = 4


def report(
    spark: SparkSession,
    output: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    start: Time | None = None,
    end: Time | None = None,
    watch: Duration | None = None,
    samples: Sequence[Sample] = (),
    title: str = "Penstock report",
    namesrv: str | Iterable[str] | None = None,
    progress: Progress = silent,
    **keywords: Unpack[AccessKeywords],
) -> ReportData:
    """Write one HTML page to the file ``output`` and return the numbers on it.

    It shows throughput, lag, latency, retries and dead letters by reason, for all ``topics`` and
    ``groups`` or for those named, from ``start`` to ``end`` (by default the last hour, from its
    first message on). Most of it comes from stored messages. The history of lag and of consume
    latency is not stored, so it is shown only for groups that were watched: ``watch`` does that for
    a while before the page is made; ``samples`` are those of a `GroupWatch` that ran before.
    """
    # Checked before the file is created, so that no empty page is left.
    require_matplotlib()
    target = _writable(output)
    access = ClusterAccess.of(namesrv, **keywords)
    if watch is not None:
        samples = [*samples, *_watched(access, groups, seconds(watch), progress)]
    data = gather(
        spark,
        access,
        topics=topics,
        groups=groups,
        start_ms=None if start is None else timestamp_ms(start),
        end_ms=None if end is None else timestamp_ms(end),
        samples=samples,
        title=title,
        progress=progress,
    )
    progress("drawing", _STEPS - 1, _STEPS)
    target.write_text(render(data), encoding="utf-8")
    progress("drawing", _STEPS, _STEPS)
    return data


def gather(
    spark: SparkSession,
    access: ClusterAccess,
    *,
    topics: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    samples: Sequence[Sample] = (),
    title: str = "Penstock report",
    progress: Progress = silent,
) -> ReportData:
    """The numbers of a report."""
    now = time.time_ns() // 1_000_000
    # The end is exclusive, and what is stored at this moment belongs to the report.
    to_ms = now + 1 if end_ms is None else end_ms
    from_ms = to_ms - DEFAULT_WINDOW_MS if start_ms is None else start_ms
    if from_ms >= to_ms:
        raise InvalidArgument(
            f"from {from_ms} to {to_ms} is an empty time span", expected="start before end"
        )
    notes = []
    with Admin(**access.as_keywords()) as admin:
        progress("asking brokers", 0, _STEPS)
        known = admin.topics(internal=True)
        chosen_topics = _chosen_topics(admin, topics, known)
        chosen_groups = _chosen_groups(admin, groups)
        failing = gathering.failure_topics(chosen_groups, known)
        whole = Window.of(from_ms, to_ms)
        spans = gathering.spans_of(admin, [*chosen_topics, *failing], whole)
        if not start_ms:  # the default, or 0: from the first message
            from_ms = _first_ms(admin, spans, from_ms)
        window = Window.of(min(from_ms, to_ms - _SHORTEST_MS), to_ms)
        progress("counting messages", 1, _STEPS)
        stored = gathering.stored(
            spark,
            access,
            chosen_topics,
            {topic: spans[topic] for topic in chosen_topics if topic in spans},
            window,
            [sample for sample in samples if sample.group in chosen_groups],
        )
        progress("counting failures", 2, _STEPS)
        failures = gathering.failed(
            spark,
            access,
            {topic: spans[topic] for topic in failing if topic in spans},
            window,
        )
        figures = gathering.group_figures(admin, chosen_groups, stored.of_group, failures)
    if stored.end_to_end:
        notes.append(
            "End-to-end latency is as exact as the groups were watched: between two looks, "
            "messages are taken to be consumed evenly."
        )
    inside = [
        sample
        for sample in samples
        if sample.at_ms >= window.from_ms and sample.group in chosen_groups
    ]
    return ReportData(
        title=title,
        cluster=access.addresses,
        from_ms=window.from_ms,
        to_ms=window.to_ms,
        made_ms=now,
        bucket_ms=window.bucket_ms,
        topics=stored.topics,
        groups=figures,
        throughput=stored.throughput,
        lag=lag_series(inside),
        store_latency=stored.store_latency,
        end_to_end=stored.end_to_end,
        retries=failures.retries,
        attempts=failures.attempts,
        dead_letters=failures.reasons,
        notes=notes,
    )


def _chosen_groups(admin: Admin, groups: Iterable[str] | None) -> list[str]:
    if groups is not None:
        return sorted(set(groups))
    return admin.groups()


def _chosen_topics(admin: Admin, topics: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    if topics is None:
        return [t for t in admin.topics() if not t.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    chosen = sorted(set(topics))
    for topic in chosen:
        if topic not in known:
            raise TopicNotFound(
                f"no broker has topic {topic!r}",
                expected="topics that exist",
                hint="penstock topic list",
            )
    return chosen


def _first_ms(admin: Admin, spans: dict[str, list[Span]], from_ms: int) -> int:
    """The store time of the first message in the window, so that no page begins empty."""
    found = [
        messages[0].store_timestamp
        for topic, queues in spans.items()
        for span in queues
        if (
            messages := admin.messages(
                MessageQueue(topic, span.broker, span.queue_id), span.start, count=1
            ).messages
        )
    ]
    return max(from_ms, min(found, default=from_ms))


def _watched(
    access: ClusterAccess, groups: Iterable[str] | None, duration: float, progress: Progress
) -> tuple[Sample, ...]:
    """Watch groups for a while."""
    whole = max(1, round(duration))
    with GroupWatch(groups, **access.as_keywords()) as watch:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < duration:
            progress("watching groups", int(passed), whole)
            time.sleep(min(1.0, duration - passed))
    progress("watching groups", whole, whole)
    return watch.samples


def _writable(output: str | os.PathLike[str]) -> Path:
    """The file to write; checked before hours of work."""
    path = Path(output)
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InvalidArgument(
            f"{path} cannot be written: {error.strerror}",
            expected="a file in a directory that exists",
        ) from error
    return path
