"""What commits of the latest halves would store, so that it need not be read from the log again.

Nearly every decision comes within milliseconds of its half. Memory is bounded by bytes: beyond that
the oldest halves are forgotten, and their decisions read the log.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.store import DraftFields

MAX_BYTES: Final = 16 << 20
_new_tuple: Final = tuple.__new__
_OVERHEAD_BYTES: Final = 1024
"""About what the objects of one half take besides body and properties."""


class RecentHalf(NamedTuple):
    """An open half."""

    entry: OpenTransaction
    queue_offset: str
    """That of this copy, in digits, as a decision names it."""
    final: DraftFields
    """The message that a commit stores."""


class RecentHalves(dict[str, RecentHalf]):
    """Open halves by their log position in digits."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sizes: deque[tuple[str, int]] = deque()
        """In the order of arrival, decided ones included: those are few bytes each."""

    def remember(self, entry: OpenTransaction, final: DraftFields) -> None:
        """Keep a half that was just added."""
        size = len(final[2]) + len(final[3]) + _OVERHEAD_BYTES
        position = f"{entry.position}"
        self[position] = _new_tuple(RecentHalf, (entry, f"{entry.offsets[0]}", final))
        self._sizes.append((position, size))
        self._bytes += size
        while self._bytes > self._max_bytes:
            position, size = self._sizes.popleft()
            self.pop(position, None)
            self._bytes -= size

    def forget(self, entry: OpenTransaction) -> None:
        """Drop a half that is decided or has another copy."""
        self.pop(f"{entry.position}", None)
