"""Samples the counters of the broker, from which rates are computed.

every second     the store's totals        putTps and others over 10 s, 1 min, 10 min
every 10 s       each counter              RocketMQ's statistics over a minute, hour and day
at midnight      what went in and out      the totals of today and yesterday
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.stats import BrokerStats, Counter, QueueCounter
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.statistics import SAMPLE_SECONDS, StatsItem
from penstock.store import MessageStore

RATE_SPANS: Final = (10, 60, 600)
_PER_TURN: Final = 500
_HOUR_TICKS: Final = 60
_DAY_TICKS: Final = 360

MAX_QUEUES: Final = 4000
"""Queues that are sampled, at a kilobyte each; further ones are counted without rates."""

_NUMS, _SIZE = "_NUMS", "_SIZE"
# Keys of latencies begin with the queue, keys of counts with the topic.
_LATENCIES: Final = {"TOPIC_PUT_LATENCY": "QUEUE_PUT", "GROUP_GET_LATENCY": "QUEUE_GET"}


class Totals(NamedTuple):
    """The store's counts at a moment."""

    at: float
    put: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


class DayTotals(NamedTuple):
    """Messages since the start, now and at the last two midnights."""

    now: int
    today_morning: int
    yesterday_morning: int


class _Series:
    """The samples of a counter: messages, bytes and, for a queue, time."""

    __slots__ = ("counter", "latency", "nums", "size")

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.nums = StatsItem()
        self.size = StatsItem()
        self.latency = StatsItem() if isinstance(counter, QueueCounter) else None

    def sample(self, now: float, ticks: int) -> None:
        counter = self.counter
        self.nums.sum, self.nums.times = counter.count, counter.calls
        self.size.sum, self.size.times = counter.size, counter.calls
        items = [self.nums, self.size]
        if self.latency is not None and isinstance(counter, QueueCounter):
            self.latency.sum, self.latency.times = round(counter.seconds * 1000), counter.timed
            items.append(self.latency)
        for item in items:
            item.sample_minute(now)
            if ticks % _HOUR_TICKS == 0:
                item.sample_hour(now)
            if ticks % _DAY_TICKS == 0:
                item.sample_day(now)


class RateSampler(Service):
    """Samples the counters of one broker."""

    def __init__(
        self,
        stats: BrokerStats,
        store: MessageStore,
        clock: Clock,
        *,
        cluster: str,
        day_of: Callable[[float], int] = lambda seconds: time.localtime(seconds).tm_yday,
    ) -> None:
        self._stats = stats
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._day_of = day_of
        self._series: dict[tuple[str, str], _Series] = {}
        self._totals: deque[Totals] = deque(maxlen=RATE_SPANS[-1] + 1)
        self._ticks = 0
        self._day = day_of(clock.time())
        self._mornings = {"put": (0, 0), "get": (0, 0)}

    # Reading

    def find(self, name: str, key: str) -> StatsItem | None:
        """A statistic by RocketMQ's name (TOPIC_PUT_NUMS) and key; None: never counted."""
        base, suffix = name[: -len(_NUMS)], name[-len(_NUMS) :]
        if name in _LATENCIES:
            queue_id, _, rest = key.partition("@")
            topic, *group = rest.split("@", 1)
            base, key = _LATENCIES[name], "@".join((topic, queue_id, *group))
        elif suffix not in (_NUMS, _SIZE):
            return None
        series = self._series.get((base, key))
        if series is None:
            # A counter that has not been sampled yet exists, too.
            counted = itertools.chain(self._stats.named(self._cluster), self._stats.named_queues())
            return StatsItem() if (base, key) in ((one, of) for one, of, _ in counted) else None
        if name in _LATENCIES:
            return series.latency
        return series.nums if suffix == _NUMS else series.size

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages per second that a group received from a topic in the last minute."""
        series = self._series.get(("GROUP_GET", f"{topic}@{group}"))
        return 0.0 if series is None else series.nums.minute().tps

    def topic_put_tps(self, topic: str) -> float:
        """Messages per second that a topic received in the last minute."""
        series = self._series.get(("TOPIC_PUT", topic))
        return 0.0 if series is None else series.nums.minute().tps

    def rates(self, field: str) -> list[float]:
        """The rate of a total of the store over the last 10 s, minute and 10 minutes."""
        latest = self._totals_now()
        return [self._rate(latest, field, span) for span in RATE_SPANS]

    def _rate(self, latest: Totals, field: str, span: int) -> float:
        if not self._totals:
            return 0.0
        before = self._totals[max(0, len(self._totals) - 1 - span)]
        elapsed = latest.at - before.at
        # Right after the start there is nothing to compare with.
        if elapsed <= 0:
            return 0.0
        grown: int = getattr(latest, field) - getattr(before, field)
        return grown / elapsed

    def day_totals(self, which: str) -> DayTotals:
        """Messages ``put`` or ``get`` since the start, now and at the last two midnights."""
        today, yesterday = self._mornings[which]
        return DayTotals(self._count(which), today, yesterday)

    def _count(self, which: str) -> int:
        stats = self._stats
        return stats.put_total.count if which == "put" else stats.get_total.count

    # Sampling

    async def _run(self, ready: Callable[[], None]) -> None:
        self._totals.append(self._totals_now())
        ready()
        ticks_per_sample = round(SAMPLE_SECONDS)
        due = self._clock.monotonic()
        while True:
            # At fixed times, so that the duration of samples does not add up.
            due += 1.0
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            self._ticks += 1
            self._totals.append(self._totals_now())
            self._note_midnight()
            if self._ticks % ticks_per_sample == 0:
                await self._sample_counters(self._ticks // ticks_per_sample)

    def _totals_now(self) -> Totals:
        counts = self._store.counts
        return Totals(
            self._clock.monotonic(),
            counts.put_count,
            counts.read_calls - counts.read_misses,
            counts.read_misses,
            counts.read_count,
        )

    def _note_midnight(self) -> None:
        day = self._day_of(self._clock.time())
        if day == self._day:
            return
        self._day = day
        for which, (today, _) in self._mornings.items():
            self._mornings[which] = (self._count(which), today)

    async def _sample_counters(self, ticks: int) -> None:
        now = self._clock.monotonic()
        live: dict[tuple[str, str], _Series] = {}
        queues = itertools.islice(self._stats.named_queues(), MAX_QUEUES)
        counters = [*self._stats.named(self._cluster), *queues]
        for number, (name, key, counter) in enumerate(counters, 1):
            series = self._series.get((name, key))
            if series is None or series.counter is not counter:
                series = _Series(counter)
            series.sample(now, ticks)
            live[name, key] = series
            if number % _PER_TURN == 0:
                # Ten thousand topics must not block the loop.
                await asyncio.sleep(0)
        # Drops the series of counters that no longer exist.
        self._series = live
