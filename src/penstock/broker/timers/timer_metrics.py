"""How many timer messages wait for each topic: ``config/timermetrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.timers import TimerMetricsTable, TopicTimers

METRICS_FILE = "timermetrics"


class TimerMetrics:
    """Counts by topic; a crash may leave them some seconds old."""

    def __init__(self, now_ms: Callable[[], int], is_topic: Callable[[str], bool]) -> None:
        self._now_ms = now_ms
        self._is_topic = is_topic
        self._counts: dict[str, TopicTimers] = {}
        self._version = DataVersion(0, now_ms(), 0)

    def add(self, changes: Mapping[str, int]) -> None:
        """Change the counts of topics; never below zero."""
        now = self._now_ms()
        for topic, change in changes.items():
            before = self._counts.get(topic)
            count = max(0, (0 if before is None else before.count) + change)
            self._counts[topic] = TopicTimers(count, now)
        self._version = self._version.following(now)

    def clear(self) -> None:
        """Count from zero: all messages are enqueued anew."""
        self._counts = {}

    def table(self) -> TimerMetricsTable:
        """The table for the file and for GET_TIMER_METRICS."""
        return TimerMetricsTable(dict(self._counts), self._version)

    def load(self, data: bytes) -> None:
        """Load the file that we or RocketMQ wrote."""
        table = decode_body(TimerMetricsTable, data)
        self._counts = {
            topic: TopicTimers(max(0, count.count), count.time_stamp)
            for topic, count in table.timing_count.items()
        }
        self._version = table.data_version or self._version

    def dump(self) -> bytes:
        """The content of the file; deleted topics for which nothing waits are dropped."""
        self._counts = {
            topic: count
            for topic, count in self._counts.items()
            if count.count or self._is_topic(topic)
        }
        return encode_state(self.table())
