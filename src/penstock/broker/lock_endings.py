"""Notifies a group when the locks of a closed connection end, so that its members take the queues.

The members were notified when the connection closed, and were refused the locks: a lock outlives
its connection for its lease (`tables.queue_locks`). Without a second notice they would ask again
only at their next rebalance, 20 s later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

_AFTER = 0.001
"""A lock has ended when its lease is exceeded."""


class LockEndings(Service):
    """The groups to notify, and when."""

    def __init__(self, clock: Clock, notify: Callable[[str], None]) -> None:
        self._clock = clock
        self._notify = notify
        self._ends: dict[str, float] = {}
        self._changed = asyncio.Event()

    def notify_at(self, ends: Mapping[str, float]) -> None:
        """Notify each group when its locks have ended, in monotonic seconds."""
        for group, end in ends.items():
            self._ends[group] = max(self._ends.get(group, 0.0), end + _AFTER)
            self._changed.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            for group in [group for group, end in self._ends.items() if end <= now]:
                del self._ends[group]
                self._notify(group)
            timer = None
            if self._ends:
                timer = self._clock.call_later(min(self._ends.values()) - now, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()
