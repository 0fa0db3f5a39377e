"""Limits how much each user asks of a server: requests, bytes, and what it creates.

A bucket holds what may be used at once, the amount of a second (of an hour for creations), and
fills up again evenly. What is asked for is taken while there is anything left, so that a message
that is longer than the bytes of a second can be sent, too; then the user waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.auth.model import User, UserLimits
from penstock.errors import SystemBusy

_HOUR: Final = 3600.0


class _Bucket:
    __slots__ = ("_capacity", "_left", "_per_second", "_since")

    def __init__(self, limit: int, seconds: float, now: float) -> None:
        self._capacity = float(limit)
        self._per_second = limit / seconds
        self._left = self._capacity
        self._since = now

    def take(self, amount: int, now: float) -> bool:
        """Take so much; False, and nothing is taken, if nothing is left."""
        filled = self._left + (now - self._since) * self._per_second
        self._left, self._since = min(self._capacity, filled), now
        # Whole units: a third of a request is none, however the clock rounds.
        if self._left < min(1.0, self._capacity) - 1e-9:
            return False
        self._left -= amount
        return True


class _Buckets:
    __slots__ = ("bytes", "creations", "limits", "requests")

    def __init__(self, limits: UserLimits, now: float) -> None:
        def bucket(limit: int | None, seconds: float = 1.0) -> _Bucket | None:
            return None if limit is None else _Bucket(limit, seconds, now)

        self.limits = limits
        self.requests = bucket(limits.requests)
        self.bytes = bucket(limits.bytes)
        self.creations = bucket(limits.creations, _HOUR)


class UserRates:
    """The buckets of the users that have limits."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._buckets: dict[str, _Buckets] = {}

    def check_request(self, user: User, size: int) -> None:
        """Count a request with a body of ``size`` bytes; raises `SystemBusy`."""
        limits = user.limits
        if not limits.has_rates:
            return
        now = self._monotonic()
        buckets = self._of(user, now)
        if buckets.requests is not None and not buckets.requests.take(1, now):
            raise _too_much(user, f"{limits.requests} requests a second")
        if buckets.bytes is not None and not buckets.bytes.take(size, now):
            raise _too_much(user, f"{limits.bytes} bytes a second")

    def check_creations(self, user: User, count: int) -> None:
        """Count topics and groups that a request creates; raises `SystemBusy`."""
        limit = user.limits.creations
        if not count or limit is None:
            return
        now = self._monotonic()
        creations = self._of(user, now).creations
        assert creations is not None, "the limits say so"
        if not creations.take(count, now):
            raise _too_much(user, f"{limit} new topics and groups an hour")

    def _of(self, user: User, now: float) -> _Buckets:
        buckets = self._buckets.get(user.name)
        if buckets is None or buckets.limits != user.limits:
            buckets = self._buckets[user.name] = _Buckets(user.limits, now)
        return buckets


def _too_much(user: User, expected: str) -> SystemBusy:
    return SystemBusy(
        f"User:{user.name} exceeds its limit",
        expected=f"at most {expected}",
        hint="wait a moment; penstock user limit changes it",
    )
