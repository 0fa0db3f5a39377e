"""How far a broker has got with half messages, for its next start and for other brokers.

Two offsets are saved as those of a group. All halves below the first one are closed. The op records
from the second one on close the halves at or above the first that are closed.
"""

from __future__ import annotations

from collections import deque

_MAX_BUCKETS = 4096


class OpRecords:
    """The op records that may still be needed, while an older half is open.

    They are kept in buckets of one record. When a half stays open for so long that there are too
    many, two neighbours become one, and from then on each bucket takes twice as many.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()
        """Offset of the first op record of a bucket, and the highest offset that it closes."""
        self._bucket_size = 1
        self._in_last = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, op_offset: int, highest: int) -> None:
        """Note a record that was written."""
        buckets = self._buckets
        if buckets and self._in_last < self._bucket_size:
            first, before = buckets.pop()
            buckets.append((first, max(before, highest)))
            self._in_last += 1
            return
        buckets.append((op_offset, highest))
        self._in_last = 1
        if len(buckets) > _MAX_BUCKETS:
            # An odd number: the last one stays as it is.
            older, last = list(buckets)[:-1], buckets[-1]
            pairs = zip(older[::2], older[1::2], strict=True)
            self._buckets = deque((one[0], max(one[1], two[1])) for one, two in pairs)
            self._buckets.append(last)
            self._bucket_size *= 2

    def needed_from(self, half_offset: int) -> int | None:
        """The first record that closes a half at or above an offset; None if none does."""
        while self._buckets and self._buckets[0][1] < half_offset:
            self._buckets.popleft()
        if not self._buckets:
            self._bucket_size = 1
            return None
        return self._buckets[0][0]
