"""RocketMQ's own statistics: sums and times, sampled, so that a recent rate can be given.

An item counts a sum and how often something was added. Every 10 seconds, 10 minutes and hour the
pair is put on record:

    sampled every   kept        tells of
    10 s            7           the last minute
    10 min          7           the last hour
    1 h             25          the last day

The rate is the growth between the oldest and the newest record of a window over the time between
them, the average the growth of the sum over that of the times. An item's first record is preceded
by one of zeros, one period earlier, so that what came before the first sample counts too.

``mqadmin`` and the consoles ask for these by name and key (TOPIC_PUT_NUMS, ``orders``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

MAX_ITEMS: Final = 10_000
OTHER: Final = "(other)"

SAMPLE_SECONDS: Final = 10.0
_HOUR_EVERY: Final = 60
_DAY_EVERY: Final = 360


class StatsData(NamedTuple):
    """What a window tells."""

    sum: int
    tps: float
    average: float


class _Snapshot(NamedTuple):
    at: float
    sum: int
    times: int


class _Window:
    """The records of one period."""

    __slots__ = ("_kept", "_period", "_snapshots")

    def __init__(self, period: float, kept: int) -> None:
        self._period = period
        self._kept = kept
        # A list, since an empty deque takes 600 bytes and every topic has a dozen of them.
        self._snapshots: list[_Snapshot] = []

    def sample(self, now: float, total: int, times: int) -> None:
        if not self._snapshots:
            self._snapshots.append(_Snapshot(now - self._period, 0, 0))
        self._snapshots.append(_Snapshot(now, total, times))
        if len(self._snapshots) > self._kept:
            del self._snapshots[0]

    def data(self) -> StatsData:
        if not self._snapshots:
            return StatsData(0, 0.0, 0.0)
        first, last = self._snapshots[0], self._snapshots[-1]
        total = last.sum - first.sum
        elapsed = last.at - first.at
        times = last.times - first.times
        return StatsData(
            total, total / elapsed if elapsed > 0 else 0.0, total / times if times > 0 else 0.0
        )


class StatsItem:
    """One key's sum and times: ``item.sum += size; item.times += 1``."""

    __slots__ = ("_day", "_hour", "_minute", "sum", "times")

    def __init__(self) -> None:
        self.sum = 0
        self.times = 0
        self._minute = _Window(SAMPLE_SECONDS, 7)
        self._hour = _Window(SAMPLE_SECONDS * _HOUR_EVERY, 7)
        self._day = _Window(SAMPLE_SECONDS * _DAY_EVERY, 25)

    def add(self, value: int, times: int = 1) -> None:
        self.sum += value
        self.times += times

    def sample_minute(self, now: float) -> None:
        self._minute.sample(now, self.sum, self.times)

    def sample_hour(self, now: float) -> None:
        self._hour.sample(now, self.sum, self.times)

    def sample_day(self, now: float) -> None:
        self._day.sample(now, self.sum, self.times)

    def minute(self) -> StatsData:
        return self._minute.data()

    def hour(self) -> StatsData:
        return self._hour.data()

    def day(self) -> StatsData:
        return self._day.data()


class StatsTable:
    """The items of one name (TOPIC_PUT_NUMS), by key (a topic).

    Keys come from outside: past `MAX_ITEMS` of them, new ones are counted together as `OTHER`.
    """

    __slots__ = ("_items", "_max_items", "name")

    def __init__(self, name: str, max_items: int = MAX_ITEMS) -> None:
        self.name = name
        self._items: dict[str, StatsItem] = {}
        self._max_items = max_items

    def item(self, key: str) -> StatsItem:
        """The item to count on, made if it is new."""
        found = self._items.get(key)
        if found is None:
            if len(self._items) >= self._max_items:
                key = OTHER
            found = self._items.setdefault(key, StatsItem())
        return found

    def find(self, key: str) -> StatsItem | None:
        """The item if anything was ever counted on it."""
        return self._items.get(key)

    def remove(self, is_gone: Callable[[str], bool]) -> None:
        """Forget the items of topics or groups that no longer exist."""
        for key in [key for key in self._items if is_gone(key)]:
            del self._items[key]

    def items(self) -> Iterator[tuple[str, StatsItem]]:
        return iter(self._items.items())

    def __len__(self) -> int:
        return len(self._items)


class Statistics(Service):
    """Tables of items, and the task that samples them."""

    def __init__(self, clock: Clock, *, max_items: int = MAX_ITEMS) -> None:
        self._clock = clock
        self._max_items = max_items
        self._tables: dict[str, StatsTable] = {}
        self._ticks = 0

    def table(self, name: str) -> StatsTable:
        """The table of a name, made if it is new; names are ours, so they are few."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = StatsTable(name, self._max_items)
        return found

    def item(self, name: str, key: str) -> StatsItem:
        return self.table(name).item(key)

    def find(self, name: str, key: str) -> StatsItem | None:
        """What VIEW_BROKER_STATS_DATA asks for; None: unknown."""
        table = self._tables.get(name)
        return table.find(key) if table is not None else None

    def remove(self, is_gone: Callable[[str], bool]) -> None:
        """Forget keys in every table."""
        for table in self._tables.values():
            table.remove(is_gone)

    def sample(self, now: float) -> None:
        """Put every item on record; called every `SAMPLE_SECONDS`."""
        self._ticks += 1
        for table in self._tables.values():
            for _, item in table.items():
                item.sample_minute(now)
                if self._ticks % _HOUR_EVERY == 0:
                    item.sample_hour(now)
                if self._ticks % _DAY_EVERY == 0:
                    item.sample_day(now)

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        # Against fixed moments: the time a sample takes must not add up.
        due = self._clock.monotonic()
        while True:
            due += SAMPLE_SECONDS
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            self.sample(self._clock.monotonic())
