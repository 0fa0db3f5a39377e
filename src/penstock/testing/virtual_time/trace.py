"""A record of what happened on a virtual loop."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

TRACE_LIMIT = 200_000


class Trace:
    """What happened, as tuples ``(time, event, *details)``; two runs compare by `digest`.

    The newest events are kept as they are; older ones only count in the digest.
    """

    def __init__(self, limit: int = TRACE_LIMIT) -> None:
        self.events: list[tuple[object, ...]] = []
        self._limit = limit
        self._folded = 0
        self._dropped = 0

    def record(self, time: float, event: str, *details: object) -> None:
        self.events.append((time, event, *details))
        if len(self.events) > self._limit:
            half = self._limit // 2
            self._folded = _fold(self.events[:half], self._folded)
            self._dropped += half
            del self.events[:half]

    def digest(self) -> str:
        """A short text that is equal for equal traces."""
        return f"{len(self)}-{_fold(self.events, self._folded):08x}"

    def named(self, *names: str) -> list[tuple[object, ...]]:
        """The kept events with one of these names."""
        return [event for event in self.events if event[1] in names]

    def __len__(self) -> int:
        return self._dropped + len(self.events)


def _fold(events: Sequence[tuple[object, ...]], value: int) -> int:
    for event in events:
        value = zlib.crc32(repr(event).encode(), value)
    return value
