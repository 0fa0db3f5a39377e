"""Ranges of messages: what a read comes to, and what tasks are made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Range:
    """The messages of a queue from ``low`` up to, and without, ``high``."""

    queue: MessageQueue
    low: int
    high: int

    @property
    def count(self) -> int:
        return self.high - self.low
