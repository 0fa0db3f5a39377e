"""When a delayed message is due, also if the clock of the machine is set in the meantime.

A record has the wall time at which it was stored. Its delay is measured in monotonic time, which
cannot be set. So each level remembers how far both clocks were apart when its messages arrived:

    queue offset    0 ............ 70 ............ 95 ......
    apart by        A              B (set back)    C (set forward again)

Most of the time there is one such span. Messages that were stored before the broker started have
the difference of the start; if the clock was set back while the broker was down, they seem to come
from the future, and wait for their delay from the start on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.runtime.clock import Clock

_TOLERANCE_MS = 200.0
"""Clocks are adjusted all the time; by less than this is not a jump."""
_MAX_SPANS = 1000
"""Of one level; bounds memory if a clock is set again and again."""


class _Span(NamedTuple):
    first_offset: int
    apart_ms: float
    """Wall time less monotonic time."""
    latest_ms: float = math.inf
    """When its messages were stored at the latest, in monotonic time."""


class DelayTimes:
    """The due times of one level."""

    def __init__(self, clock: Clock, end: int) -> None:
        """``end`` is the queue offset of the level's first message from now on."""
        self._clock = clock
        apart = self._apart_ms()
        self._spans = [
            _Span(0, apart, clock.monotonic() * 1000),
            _Span(end, apart),
        ]

    def arrived(self, queue_offset: int) -> None:
        """A message was stored just now."""
        apart = self._apart_ms()
        if abs(apart - self._spans[-1].apart_ms) > _TOLERANCE_MS and len(self._spans) < _MAX_SPANS:
            self._spans.append(_Span(queue_offset, apart))

    def seconds_left(self, queue_offset: int, store_timestamp: int, delay_ms: int) -> float:
        """How long a message has to wait; 0 or less when it is due."""
        spans = self._spans
        # Messages fall due in the order of the queue, so spans before this one are used up.
        while len(spans) > 1 and spans[1].first_offset <= queue_offset:
            del spans[0]
        stored_ms = min(store_timestamp - spans[0].apart_ms, spans[0].latest_ms)
        return (stored_ms + delay_ms) / 1000 - self._clock.monotonic()

    def _apart_ms(self) -> float:
        before = self._clock.monotonic()
        wall = self._clock.time()
        # The thread may be interrupted between the readings.
        return (wall - (before + self._clock.monotonic()) / 2) * 1000
