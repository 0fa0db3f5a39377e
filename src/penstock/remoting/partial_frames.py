"""Frames that have begun and not ended, over all connections of one server.

One connection may gather one frame, which is a bound for it and none for ten thousand of them. So
there is one for all: when it is reached, the connection whose frame takes longest is cut. Whoever
really sends a large frame is done in a moment; whoever holds one back was there first.
"""

from __future__ import annotations

from typing import Protocol


class Gathering(Protocol):
    """A connection that gathers a frame; compared by identity."""

    def give_up(self, reason: str) -> None:
        """Let go of the frame, which ends the connection."""


class PartialFrames:
    """Who gathers how much; the frame that began first stands first."""

    __slots__ = ("_limit", "_sizes", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Gathering, int] = {}
        self.total = 0
        """Bytes of all of them."""

    def note(self, connection: Gathering, size: int) -> None:
        """Say how much of its frame a connection has; 0 when it has the whole, or is gone."""
        self.total += size - self._sizes.get(connection, 0)
        if not size:
            self._sizes.pop(connection, None)
            return
        # A key that is there keeps its place, so the order is that of their beginnings.
        self._sizes[connection] = size
        while self.total > self._limit:
            oldest = next(iter(self._sizes))
            held = self._sizes.pop(oldest)
            self.total -= held
            oldest.give_up(
                f"{held} bytes of an unfinished frame, the oldest of more than {self._limit} "
                "bytes on all connections (max_unfinished_bytes)"
            )
