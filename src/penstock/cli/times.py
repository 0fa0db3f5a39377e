"""Moments and rates as people type them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime

from penstock.errors import InvalidArgument
from penstock.runtime.durations import seconds

EARLIEST_MS = 10**11
"""Numbers below are no epoch milliseconds: they would be before March 1973."""

_EXPECTED = "a time such as 2026-11-16T14:30, 14:30, 10m (ago), or epoch milliseconds"


def moment_ms(text: str, *, option: str, now: float | None = None) -> int:
    """A moment in epoch milliseconds; without a zone it is local time, as clocks on walls show it.

    ``14:30`` is today, ``90s``, ``10m``, ``2h`` or ``1d`` are so long ago.
    """
    stripped = text.strip()
    present = time.time() if now is None else now
    if stripped.isascii() and stripped.isdigit():
        if int(stripped) < EARLIEST_MS:
            raise _refused(option, text)
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        pass
    else:
        return round(moment.astimezone().timestamp() * 1000)
    try:
        clock = datetime.strptime(stripped, "%H:%M").time()  # noqa: DTZ007 - local time is meant
    except ValueError:
        pass
    else:
        today = datetime.fromtimestamp(present).astimezone().date()
        return round(datetime.combine(today, clock).astimezone().timestamp() * 1000)
    duration = stripped.removesuffix("ago").strip().removeprefix("-").strip()
    if duration.replace(".", "", 1).isdecimal():
        # -5 may be the fifth from the end, five seconds ago or a slip: nobody knows.
        raise InvalidArgument(f"{option} {text!r} has no unit", expected=_EXPECTED)
    try:
        ago = seconds(duration)
    except InvalidArgument:
        raise _refused(option, text) from None
    return max(0, round((present - ago) * 1000))


def _refused(option: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"{option} {text!r}", expected=_EXPECTED)


class Pacer:
    """Holds a loop to a rate: the n-th `wait` returns n / rate seconds after the first, or later.

    Time lost is made up for up to one second, so that a slow moment is not a lower rate for good
    and a long stop is not followed by a flood.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and (not math.isfinite(rate) or rate <= 0):
            raise InvalidArgument(f"--rate {rate}", expected="more than 0 messages a second")
        self._step = 0.0 if rate is None else 1.0 / rate
        self._clock = clock
        self._sleep = sleep
        self._next: float | None = None

    @property
    def is_limiting(self) -> bool:
        """Whether there is a rate at all."""
        return self._step > 0

    def wait(self, count: int = 1) -> None:
        """Return when ``count`` more are due."""
        if not self._step:
            return
        now = self._clock()
        due = now if self._next is None else max(self._next, now - 1.0)
        self._next = due + count * self._step
        if due > now:
            self._sleep(due - now)
