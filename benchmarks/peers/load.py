"""The load for every client: when to send, what to count, and the resulting figures.

It is independent of clients and servers. Bodies contain their send time; the clock is the system's
monotonic one, which all processes of a machine share.
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
    """A body of ``size`` bytes, or of as many as the time stamp needs."""
    # Text, since the binding of the C++ client ends a body at its first zero byte.
    head = b"%d%017.6f" % (kind, stamp)
    return head + b"x" * (size - len(head))


def stamp_of(data: bytes) -> tuple[int, float]:
    """The kind of a body and its send time."""
    return int(data[:1]), float(data[1:HEAD_BYTES])


def until(deadline: float, data: bytes) -> Iterator[bytes]:
    """The same body repeatedly, until the time is over."""
    clock = time.perf_counter
    while clock() < deadline:
        yield data


def sent_at(due: float, woken: float) -> float:
    """The send time of a message: when it was due, or when the generator woke up for it.

    A late wake-up of the generator is not the client's fault. A client that delays the next message
    is: messages that became due in the meantime have waited since then.
    """
    return max(due, woken)


class Drain:
    """Counts received messages, from the first to the last; thread-safe."""

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
        """Count one message; return true if all have arrived or the time is over."""
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
        """The rate after the first message, which started the clock."""
        return (self.count - 1) / (self.ended - self.began)


class Ages:
    """Ages of messages at their arrival; warm-up messages only show that the path works."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        """May be reduced during the run."""
        self.seconds: list[float] = []
        self.warm = False

    def take(self, data: bytes) -> bool:
        """Record one message; return true if all that count have arrived."""
        now = time.perf_counter()
        kind, stamp = stamp_of(data)
        self.warm = True
        if kind == COUNTED:
            self.seconds.append(now - stamp)
        return len(self.seconds) >= self.wanted


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds; nearest rank, so that each is an observed age."""
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)
        for name, share in PERCENTILES.items()
    }
