"""The limits from which on a check reports something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the checks compare with; times in milliseconds."""

    stuck_ms: int = 60_000
    """A handler that runs longer is reported."""
    skew_ms: int = 5_000
    """Clocks may differ by this much."""
    settle_ms: int = 30_000
    """A member that started later may still be waiting for its share of the queues."""
    disk_used: float = 0.9
    """Brokers take no more messages from here on (diskSpaceWarningLevelRatio)."""
    in_flight_messages: int = 1_000
    """Popped and unfinished messages of a queue that are worth a look."""
    in_flight_limit: int = 10_000
    """From here on a queue gives no more (popInflightMessageThreshold)."""
