"""From what a user says about beginnings and ends to offsets of queues."""

from __future__ import annotations

from collections.abc import Iterable

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
from penstock.spark.source.planning import Range


class Positions:
    """Finds the offsets of positions, by asking the cluster."""

    def __init__(self, options: ReadOptions, cluster: Cluster | None = None) -> None:
        self._options = options
        self.cluster = cluster or Cluster(options.access, options.puller)

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

        An end that the cluster gave (the latest message, a time) may well be before a group's
        place or a time in the future: then there is nothing to read.
        """
        starting, ending = self._options.starting, self._options.ending
        return (starting is not None and starting.where is Where.OFFSETS) and (
            ending is None or ending.where is Where.OFFSETS
        )

    def queues(self) -> list[MessageQueue]:
        """The queues to read; none at all is an error."""
        queues = self.cluster.queues(self._options)
        if not queues:
            raise InvalidArgument(
                f"{self._options.subject} at {', '.join(self._options.access.namesrv)} has no "
                f"queue to read",
                expected="at least one topic with readable queues",
                hint="penstock topic list",
            )
        return queues

    def offsets(
        self, queues: Iterable[MessageQueue], position: Position, option: str
    ) -> dict[MessageQueue, int]:
        """The offset of a position in each of the queues."""
        queues = list(queues)
        cluster = self.cluster
        match position.where:
            case Where.EARLIEST:
                return cluster.earliest(queues)
            case Where.LATEST:
                return cluster.latest(queues)
            case Where.TIME:
                return cluster.at_time(queues, position.timestamp_ms)
            case Where.GROUP:
                # Where the group never was, it has everything before it.
                return {**cluster.earliest(queues), **cluster.committed(queues)}
            case Where.OFFSETS:
                return self._named(queues, dict(position.offsets), option)

    def _named(
        self, queues: list[MessageQueue], named: dict[MessageQueue, int], option: str
    ) -> dict[MessageQueue, int]:
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
            EARLIEST_OFFSET: self.cluster.earliest,
            LATEST_OFFSET: self.cluster.latest,
        }
        offsets = dict(named)
        for mark, ask in ends.items():
            offsets.update(ask(queue for queue, offset in named.items() if offset == mark))
        return offsets
