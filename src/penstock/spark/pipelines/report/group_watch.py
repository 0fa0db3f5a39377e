"""Samples the committed offsets of groups over time, which no broker stores."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, Unpack

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import AccessKeywords, ClusterAccess
from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.pipelines.report.data import Point, Sample

MAX_SAMPLES = 1_000_000
"""Some hundred megabytes; then the oldest half is dropped."""
_JOIN_SECONDS = 10.0


class GroupWatch:
    """Samples the offsets of consumer groups, in its own thread, while a ``with`` block runs.

        with GroupWatch(namesrv=namesrv) as watch:
            ...
        report(spark, "report.html", samples=watch.samples)

    Without ``groups`` all are watched, also those created later. ``interval`` is in seconds, and is
    the precision of latencies.
    """

    def __init__(
        self,
        groups: Iterable[str] | None = None,
        *,
        interval: float = 0.5,
        namesrv: str | Iterable[str] | None = None,
        **keywords: Unpack[AccessKeywords],
    ) -> None:
        if interval <= 0:
            raise InvalidArgument(f"interval {interval}", expected="more than 0 seconds")
        self._access = ClusterAccess.of(namesrv, **keywords)
        self._groups = None if groups is None else sorted(set(groups))
        self._interval = interval
        self._samples: list[Sample] = []
        self._last: dict[tuple[str, str, str, int], tuple[int, int]] = {}
        self._looked: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples so far, oldest first."""
        return tuple(self._samples)

    def __enter__(self) -> Self:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        with Admin(**self._access.as_keywords()) as admin:
            while True:
                began = time.monotonic()
                # While the cluster cannot be reached, there are no samples.
                with contextlib.suppress(PenstockError):
                    self.look(admin)
                rest = self._interval - (time.monotonic() - began)
                if self._stop.wait(max(0.0, rest)):
                    break
            with contextlib.suppress(PenstockError):
                self.look(admin)

    def look(self, admin: Admin) -> None:
        """Sample every group; queues without a change are left out."""
        for group in admin.groups() if self._groups is None else self._groups:
            with contextlib.suppress(PenstockError):
                rows = admin.group_lag(group)
                now = time.time_ns() // 1_000_000
                before = self._looked.get(group, now)
                self._looked[group] = now
                for row in rows:
                    queue = group, row.topic, row.broker_name, row.queue_id
                    position = row.committed, row.lag
                    if self._last.get(queue) != position:
                        self._last[queue] = position
                        self._samples.append(Sample(now, *queue, *position, before))
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[: MAX_SAMPLES // 2]


# ------------------------------------------------------------------ computed from samples; pure


class Consumed(NamedTuple):
    """Messages of a queue that a group committed between two samples."""

    group: str
    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    after_ms: int
    before_ms: int


def consumed(samples: Iterable[Sample]) -> list[Consumed]:
    """The messages that groups consumed, and between which samples."""
    last: dict[tuple[str, str, str, int], int] = {}
    found = []
    for sample in samples:
        queue = sample.group, sample.topic, sample.broker, sample.queue_id
        reached = last.get(queue)
        if reached is not None and reached < sample.committed:
            found.append(
                Consumed(*queue, reached, sample.committed, sample.before_ms, sample.at_ms)
            )
        last[queue] = sample.committed
    return found


def lag_series(samples: Sequence[Sample], points: int = 240) -> dict[str, list[Point]]:
    """Each group's lag in all its queues over time, with at most ``points`` values a group."""
    sums: dict[str, int] = {}
    queues: dict[tuple[str, str, str, int], int] = {}
    series: dict[str, list[Point]] = {}
    for sample in samples:
        queue = sample.group, sample.topic, sample.broker, sample.queue_id
        sums[sample.group] = sums.get(sample.group, 0) + sample.lag - queues.get(queue, 0)
        queues[queue] = sample.lag
        line = series.setdefault(sample.group, [])
        if line and line[-1].at_ms == sample.at_ms:
            line.pop()
        line.append(Point(sample.at_ms, sums[sample.group]))
    end = max((sample.at_ms for sample in samples), default=0)
    return {group: _thinned(line, end, points) for group, line in series.items()}


def _thinned(line: list[Point], end: int, points: int) -> list[Point]:
    """Values at regular moments up to ``end``; a value holds until the next change."""
    start = line[0].at_ms
    if end <= start:
        return line
    moments = [point.at_ms for point in line]
    step = max(1, (end - start) // points)
    thin = [
        Point(moment, line[bisect.bisect_right(moments, moment) - 1].value)
        for moment in range(start, end, step)
    ]
    return [*thin, Point(end, line[-1].value)]
