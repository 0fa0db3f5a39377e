"""The load every client gets: what is sent when, what is counted, which numbers come of it.

Nothing here knows a client or a server. Bodies carry the time they were sent at; the clock is the
system's monotonic one, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Final

WARM_UP: Final = 0
COUNTED: Final = 1
HEAD_BYTES: Final = 18
PERCENTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def body(size: int, kind: int = COUNTED, stamp: float = 0.0) -> bytes:
    """A body of ``size`` bytes, or of as many as the stamp needs."""
    # Text, since the C++ client's binding ends a body at its first zero byte.
    head = b"%d%017.6f" % (kind, stamp)
    return head + b"x" * (size - len(head))


def stamp_of(data: bytes) -> tuple[int, float]:
    """The kind of a body and when it was sent."""
    return int(data[:1]), float(data[1:HEAD_BYTES])


def until(deadline: float, data: bytes) -> Iterator[bytes]:
    """The same body again and again, until the time is over."""
    clock = time.perf_counter
    while clock() < deadline:
        yield data


def sent_at(due: float, woken: float) -> float:
    """When a message counts as sent: when it was due, or when the generator woke up for it.

    A generator that oversleeps is not the client's fault; a client that keeps it from going on to
    the next message is, and the messages that became due meanwhile have waited since then.
    """
    return max(due, woken)


class Drain:
    """Counts what a receiver gets, from the first message to the last; safe with threads."""

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted = wanted
        self._seconds = seconds
        self._tickets = itertools.count(1)
        self._cpu = 0.0
        self.began = 0.0
        self.ended = 0.0
        self.cpu_seconds = 0.0
        self.count = 0

    def take(self, _data: bytes) -> bool:
        """One more; enough when all came or the time is over."""
        number = next(self._tickets)
        now = time.perf_counter()
        if number == 1:
            self.began, self._cpu = now, time.process_time()
        elif number == self._wanted or now - self.began > self._seconds:
            if not self.ended:
                self.ended, self.count = now, number
                self.cpu_seconds = time.process_time() - self._cpu
            return True
        return self._wanted == 1

    def per_second(self) -> float:
        """The rate after the first message, whose arrival started the clock."""
        return (self.count - 1) / (self.ended - self.began)


class Ages:
    """How old messages are when they arrive; warm-up messages only show that the way is open."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        """May become fewer meanwhile."""
        self.seconds: list[float] = []
        self.warm = False

    def take(self, data: bytes) -> bool:
        """One more; enough when all of those that count came."""
        now = time.perf_counter()
        kind, stamp = stamp_of(data)
        self.warm = True
        if kind == COUNTED:
            self.seconds.append(now - stamp)
        return len(self.seconds) >= self.wanted


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds; nearest rank, so that each is an age that was seen."""
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)
        for name, share in PERCENTILES.items()
    }
