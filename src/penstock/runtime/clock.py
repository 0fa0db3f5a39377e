"""Time as a dependency that is passed in.

Everything the protocol defines (long polls, delays, expiry, retention) asks a `Clock`, so that a
test can let two hours pass in a millisecond. `SystemClock` is the real one; `penstock.testing` has
`VirtualClock` for the virtual loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVarTuple

_Ts = TypeVarTuple("_Ts")


class TimerHandle(Protocol):
    """A callback that has yet to run; `asyncio.TimerHandle` is one."""

    def cancel(self) -> None:
        """Make sure the callback does not run; harmless when it already ran."""

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""


class Clock(Protocol):
    """What the time is, and a way to be called later.

    `time` is the wall clock: it may jump, and only what is stored or sent carries it. `monotonic`
    never goes back; durations and deadlines are measured with it, and its zero means nothing.
    """

    def time(self) -> float:
        """Wall time in seconds since 1970."""

    def time_ms(self) -> int:
        """Wall time in whole milliseconds since 1970, as RocketMQ stores and sends it."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of monotonic time; zero or less gives others one turn."""

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts
    ) -> TimerHandle:
        """Call ``callback(*args)`` on the running loop after ``delay`` seconds."""


class SystemClock:
    """The machine's clock and the running loop's timers."""

    __slots__ = ()

    def time(self) -> float:
        return time.time()

    def time_ms(self) -> int:
        # Dividing the nanoseconds keeps the millisecond exact; a float product may round it up.
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts
    ) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay, callback, *args)
