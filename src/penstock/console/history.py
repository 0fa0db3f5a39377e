"""The course of a few numbers, for charts: in memory, bounded, begun when first shown.

2 s x 30 min for what is looked at; points closer together replace each other.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

STEP_SECONDS = 1.5
POINTS = 900
MAX_SERIES = 400


class Point(NamedTuple):
    """A value at a time, in seconds since 1970."""

    at: float
    value: float


@dataclass(slots=True)
class History:
    """Recent values by the name of their series."""

    _series: dict[str, deque[Point]] = field(default_factory=dict)

    def watch(self, name: str) -> None:
        """Begin a series; beyond the limit, the one that was begun first ends."""
        if name not in self._series:
            self._series[name] = deque(maxlen=POINTS)
            while len(self._series) > MAX_SERIES:
                self._series.pop(next(iter(self._series)))

    def add(self, name: str, value: float) -> None:
        """Note a value, if the series is watched."""
        series = self._series.get(name)
        if series is None:
            return
        now = time.time()
        if series and now - series[-1].at < STEP_SECONDS:
            series.pop()
        series.append(Point(now, value))

    def slope(self, name: str, seconds: float = 30) -> float | None:
        """How much a value grows in a second; None until there are two values."""
        points = self.points(name, seconds)
        if len(points) < 2:
            return None
        first, last = points[0], points[-1]
        return (last.value - first.value) / (last.at - first.at)

    def points(self, name: str, seconds: float = 1800) -> list[Point]:
        """The values of the last time, oldest first."""
        first = time.time() - seconds
        return [point for point in self._series.get(name, ()) if point.at >= first]
