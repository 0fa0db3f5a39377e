"""Open streams of server-sent events, bounded for each browser.

A browser has six connections to a host for all its tabs, and a stream keeps one of them. So a
session has at most four streams; with a fifth the oldest one ends, and its tab asks from time to
time instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_STREAMS = 200
MAX_OF_SESSION = 4
ENDED = "event: ended\ndata: {}\n\n"
"""What a stream says when another tab has taken its place, or its user is gone."""


@dataclass(slots=True)
class Streams:
    """The streams that are open now."""

    _of_session: dict[str, list[asyncio.Event]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self._of_session.values()))

    @property
    def is_full(self) -> bool:
        return self.count >= MAX_STREAMS

    def end(self, session: str) -> None:
        """Have all streams of a session end."""
        for ended in self._of_session.get(session, ()):
            ended.set()

    @contextlib.contextmanager
    def opened(self, session: str) -> Iterator[asyncio.Event]:
        """A stream of a session; the event is set when it is to end."""
        ended = asyncio.Event()
        own = self._of_session.setdefault(session, [])
        own.append(ended)
        for older in own[:-MAX_OF_SESSION]:
            older.set()
        try:
            yield ended
        finally:
            own.remove(ended)
            if not own:
                self._of_session.pop(session, None)


async def ended_within(ended: asyncio.Event, seconds: float) -> bool:
    """Wait; whether the stream is to end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ended.wait()
    return ended.is_set()
