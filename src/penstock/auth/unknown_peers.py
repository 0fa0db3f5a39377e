"""Limits for connections without a user: they may wait a short time, and be few.

A connection has a user from its first request with a valid signature on. Until then it counts as
unknown: it is closed after `SECONDS`, its frames may be only as long as a usual message, and when
too many are unknown, the oldest one is closed for the newest one. So an attacker with thousands of
silent connections keeps no one else out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.remoting.peer import Peer

log = logging.getLogger(__name__)

SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 4 << 20
"""The largest message of a broker, as it is delivered."""
UNKNOWN_SHARE: Final = 4
"""A quarter of all connections may be unknown."""
_HEADER_BYTES: Final = 64 << 10
_LOG_SECONDS: Final = 10.0


class UnknownPeers:
    """The connections of one server whose user is not known yet."""

    def __init__(self, max_peers: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_peers = max_peers
        self._max_frame_bytes = max_message_bytes + _HEADER_BYTES
        # A dict keeps the order: the oldest first.
        self._timers: dict[Peer, asyncio.TimerHandle] = {}
        self._logged_at = -_LOG_SECONDS

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, peer: Peer) -> None:
        """A connection was opened."""
        loop = asyncio.get_running_loop()
        if len(self._timers) >= self._max_peers:
            oldest = next(iter(self._timers))
            if loop.time() - self._logged_at >= _LOG_SECONDS:
                self._logged_at = loop.time()
                log.warning(
                    "too many connections without a user, the oldest are closed unknown=%d",
                    len(self._timers),
                )
            self.remove(oldest)
            oldest.abort("too many connections without a user")
        peer.limit_frames(self._max_frame_bytes)
        self._timers[peer] = loop.call_later(SECONDS, self._expire, peer)

    def remove(self, peer: Peer) -> None:
        """A connection has a user now, or it has ended."""
        timer = self._timers.pop(peer, None)
        if timer is not None:
            timer.cancel()
            peer.limit_frames(None)

    def _expire(self, peer: Peer) -> None:
        self.remove(peer)
        peer.close(f"no request with a valid signature within {SECONDS:g} s")
