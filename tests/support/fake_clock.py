"""A clock for tests on a real loop, which stands still until it is advanced."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import TypeVarTuple

from penstock.runtime.clock import TimerHandle
from penstock.runtime.durations import Duration, seconds
from penstock.testing.clock import DEFAULT_START, floor_ms

_Ts = TypeVarTuple("_Ts")

SETTLE_TURNS = 20
"""Turns of the loop that `FakeClock` lets pass between two timers."""


class _FakeTimer:
    """A callback that waits for a `FakeClock` to be advanced."""

    __slots__ = ("_args", "_callback", "_is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self._callback = callback
        self._args = args
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def cancelled(self) -> bool:
        return self._is_cancelled

    def fire(self) -> None:
        if not self._is_cancelled:
            self._callback(*self._args)


class FakeClock:
    """A `Clock` on a real loop that moves only when `advance` is called.

    `advance` fires what is due in order, at its own time, and lets the loop turn in between so that
    woken tasks may set new timers. Work that needs more than `SETTLE_TURNS` turns, or another
    thread, is awaited with `eventually`.
    """

    def __init__(self, start: float = DEFAULT_START) -> None:
        self._offset_ms = round(start * 1000)
        self._now = 0.0
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._sequence = 0

    def time(self) -> float:
        return self._offset_ms / 1000 + self._now

    def time_ms(self) -> int:
        return self._offset_ms + floor_ms(self._now)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts
    ) -> TimerHandle:
        timer = _FakeTimer(callback, args)
        self._sequence += 1
        heapq.heappush(self._timers, (self._now + max(0.0, delay), self._sequence, timer))
        return timer

    async def advance(self, duration: Duration) -> None:
        """Let time pass: fire all that is due in it, each at its own moment."""
        end = self._now + seconds(duration)
        await _settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                continue
            self._now = max(self._now, when)
            timer.fire()
            await _settle()
        self._now = end
        await _settle()

    def jump(self, by: Duration) -> None:
        """Set the wall clock forward, or back if negative; timers do not notice."""
        self._offset_ms += round(seconds(by, allow_negative=True) * 1000)

    @property
    def waiting(self) -> int:
        """How many timers and sleeps have yet to fire."""
        return sum(not timer.cancelled() for _, _, timer in self._timers)


async def _settle() -> None:
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
