"""The drivers of reads with an archive: the same as without one, with two kinds of tasks."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.model import MessageQueue
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.archive_reading import pieces_of, read_archived
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import EARLIEST, ReadOptions, nested_offsets
from penstock.spark.source.path_driver import PathDriver
from penstock.spark.source.planning import TaskRanges
from penstock.spark.source.positions import OffsetsSource, Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.seam import SeamOffsets, Sides, joined_sides
from penstock.spark.source.store_path import PathTask, read_path
from penstock.spark.source.stream_driver import Offsets, StreamDriver
from penstock.spark.source.topic_driver import TopicDriver

log = logging.getLogger(__name__)


class SeamTask(InputPartition):
    """What one task reads: ranges of an archive, and then the live side's."""

    def __init__(
        self, directory: str, archived: Sequence[Range], live: Sequence[InputPartition] = ()
    ) -> None:
        self.directory = directory
        self.archived = tuple(archived)
        self.live = tuple(live)

    def __repr__(self) -> str:
        shown = ", ".join(f"{part.queue}[{part.low}:{part.high}]" for part in self.archived)
        return f"SeamTask({self.directory}: {shown}; {', '.join(map(repr, self.live))})"


def read_seam(
    task: SeamTask, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The messages of a task as Arrow batches."""
    if task.archived:
        yield from read_archived(task.directory, task.archived, options, columns)
    for part in task.live:
        if isinstance(part, TaskRanges):
            yield from Fetcher(options).batches(part.ranges, columns)
        elif isinstance(part, PathTask):
            yield from read_path(part, options, columns)


class _SeamDriver(StreamDriver):
    """Added to a driver of the live side."""

    _archive: ArchiveIndex
    _reached: Offsets
    """Where the next micro-batch begins."""

    @property
    @abstractmethod
    def _live_source(self) -> OffsetsSource:
        """Answers where the queues of the live side begin and end."""

    @abstractmethod
    def _live_plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """The tasks for ranges of the live side."""

    @abstractmethod
    def _live_ends(self) -> Offsets:
        """The ends of its queues, as far as they can be found now."""

    @property
    def _positions(self) -> Positions:
        return Positions(self._options, self._seam_offsets, needs_queue=False)

    @property
    def _seam_offsets(self) -> SeamOffsets:
        return SeamOffsets(self._archive, self._live_source, self._options)

    def _initial_queues(self) -> list[MessageQueue]:
        return self._positions.queues()

    def _starts(self, queues: list[MessageQueue]) -> Offsets:
        # A stream of all of history begins with it, unless it is said otherwise.
        starting = self._options.starting or EARLIEST
        return self._positions.offsets(queues, starting, "startingOffsets")

    def _begun(self, start: Mapping[str, object]) -> Offsets:
        self._reached = super()._begun(start)
        return self._reached

    def _known_ends(self) -> Offsets:
        return self._with_archive(self._live_ends())

    def freeze(self) -> None:
        super().freeze()
        self._target = self._with_archive(self._target or {})

    def _with_archive(self, live: Offsets) -> Offsets:
        """The ends of the live side, and of queues that only the archive has or can be asked."""
        archived = {
            queue: max(end, self._reached.get(queue, 0))
            for queue, end in self._archive.ends.items()
            if queue not in live and self._options.covers(queue)
        }
        return {**archived, **self._seam_offsets.joined(live, live)}

    def reported(self) -> dict[str, object] | None:
        seen = super().reported()
        return seen and {**seen, "archivedUpTo": nested_offsets(self._archive.ends)}

    def _plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        sides = joined_sides(self._archive, self._seam_offsets, ranges, self._options)
        directory = str(self._archive)
        if self._options.ordered:
            return [
                SeamTask(directory, mine.archived, self._live_plan(mine.live))
                for mine in _by_queue(sides)
            ]
        pieces = pieces_of(self._archive, sides.archived, cores=self._cores)
        if pieces:
            log.info(
                "archive read archive=%s tasks=%d messages=%d live=%d",
                directory,
                len(pieces),
                sum(part.count for part in sides.archived),
                sum(part.count for part in sides.live),
            )
        return [*(SeamTask(directory, piece) for piece in pieces), *self._live_plan(sides.live)]


def _by_queue(sides: Sides) -> list[Sides]:
    queues = sorted({part.queue for part in (*sides.archived, *sides.live)})
    return [
        Sides(
            [part for part in sides.archived if part.queue == queue],
            [part for part in sides.live if part.queue == queue],
        )
        for queue in queues
    ]


class SeamTopicDriver(_SeamDriver, TopicDriver):
    """An archive, and then topics."""

    def __init__(
        self, options: ReadOptions, cores: int | None = None, *, has_listener: bool = False
    ) -> None:
        assert options.archive is not None
        self._archive = ArchiveIndex(options.archive)
        self._reached = {}
        super().__init__(options, cores, has_listener=has_listener)

    @property
    def _live_source(self) -> OffsetsSource:
        return self._cluster

    def _live_plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        return super(_SeamDriver, self)._plan(ranges)

    def _live_ends(self) -> Offsets:
        return super(_SeamDriver, self)._known_ends()


class SeamPathDriver(_SeamDriver, PathDriver):
    """An archive, and then a store directory."""

    def __init__(self, options: ReadOptions, cores: int | None = None) -> None:
        assert options.archive is not None
        self._archive = ArchiveIndex(options.archive)
        self._reached = {}
        super().__init__(options, cores)

    @property
    def _live_source(self) -> OffsetsSource:
        return self.catalog

    def _live_plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        return super(_SeamDriver, self)._plan(ranges)

    def _live_ends(self) -> Offsets:
        return super(_SeamDriver, self)._known_ends()
