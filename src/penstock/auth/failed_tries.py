"""Limits how often a peer may try wrong secrets.

Counted for each address and user: from the tenth failure within a minute on, requests are refused
without computing anything, first for a second, then for twice as long each time, up to a minute. A
user is never locked for all addresses, since that would let anyone lock out an administrator.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FREE_TRIES: Final = 10
WINDOW_MS: Final = 60_000
FIRST_PAUSE_MS: Final = 1_000
MAX_PAUSE_MS: Final = 60_000
MAX_LINES: Final = 60
"""Bounds the log against invented users: lines in a minute, of all pairs together."""
MAX_PAIRS: Final = 4096
"""Bounds memory against invented users; the pair that was silent longest is dropped."""


@dataclass(slots=True)
class _Failures:
    since_ms: int
    count: int = 0
    pause_ms: int = 0
    refused_until_ms: int = 0
    logged_ms: int = 0


class FailedTries:
    """Counts failures and tells who must wait."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._minute_ms = 0
        self._lines = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def must_wait(self, address: str, user: str, now_ms: int) -> bool:
        failures = self._pairs.get((address, user))
        return failures is not None and now_ms < failures.refused_until_ms

    def failed(self, address: str, user: str, now_ms: int) -> bool:
        """Count a failure; True if it should be logged: once a minute for each pair."""
        key = (address, user)
        failures = self._pairs.get(key)
        if failures is None or now_ms - failures.since_ms > WINDOW_MS + failures.pause_ms:
            failures = self._pairs[key] = _Failures(now_ms)
            if len(self._pairs) > MAX_PAIRS:
                self._pairs.popitem(last=False)
        self._pairs.move_to_end(key)
        failures.count += 1
        if failures.count >= FREE_TRIES:
            failures.pause_ms = min(max(FIRST_PAUSE_MS, 2 * failures.pause_ms), MAX_PAUSE_MS)
            failures.refused_until_ms = now_ms + failures.pause_ms
        if failures.count > 1 and now_ms - failures.logged_ms < WINDOW_MS:
            return False
        failures.logged_ms = now_ms
        return self._has_line(now_ms)

    def _has_line(self, now_ms: int) -> bool:
        if now_ms - self._minute_ms >= WINDOW_MS:
            self._minute_ms, self._lines = now_ms, 0
        self._lines += 1
        return self._lines <= MAX_LINES

    def succeeded(self, address: str, user: str) -> None:
        self._pairs.pop((address, user), None)
