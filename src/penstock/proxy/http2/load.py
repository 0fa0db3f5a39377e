"""What all connections of a server keep together, and how much one of them may.

Above the bounds of the whole server, connections that keep little are still served: a client that
fills them holds up those that do as it does, and not the others.
"""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 256 << 20
"""Headers, requests and answers that are not taken, of all connections."""
MAX_CONNECTION_BYTES: Final = 64 << 20
"""The same of one connection: sixteen messages of the greatest size at a time."""
FREE_CONNECTION_BYTES: Final = 64 << 10
MAX_CALLS: Final = 50_000
"""At a time, of all connections."""
MAX_CONNECTION_CALLS: Final = 4096
FREE_CONNECTION_CALLS: Final = 8


class Load:
    """Bytes and calls of all connections of a server."""

    def __init__(self) -> None:
        self.size = 0
        self.calls = 0

    def is_too_much(self, kept: int) -> bool:
        """Whether a connection that keeps so many bytes keeps too many."""
        return kept > FREE_CONNECTION_BYTES and (
            kept > MAX_CONNECTION_BYTES or self.size > MAX_BYTES
        )

    def is_full(self, calls: int) -> bool:
        """Whether a connection with so many calls gets no further one."""
        return calls >= MAX_CONNECTION_CALLS or (
            self.calls >= MAX_CALLS and calls >= FREE_CONNECTION_CALLS
        )
