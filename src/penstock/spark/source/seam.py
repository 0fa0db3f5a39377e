"""One table of an archive and of what comes after it: ``option("archive", DIR)``. Offsets only.

Each queue has a seam, the offset where its archive ends. What is before it is read from Parquet
files, the rest from a cluster or a store directory (the live side), which may still have a part of
the archived messages: the archive's are taken. If the live side begins after the seam, messages are
missing, and that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from penstock.errors import InvalidArgument, TopicNotFound
from penstock.model import MessageQueue
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.cluster import Cluster
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.options import Position, ReadOptions, Where
from penstock.spark.source.positions import Offsets, OffsetsSource
from penstock.spark.source.ranges import Range


class Sides(NamedTuple):
    """The parts of ranges on both sides of the seam."""

    archived: list[Range]
    live: list[Range]


def split(index: ArchiveIndex, ranges: Iterable[Range]) -> Sides:
    """Cut ranges where the archive begins and ends."""
    sides = Sides([], [])
    for part in ranges:
        first = index.starts.get(part.queue, part.high)
        end = max(first, index.ends.get(part.queue, first))
        edges = (
            (sides.live, part.low, min(part.high, first)),
            (sides.archived, max(part.low, first), min(part.high, end)),
            (sides.live, max(part.low, end), part.high),
        )
        for side, low, high in edges:
            if low < high:
                side.append(Range(part.queue, low, high))
    return sides


class SeamOffsets:
    """Answers where queues begin and end, on both sides; see `positions.OffsetsSource`."""

    def __init__(self, index: ArchiveIndex, live: OffsetsSource, options: ReadOptions) -> None:
        self._index = index
        self._live = live
        self._options = options

    def queues(self, options: ReadOptions) -> list[MessageQueue]:
        """The queues of both sides: a broker that is gone may have been archived."""
        archived = {queue for queue in self._index.ends if options.covers(queue)}
        return sorted({*self._live_queues, *archived})

    @cached_property
    def _live_queues(self) -> frozenset[MessageQueue]:
        topic = self._index.topic
        if not self._options.covers_topic(topic):
            raise InvalidArgument(
                f"the archive {self._index} holds topic {topic!r}, and the read is of "
                f"{self._options.subject}",
                expected="the archive of what is read",
            )
        try:
            found = frozenset(self._live.queues(self._options))
        except TopicNotFound:
            found = frozenset()  # What is archived is still there.
        if self._options.path is not None:
            self._check_names(found)
        return found

    def _check_names(self, found: Iterable[MessageQueue]) -> None:
        """Refuse a store whose broker has another name than in the archive."""
        names = {queue.broker_name for queue in found if queue.topic == self._index.topic}
        archived = {queue.broker_name for queue in self._index.ends}
        if names and archived and not names & archived:
            raise InvalidArgument(
                f"the store {self._options.path} is of broker {', '.join(sorted(names))}, and the "
                f"archive {self._index} of {', '.join(sorted(archived))}",
                expected="the same broker, or queues would be read twice",
                hint=f'option("brokerName", "{min(archived)}")',
            )

    def earliest(self, queues: Iterable[MessageQueue]) -> Offsets:
        queues = list(queues)
        known = {queue: self._index.starts[queue] for queue in queues if self._is_archived(queue)}
        return {**self._of_live(queues, known, self._live.earliest), **known}

    def latest(self, queues: Iterable[MessageQueue]) -> Offsets:
        queues = list(queues)
        return self.joined(self._of_live(queues, (), self._live.latest), queues)

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
        queues = list(queues)
        known = self._index.offsets_at(queues, timestamp_ms)
        found = self._of_live(queues, known, lambda rest: self._live.at_time(rest, timestamp_ms))
        # What the live side has of archived messages is not read there.
        places = {queue: max(found.get(queue, 0), self._end(queue)) for queue in queues}
        if self._is_start(timestamp_ms):
            places |= self._before_gaps(found)
        return places | known

    def _is_start(self, timestamp_ms: int) -> bool:
        starting = self._options.starting
        return starting is not None and starting == Position(Where.TIME, timestamp_ms=timestamp_ms)

    def _before_gaps(self, found: Offsets) -> Offsets:
        """Where the archive ends, if messages after it are gone that may be of the time, too.

        That is so if already the first message of the live side is. A read that begins there fails
        and names what is missing.
        """
        later = [queue for queue, offset in found.items() if 0 < self._end(queue) < offset]
        first = self._of_live(later, (), self._live.earliest)
        return {queue: self._end(queue) for queue in later if found[queue] == first[queue]}

    def check_epochs(self, ranges: Iterable[Range]) -> None:
        """Refuse topics that were deleted and created again since they were archived."""
        if not isinstance(self._live, Cluster):
            return  # A store's files do not show it.
        known = [part.queue for part in ranges if part.queue in self._index.epochs]
        for queue, epoch in self._of_live(known, (), self._live.epochs).items():
            if epoch > self._index.epochs[queue]:
                raise InvalidArgument(
                    f"the topic of {queue} was deleted and created again since it was archived in "
                    f"{self._index}",
                    expected="the topic that the archive was made from",
                    hint="read both apart; archive the new topic to another directory",
                )

    def committed(self, queues: Iterable[MessageQueue], *, guessed: bool = True) -> Offsets:
        return self._of_live(
            list(queues), (), lambda rest: self._live.committed(rest, guessed=guessed)
        )

    def live_starts(self, ranges: Iterable[Range]) -> Offsets:
        """Where the live side begins, in the queues of some ranges."""
        return self._of_live([part.queue for part in ranges], (), self._live.earliest)

    def joined(self, live: Offsets, queues: Iterable[MessageQueue]) -> Offsets:
        """The ends of queues, from those of the live side."""
        for queue, end in live.items():
            if end < self._end(queue):
                raise another_topic(
                    f"the archive {self._index} holds {queue} up to offset {self._end(queue)}, and "
                    f"the queue ends at {end}"
                )
        return {queue: live.get(queue, self._end(queue)) for queue in queues}

    def _end(self, queue: MessageQueue) -> int:
        return self._index.ends.get(queue, 0)

    def _is_archived(self, queue: MessageQueue) -> bool:
        return self._index.starts.get(queue, 0) < self._end(queue)

    def _of_live(
        self,
        queues: Sequence[MessageQueue],
        known: Iterable[MessageQueue],
        ask: Callable[[list[MessageQueue]], Offsets],
    ) -> Offsets:
        """The answers of the live side, for the queues that it has and that are not known yet."""
        there = self._live_queues.difference(known)
        return ask([queue for queue in queues if queue in there])


def another_topic(what: str) -> InvalidArgument:
    """The error for a queue that is shorter than its archive."""
    return InvalidArgument(
        what,
        expected="the topic that the archive was made from",
        hint="the topic was deleted and created again, or `path` is an older copy",
    )


def joined_sides(
    index: ArchiveIndex, offsets: SeamOffsets, ranges: Sequence[Range], options: ReadOptions
) -> Sides:
    """Both sides of ranges; `DataLost` if messages between them are missing."""
    if any(part.low < index.ends.get(part.queue, 0) for part in ranges):
        index.reload()
    sides = split(index, ranges)
    offsets.check_epochs(sides.live)
    missing = _missing(sides, offsets)
    if missing and index.reload():
        # Archived since, and deleted by the broker.
        sides = split(index, ranges)
        missing = _missing(sides, offsets)
    if missing and options.fail_on_data_loss:
        part, begins = missing[0]
        end = index.ends.get(part.queue)
        held = "holds nothing of it" if end is None else f"ends at {end}"
        raise DataLost(
            f"messages {part.low} to {min(begins, part.high) - 1} of {part.queue} are missing: the "
            f"archive {index} {held}, and what is read after it begins at {begins}",
            expected="an archive that is brought up to date before the broker deletes",
            hint=f"penstock spark archive {index.topic} {index} more often, a longer retention, or "
            "option failOnDataLoss false to leave them out",
        )
    return sides


def _missing(sides: Sides, offsets: SeamOffsets) -> list[tuple[Range, int]]:
    """The live ranges of which the beginning is gone, and where the live side begins."""
    begins = offsets.live_starts(sides.live)
    return [
        (part, begins.get(part.queue, part.high))
        for part in sides.live
        if begins.get(part.queue, part.high) > part.low
    ]
