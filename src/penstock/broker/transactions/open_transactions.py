"""The transactions of a broker that are not decided yet, one entry for each.

Every copy of a half belongs to the entry of its transaction, so a decision that names any of them
closes all. Entries are kept in the order of their oldest copy: that is how far the broker has got
with the half topic.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.protocol.half_messages import TransactionKey
from penstock.protocol.headers.transactions import TransactionDecision


class OpenTransaction(msgspec.Struct, eq=False):
    """One transaction whose decision is missing."""

    key: TransactionKey
    offsets: list[int]
    """Queue offsets of the copies that no op record names yet, oldest first."""
    position: int
    """The log position of the newest copy."""
    first_stored_ms: int
    check_times: int = 0
    immunity_ms: int | None = None
    decision: int = TransactionDecision.UNKNOWN
    """Other than unknown: on its way to the log."""
    decided_end: int = 0
    """Where in the log the message of a commit on its way ends."""

    def is_due(self, now_ms: int, timeout_ms: int) -> bool:
        """Whether the transaction is old enough to be asked about."""
        # The clock may have been set back, or the store comes from another machine.
        self.first_stored_ms = min(self.first_stored_ms, now_ms)
        limit = timeout_ms if self.immunity_ms is None else self.immunity_ms
        return now_ms - self.first_stored_ms > limit


class OpenTransactions:
    """All transactions that are not decided yet."""

    def __init__(self) -> None:
        self._entries: dict[TransactionKey, OpenTransaction] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(self._entries.values())

    def __contains__(self, entry: OpenTransaction) -> bool:
        return self._entries.get(entry.key) is entry

    def get(self, key: TransactionKey) -> OpenTransaction | None:
        """The open transaction of a half message."""
        return self._entries.get(key)

    def add(self, new: OpenTransaction) -> bool:
        """Add a half; False if it is another copy of one that is there, as of a repeated send."""
        known = self._entries.setdefault(new.key, new)
        if known is new:
            return True
        known.offsets += new.offsets
        known.position = new.position
        known.check_times = max(known.check_times, new.check_times)
        return False

    def replaced(
        self, entry: OpenTransaction, offset: int, position: int, check_times: int
    ) -> None:
        """A new copy stands for all earlier ones, which are closed."""
        entry.offsets = [offset]
        entry.position = position
        entry.check_times = check_times
        del self._entries[entry.key]
        self._entries[entry.key] = entry

    def remove(self, entry: OpenTransaction) -> None:
        """Forget a transaction that is decided or given up."""
        del self._entries[entry.key]

    def lowest_offset(self) -> int | None:
        """The queue offset of the oldest half that is open; None if none is."""
        first = next(iter(self._entries.values()), None)
        return None if first is None else first.offsets[0]
