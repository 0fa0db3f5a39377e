"""How often a login may be tried from an address: for one user, and for all users together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.console.security import TRIES_PER_MINUTE

_K = TypeVar("_K")

TRIES_OF_ADDRESS = 20
"""Or one address could try as many passwords as it can think of names."""
MAX_COUNTED = 2000
_SECONDS = 60.0


@dataclass(slots=True)
class LoginTries:
    """The tries of the last minute that did not succeed, or did not end yet."""

    refused: int = 0
    """Tries beyond the limit since they were last written down."""
    _of_pair: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _of_address: dict[str, list[float]] = field(default_factory=dict)

    def begin(self, address: str, user: str) -> float | None:
        """Count a try before it is made, so that tries at the same time are limited as well.

        None if it may not be made; else the value for `undo`.
        """
        now = time.monotonic()
        of_pair = _recent(self._of_pair, (address, user), now)
        of_address = _recent(self._of_address, address, now)
        if len(of_pair) >= TRIES_PER_MINUTE or len(of_address) >= TRIES_OF_ADDRESS:
            self.refused += 1
            return None
        of_pair.append(now)
        of_address.append(now)
        return now

    def undo(self, address: str, user: str, begun: float) -> None:
        """Do not count a try: its keys were right."""
        for times in (self._of_pair.get((address, user)), self._of_address.get(address)):
            if times and begun in times:
                times.remove(begun)


def _recent(counted: dict[_K, list[float]], key: _K, now: float) -> list[float]:
    """The times of the last minute; the key that was used last is at the end of the table."""
    times = [at for at in counted.pop(key, ()) if now - at < _SECONDS]
    counted[key] = times
    while len(counted) > MAX_COUNTED:
        counted.pop(next(iter(counted)))
    return times
