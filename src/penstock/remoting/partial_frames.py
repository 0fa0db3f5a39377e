"""Frames that are only partly received, over all connections of one server.

Each connection buffers at most one frame, but ten thousand connections would still fill the memory.
So their total is bounded: when it exceeds the limit, the connection whose frame began first is cut.
A peer that really sends a large frame completes it quickly; one that holds it back is the oldest.
"""

from __future__ import annotations

from typing import Protocol


class Gathering(Protocol):
    """A connection that buffers part of a frame; compared by identity."""

    def give_up(self, reason: str) -> None:
        """Drop the frame, which ends the connection."""


class PartialFrames:
    """Buffered bytes by connection, in the order in which the frames began."""

    __slots__ = ("_limit", "_sizes", "total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Gathering, int] = {}
        self.total = 0
        """Buffered bytes of all connections."""

    def note(self, connection: Gathering, size: int) -> None:
        """Record the buffered bytes of a connection; 0 once its frame is complete or it is lost."""
        self.total += size - self._sizes.get(connection, 0)
        if not size:
            self._sizes.pop(connection, None)
            return
        # An existing key keeps its place, so the order is that in which the frames began.
        self._sizes[connection] = size
        while self.total > self._limit:
            oldest = next(iter(self._sizes))
            held = self._sizes.pop(oldest)
            self.total -= held
            oldest.give_up(
                f"{held} bytes of an unfinished frame, the oldest of more than {self._limit} "
                "bytes on all connections (max_unfinished_bytes)"
            )
