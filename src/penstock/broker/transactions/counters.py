"""How many transactions are open by topic, and how many were decided since the start.

The first numbers are saved in ``config/transactionMetrics``, where RocketMQ's exporter reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.transactions import HalfCount, TransactionMetrics

COUNTERS_FILE = "transactionMetrics"


class TransactionCounters:
    """Open transactions by topic."""

    def __init__(self, now_ms: Callable[[], int], changed: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._changed = changed
        self._open: Counter[str] = Counter()
        self._changed_ms: dict[str, int] = {}
        self._version = DataVersion(0, now_ms(), 0)

    def add(self, topic: str, number: int) -> None:
        """Count one transaction more, or one less."""
        self._open[topic] += number
        self._changed_ms[topic] = self._now_ms()
        self._changed()

    def open_by_topic(self) -> dict[str, int]:
        """The number of open transactions of each topic that had any."""
        return dict(self._open)

    def load(self, data: bytes) -> None:
        """Load the version of the file; the numbers are counted anew at each start."""
        self._version = decode_body(TransactionMetrics, data).data_version or self._version

    def dump(self) -> bytes:
        """The content of the file."""
        self._version = self._version.following(self._now_ms())
        counts = {
            topic: HalfCount(self._open[topic], self._changed_ms[topic])
            for topic in sorted(self._changed_ms)
        }
        return encode_body(TransactionMetrics(self._version, counts))
