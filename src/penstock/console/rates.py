"""How many requests a browser may make: a bucket that fills again, one for each session.

A person's browser stays far below the limit; a script that asks in a loop, or a page whose
refreshing went wrong, has to wait before it costs the brokers anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REQUESTS_PER_SECOND = 20.0
AT_ONCE = 60.0
"""What may come in one go: a browser that opens again asks for all its tabs together."""
MAX_BUCKETS = 4096


@dataclass(slots=True)
class Rates:
    """The buckets of those who asked of late."""

    per_second: float = REQUESTS_PER_SECOND
    at_once: float = AT_ONCE
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What is left in a bucket, and when that was so; the one that asked last is at the end."""

    def wait(self, who: str, now: float) -> float:
        """Count a request; 0 if it may pass, else the seconds after which one may."""
        left, then = self._left.pop(who, (self.at_once, now))
        left = min(self.at_once, left + (now - then) * self.per_second)
        passes = left >= 1
        self._left[who] = (left - 1 if passes else left, now)
        if len(self._left) > MAX_BUCKETS:
            # The one that was silent longest is fullest, so forgetting it gives away least.
            self._left.pop(next(iter(self._left)))
        return 0.0 if passes else (1 - left) / self.per_second
