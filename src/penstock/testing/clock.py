"""The clock of a virtual loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVarTuple

from penstock.runtime.clock import TimerHandle
from penstock.runtime.durations import Duration, seconds

if TYPE_CHECKING:
    from penstock.testing.virtual_time.loop import VirtualLoop

_Ts = TypeVarTuple("_Ts")

DEFAULT_START = 1_700_000_000.0
"""Wall time at which a test begins: a round number in November 2023."""


def floor_ms(now: float) -> int:
    """Whole milliseconds of a time in seconds."""
    # The addend undoes the rounding of sums such as 0.1 + 0.2, and is less than any real step.
    return math.floor(now * 1000 + 1e-6)


class VirtualClock:
    """The `Clock` of a virtual loop. Hosts with different wall clocks are different objects."""

    def __init__(self, loop: VirtualLoop, start: float = DEFAULT_START) -> None:
        self._loop = loop
        self._offset_ms = round(start * 1000) - floor_ms(loop.time())

    @property
    def loop(self) -> VirtualLoop:
        """The loop whose time this is."""
        return self._loop

    def time(self) -> float:
        return self._offset_ms / 1000 + self._loop.time()

    def time_ms(self) -> int:
        return self._offset_ms + floor_ms(self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts
    ) -> TimerHandle:
        return self._loop.call_later(delay, callback, *args)

    def jump(self, by: Duration) -> None:
        """Set the wall clock forward, or back if negative; timers do not notice."""
        self._offset_ms += round(seconds(by, allow_negative=True) * 1000)

    async def advance(self, duration: Duration) -> None:
        """Let time pass, then wait until all that is due by then has happened."""
        await self._loop.passed(seconds(duration))
