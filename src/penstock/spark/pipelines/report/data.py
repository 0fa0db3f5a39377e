"""The numbers of a report: filled by `gathering`, drawn by `page` and `figures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Point(NamedTuple):
    """A value at a moment, or of the bucket that begins there; times are epoch ms."""

    at_ms: int
    value: float


class Spread(NamedTuple):
    """How long it took in one bucket, in ms."""

    at_ms: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic within the window."""

    topic: str
    messages: int
    bytes: int
    p50_ms: float | None
    p99_ms: float | None
    """From birth to the store; None without messages."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One consumer group."""

    group: str
    lag: int
    members: int
    retries: int
    dead: int
    behind_ms: int | None
    """Age of the oldest unconsumed message; None if there is none, or it is not known."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    """From birth to commit; None if the group was not watched."""
    p95_ms: float | None = None
    redriven: int = 0
    """Dead letters that were redriven."""


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Dead letters of one group with one reason."""

    group: str
    reason: str
    count: int


class Sample(NamedTuple):
    """The committed offset of a group in one queue at a moment."""

    at_ms: int
    group: str
    topic: str
    broker: str
    queue_id: int
    committed: int
    lag: int
    before_ms: int
    """The time of the sample before; the messages in between were consumed since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything on the page."""

    title: str
    cluster: str
    from_ms: int
    to_ms: int
    made_ms: int
    bucket_ms: int
    topics: Sequence[TopicFigures] = ()
    groups: Sequence[GroupFigures] = ()
    throughput: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By topic: messages in each bucket."""
    lag: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By group: lag, while the group was watched."""
    store_latency: Sequence[Spread] = ()
    """From birth to the store, all topics."""
    end_to_end: Sequence[Spread] = ()
    """From birth to the group's commit, all groups; empty if no group was watched."""
    retries: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """By group: deliveries from its retry topic in each bucket."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """The number of those deliveries that were a message's first retry, second, ..."""
    dead_letters: Sequence[ReasonCount] = ()
    notes: Sequence[str] = ()

    @property
    def messages(self) -> int:
        return sum(topic.messages for topic in self.topics)

    @property
    def peak_rate(self) -> float:
        """Messages a second in the busiest bucket, all topics together."""
        sums: dict[int, float] = {}
        for points in self.throughput.values():
            for point in points:
                sums[point.at_ms] = sums.get(point.at_ms, 0.0) + point.value
        return max(sums.values(), default=0.0) * 1000 / self.bucket_ms
