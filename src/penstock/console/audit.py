"""A line for each change made through the console: who, what, before, after."""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

_Entry = dict[str, object]

FAILED_LOGIN = "login refused"
KEPT = 500
KEPT_TRIES = 100
MAX_FILE_BYTES = 8 << 20
GENERATIONS = 5
MAX_TEXT = 1024


@dataclass(slots=True)
class Audit:
    """The newest changes in memory, and more of them in a file if there is one.

    Failed logins are kept apart: any visitor can cause as many as the rates allow, and must not
    push out what users did.
    """

    path: Path | None = None
    _changes: deque[_Entry] = field(default_factory=lambda: deque(maxlen=KEPT))
    _tries: deque[_Entry] = field(default_factory=lambda: deque(maxlen=KEPT_TRIES))

    @property
    def newest(self) -> list[_Entry]:
        """What is in memory, newest first."""
        oldest_first = sorted((*self._tries, *self._changes), key=_time)
        return oldest_first[::-1]

    def add(self, **facts: object) -> None:
        """Note a change."""
        entry: _Entry = {"time": time.time_ns() // 1_000_000}
        entry |= {name: _short(value) for name, value in facts.items()}
        (self._tries if facts.get("action") == FAILED_LOGIN else self._changes).append(entry)
        if self.path is None:
            return
        try:
            if self.path.exists() and self.path.stat().st_size > MAX_FILE_BYTES:
                self._rotate(self.path)
            with open(self.path, "a", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps(entry, default=str) + "\n")
        except OSError as error:
            log.error("audit line not written path=%s error=%s", self.path, error)

    def _rotate(self, path: Path) -> None:
        """Begin a new file; the oldest of its generations goes."""
        older = [path, *(path.with_suffix(f".{n}{path.suffix}") for n in range(1, GENERATIONS + 1))]
        for source, target in reversed(list(itertools.pairwise(older))):
            if source.exists():
                source.replace(target)


def _time(entry: _Entry) -> int:
    at = entry["time"]
    assert isinstance(at, int), "written by add"
    return at


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read: it names users and what they did."""
    return os.open(path, flags, 0o600)


def _short(value: object) -> object:
    """A value whose texts are cut: visitors without a login have typed some of them."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    if isinstance(value, dict):
        return {_short(key): _short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value
