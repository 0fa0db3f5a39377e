"""The counters of half messages: ``config/transactionMetrics``."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.bodies.common import DataVersion


@dataclass(frozen=True, slots=True)
class HalfCount:
    """How many half messages of a topic are open, and since when the number is that."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True)
class TransactionMetrics:
    """Open half messages by their real topic."""

    data_version: DataVersion | None = None
    transaction_count: dict[str, HalfCount] = field(default_factory=dict)
