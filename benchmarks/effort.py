"""How long a benchmark runs, and the structure of its results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time to spend; a figure is the median of ``rounds`` interleaved rounds."""

    rounds: int
    seconds: float
    """Duration of one measurement within a round."""
    scale: float = 1.0
    """Scale of the setup: messages, topics, consumers."""

    def scaled(self, count: int) -> int:
        """``count`` times the scale, at least one."""
        return max(1, round(count * self.scale))


QUICK: Final = Effort(rounds=5, seconds=0.3)
FULL: Final = Effort(rounds=5, seconds=3.0)
TINY: Final = Effort(rounds=1, seconds=0.02, scale=0.01)
"""Only shows that a benchmark works."""

Figures = dict[str, Any]


class Target(TypedDict):
    """A target, and whether this run met it."""

    name: str
    target: float
    reached: float
    met: bool


def at_least(name: str, target: float, reached: float) -> Target:
    """A target for a rate or a ratio."""
    return {"name": name, "target": target, "reached": reached, "met": reached >= target}


def at_most(name: str, target: float, reached: float) -> Target:
    """A target for a time or a size."""
    return {"name": name, "target": target, "reached": reached, "met": reached <= target}


def median(values: Sequence[float], digits: int = 0) -> float:
    """The median of some rounds, rounded for display."""
    middle = statistics.median(values)
    return round(middle, digits) if digits else round(middle)


def ratio(ours: Sequence[float], baseline: Sequence[float]) -> Figures:
    """The median of the ratios per round, with the lowest and the highest: far apart under load."""
    ratios = [one / other for one, other in zip(ours, baseline, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }
