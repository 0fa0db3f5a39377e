"""How far a broker has got with half messages, for its next start and for other brokers.

Two offsets are saved as those of a group. All halves below the first one are closed. The op records
from the second one on close the halves at or above the first that are closed.
"""

from __future__ import annotations

from collections import deque

_MAX_OP_RECORDS = 4096


class OpRecords:
    """The op records that may still be needed, while an older half is open."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, int]] = deque()
        """Queue offset of an op record, and the highest offset that it closes."""

    def add(self, op_offset: int, highest: int) -> None:
        """Note a record that was written."""
        self._records.append((op_offset, highest))
        if len(self._records) > _MAX_OP_RECORDS:
            # A half that stays open for long must not cost memory: two by two they are one.
            records = list(self._records)
            self._records = deque(
                (first[0], max(first[1], second[1]))
                for first, second in zip(records[::2], records[1::2], strict=False)
            )
            if len(records) % 2:
                self._records.append(records[-1])

    def needed_from(self, half_offset: int) -> int | None:
        """The first record that closes a half at or above an offset; None if none does."""
        while self._records and self._records[0][1] < half_offset:
            self._records.popleft()
        return self._records[0][0] if self._records else None
