"""Acknowledgements that come before their check-point: after a store came from an Apache broker.

Apache's broker keeps a check-point in its timer until it is almost due. A client that was given a
message there may acknowledge it here before the timer brings the check-point. Such an
acknowledgement is written to the journal and noted; when the check-point comes, it counts.
"""

from __future__ import annotations

import heapq
from typing import Final

ReceiptKey = tuple[str, str, int, int, int]
"""Group, topic, queue id, pop time, queue offset."""

LONGEST_MS: Final = 3 * 24 * 3_600_000
"""A timer of Apache's broker takes no longer."""
_MOST: Final = 100_000
_GRACE_MS: Final = 10_000
"""How late a check-point may come, beyond the time it is due."""


class EarlyAcks:
    """Acknowledgements of receipts that are not known yet."""

    def __init__(self) -> None:
        self.expected_until = 0
        """Until when acknowledgements of unknown receipts are noted, in milliseconds."""
        self._keys: set[ReceiptKey] = set()
        self._by_due: list[tuple[int, ReceiptKey]] = []

    def __contains__(self, key: ReceiptKey) -> bool:
        return key in self._keys

    def may_note(self, due: int, now_ms: int) -> bool:
        """Whether an acknowledgement without a receipt may be an early one."""
        is_expected = now_ms < self.expected_until and len(self._keys) < _MOST
        return is_expected and now_ms < due <= now_ms + LONGEST_MS

    def note(self, key: ReceiptKey, due: int) -> None:
        """Note an acknowledgement whose check-point is due at this time."""
        if key not in self._keys:
            self._keys.add(key)
            heapq.heappush(self._by_due, (due, key))

    def has_open(self, now_ms: int) -> bool:
        """Whether check-points may still come that were acknowledged here."""
        while self._by_due and now_ms > self._by_due[0][0] + _GRACE_MS:
            self._keys.discard(heapq.heappop(self._by_due)[1])
        return bool(self._keys)
