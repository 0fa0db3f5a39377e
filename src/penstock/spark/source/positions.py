"""From a position that a user gives (earliest, a time, ...) to an offset in each queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    Position,
    ReadOptions,
    Where,
)
from penstock.spark.source.ranges import Range

Offsets = dict[MessageQueue, int]


class OffsetsSource(Protocol):
    """Answers where queues begin and end: a `Cluster`, or a `StoreCatalog`."""

    def queues(self, options: ReadOptions) -> list[MessageQueue]: ...

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets: ...

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets: ...

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets: ...

    def committed(self, queues: Iterable[MessageQueue], *, guessed: bool = True) -> Offsets: ...


class Positions:
    """Finds the offsets of positions."""

    def __init__(
        self,
        options: ReadOptions,
        offsets_source: OffsetsSource | None = None,
        *,
        needs_queue: bool = True,
    ) -> None:
        self._options = options
        self._needs_queue = needs_queue
        self.offsets_source = offsets_source or Cluster(options.access, options.puller)

    def batch_ranges(self) -> list[Range]:
        """What a batch reads of every queue."""
        queues = self.queues()
        low = self.offsets(queues, self._options.starting or EARLIEST, "startingOffsets")
        high = self.offsets(queues, self._options.ending or LATEST, "endingOffsets")
        ranges = []
        for queue in queues:
            if low[queue] > high[queue] and self._is_backwards():
                raise InvalidArgument(
                    f"the read of {queue} begins at {low[queue]} and ends at {high[queue]}",
                    expected="an end that is not before the beginning",
                )
            ranges.append(Range(queue, low[queue], high[queue]))
        return ranges

    def _is_backwards(self) -> bool:
        """Whether an end before the beginning is the user's mistake.

        An end that the cluster gave (the latest message, a time) may be before a group's position
        or a time in the future: then there is nothing to read.
        """
        starting, ending = self._options.starting, self._options.ending
        return (starting is not None and starting.where is Where.OFFSETS) and (
            ending is None or ending.where is Where.OFFSETS
        )

    def queues(self) -> list[MessageQueue]:
        """The queues to read; none at all is an error where topics are read."""
        queues = self.offsets_source.queues(self._options)
        if not queues and self._needs_queue:
            raise InvalidArgument(
                f"{self._options.subject} at {', '.join(self._options.access.namesrv)} has no "
                f"queue to read",
                expected="at least one topic with readable queues",
                hint="penstock topic list",
            )
        return queues

    def offsets(self, queues: Iterable[MessageQueue], position: Position, option: str) -> Offsets:
        """The offset of a position in each of the queues."""
        queues = list(queues)
        source = self.offsets_source
        match position.where:
            case Where.EARLIEST:
                return source.earliest(queues)
            case Where.LATEST:
                return source.latest(queues)
            case Where.TIME:
                return source.at_time(queues, position.timestamp_ms)
            case Where.GROUP:
                # A queue in which the group never committed is unread from its first message on.
                return {**source.earliest(queues), **source.committed(queues)}
            case Where.OFFSETS:
                return self._named(queues, dict(position.offsets), option)

    def _named(
        self, queues: list[MessageQueue], named: Mapping[MessageQueue, int], option: str
    ) -> Offsets:
        for what, found in (
            ("does not name", sorted(set(queues) - set(named))),
            ("names the unknown", sorted(set(named) - set(queues))),
        ):
            if found:
                raise InvalidArgument(
                    f"option {option} {what} {', '.join(map(str, found[:10]))}",
                    expected="an offset for each queue that is read; -2 is the earliest, -1 the "
                    "latest",
                )
        ends = {
            EARLIEST_OFFSET: self.offsets_source.earliest,
            LATEST_OFFSET: self.offsets_source.latest,
        }
        offsets = dict(named)
        for mark, ask in ends.items():
            offsets.update(ask(queue for queue, offset in named.items() if offset == mark))
        return offsets
