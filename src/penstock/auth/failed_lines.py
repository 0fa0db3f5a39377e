"""Audit lines about wrong signatures: one a minute for each address and user, with the number.

A peer that tries secrets sends thousands of requests a second. A line for each would push what else
the audit file has out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.auth.audit import AuditLine
from penstock.runtime.clock import Clock, TimerHandle

LINE_SECONDS: Final = 60.0
MAX_PAIRS: Final = 1024
"""Bounds memory, and the lines of a minute, against invented users."""
_OTHERS: Final = ("", "")
"""Stands for all pairs above the bound."""

Pair = tuple[str, str]


@dataclass(slots=True)
class _Unwritten:
    last: AuditLine
    written_at: float
    count: int = 0


class FailedLines:
    """Writes the first line of a pair at once, and counts the next ones."""

    def __init__(self, write: Callable[[AuditLine], None], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._pairs: dict[Pair, _Unwritten] = {}
        self._timer: TimerHandle | None = None

    def add(self, address: str, user: str, line: AuditLine) -> None:
        """A request with a wrong signature was refused."""
        pair = (address, user)
        if pair not in self._pairs and len(self._pairs) >= MAX_PAIRS:
            pair = _OTHERS
        known = self._pairs.get(pair)
        if known is not None:
            known.last = line
            known.count += 1
            return
        self._pairs[pair] = _Unwritten(line, self._clock.monotonic())
        self._write(line)
        if self._timer is None:
            self._timer = self._clock.call_later(LINE_SECONDS, self._write_counts)

    def close(self) -> None:
        """Write what was counted."""
        if self._timer is not None:
            self._timer.cancel()
        for pair, unwritten in self._pairs.items():
            self._write_count(pair, unwritten)
        self._pairs.clear()

    def _write_counts(self) -> None:
        now = self._clock.monotonic()
        for pair, unwritten in list(self._pairs.items()):
            if now - unwritten.written_at < LINE_SECONDS:
                continue
            if unwritten.count == 0:
                del self._pairs[pair]
            else:
                self._write_count(pair, unwritten)
                unwritten.count, unwritten.written_at = 0, now
        self._timer = None
        if self._pairs:
            self._timer = self._clock.call_later(LINE_SECONDS, self._write_counts)

    def _write_count(self, pair: Pair, unwritten: _Unwritten) -> None:
        if unwritten.count == 0:
            return
        whose = " of other users and addresses" if pair == _OTHERS else ""
        reason = f"{unwritten.last.reason} ({unwritten.count} requests{whose} since the last line)"
        self._write(unwritten.last._replace(reason=reason))
