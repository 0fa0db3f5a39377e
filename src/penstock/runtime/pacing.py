"""A loop at a rate: sends, redrives, measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from penstock.errors import InvalidArgument


class Pacer:
    """Limits a loop to a rate: the n-th `wait` returns n / rate seconds after the first, or later.

    Lost time is made up for by at most one second. So a slow moment does not lower the rate
    for good, and a long pause is not followed by a burst.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and (not math.isfinite(rate) or rate <= 0):
            raise InvalidArgument(f"a rate of {rate}", expected="more than 0 messages per second")
        self._step = 0.0 if rate is None else 1.0 / rate
        self._clock = clock
        self._sleep = sleep
        self._next: float | None = None

    @property
    def is_limiting(self) -> bool:
        """Whether there is a rate."""
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
