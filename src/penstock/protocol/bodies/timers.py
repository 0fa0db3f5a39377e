"""Timer messages that wait: ``config/timermetrics`` and the answer to GET_TIMER_METRICS."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.bodies.common import DataVersion


@dataclass(frozen=True, slots=True)
class TopicTimers:
    """How many timer messages wait for a topic, and since when that is so."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True)
class TimerMetricsTable:
    """Timer messages that wait, by topic."""

    timing_count: dict[str, TopicTimers] = field(default_factory=dict)
    data_version: DataVersion | None = None
