"""The drivers of reads with an archive: the same as without one, with two kinds of tasks.

The tasks of a micro-batch follow from its offsets alone, and a task gives the rows of each range in
the order of their offsets, wherever the seam is: when the batch runs again, the archive may have
grown or its files may have been merged, and the sink recognises rows by their position in a task.
A batch read has no such need: its tasks are cut along the files, so that each is read once.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.model import MessageQueue
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.archive_reading import pieces_of, read_archived
from penstock.spark.source.fetch import RETRY_DELAY, Fetcher
from penstock.spark.source.options import EARLIEST, ReadOptions, nested_offsets
from penstock.spark.source.path_driver import PathDriver
from penstock.spark.source.planning import TaskRanges, tasks
from penstock.spark.source.positions import OffsetsSource, Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.seam import SeamOffsets, Sides, another_topic, joined_sides, split
from penstock.spark.source.store_path import PathTask, path_task, read_path
from penstock.spark.source.stream_driver import Offsets, StreamDriver
from penstock.spark.source.topic_driver import TopicDriver
from penstock.spark.source.truncated_queues import TruncatedQueues

log = logging.getLogger(__name__)


Step = tuple[Range, ...] | InputPartition
"""Ranges of an archive, or a task of the live side."""


class SeamTask(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, directory: str, steps: Iterable[Step]) -> None:
        self.directory = directory
        self.steps = tuple(steps)

    def __repr__(self) -> str:
        return f"SeamTask({', '.join(map(_shown, self.steps))})"


def _shown(step: Step) -> str:
    if isinstance(step, InputPartition):
        return repr(step)
    return ", ".join(f"{part.queue}[{part.low}:{part.high}] archived" for part in step)


def read_seam(
    task: SeamTask, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The messages of a task as Arrow batches."""
    index: ArchiveIndex | None = None
    for step in task.steps:
        if isinstance(step, tuple):
            index = index or ArchiveIndex(task.directory)
            yield from read_archived(index, step, options, columns)
        elif isinstance(step, TaskRanges):
            yield from Fetcher(options).batches(step.ranges, columns)
        elif isinstance(step, PathTask):
            yield from read_path(step, options, columns)


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
    def _live_task(self, part: Range) -> InputPartition:
        """What reads one range of the live side."""

    @abstractmethod
    def _live_ends(self) -> Offsets:
        """The ends of its queues, as far as they can be found now."""

    @abstractmethod
    def _live_target(self) -> Offsets:
        """The ends of its queues; a broker that cannot be asked is an error."""

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
        self._target = self._with_archive(self._live_target())
        while self._shorter.waiting:
            # Spark asks only once, so the wait is inside this answer.
            time.sleep(RETRY_DELAY)
            self._target = self._with_archive(self._live_target())

    def _with_archive(self, live: Offsets) -> Offsets:
        """The ends of the live side, and of queues that only the archive has or can be asked.

        A slave may not have all yet that was archived: the archive's end counts then.
        """
        archived = {
            queue: max(end, self._reached.get(queue, 0))
            for queue, end in self._archive.ends.items()
            if queue not in live and self._options.covers(queue)
        }
        return {**archived, **self._shorter.resolve(self._archive.ends, live)}

    @cached_property
    def _shorter(self) -> TruncatedQueues:
        """The queues that are shorter than in the archive."""
        reached = f"the archive {self._archive} holds it"
        return TruncatedQueues(True, self._why_shorter, reached, another_topic)

    def reported(self) -> dict[str, object] | None:
        seen = super().reported()
        return seen and {**seen, "archivedUpTo": nested_offsets(self._archive.ends)}

    def _plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        sides = self._sides(ranges)
        if not sides.archived:
            return self._live_plan(ranges)
        planned = tasks(
            ranges,
            cores=self._cores,
            min_partitions=self._options.min_partitions,
            ordered=self._options.ordered,
            striped=self._options.path is not None,
        )
        return [
            SeamTask(self._directory, [step for part in task.ranges for step in self._steps(part)])
            for task in planned
        ]

    def _steps(self, part: Range) -> list[Step]:
        """What reads a range, in the order of its offsets."""
        sides = split(self._archive, [part])
        steps: list[tuple[int, Step]] = [(own.low, (own,)) for own in sides.archived]
        steps += [(own.low, self._live_task(own)) for own in sides.live]
        return [step for _, step in sorted(steps, key=lambda step: step[0])]

    def batch_partitions(self) -> list[InputPartition]:
        sides = self._sides(self._positions.batch_ranges())
        if self._options.ordered:
            return [
                SeamTask(self._directory, [tuple(mine.archived), *self._live_plan(mine.live)])
                for mine in _by_queue(sides)
            ]
        pieces = pieces_of(self._archive, sides.archived, cores=self._cores)
        archived = [SeamTask(self._directory, [tuple(piece)]) for piece in pieces]
        return [*archived, *self._live_plan(sides.live)]

    @property
    def _directory(self) -> str:
        assert self._options.archive is not None
        return self._options.archive

    def _sides(self, ranges: Sequence[Range]) -> Sides:
        """Both sides of ranges; `DataLost` if messages between them are missing."""
        sides = joined_sides(self._archive, self._seam_offsets, ranges, self._options)
        if sides.archived:
            log.info(
                "archive read archive=%s messages=%d live=%d",
                self._archive,
                sum(part.count for part in sides.archived),
                sum(part.count for part in sides.live),
            )
        return sides


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

    def _live_task(self, part: Range) -> InputPartition:
        return TaskRanges([part])

    def _live_ends(self) -> Offsets:
        return super(_SeamDriver, self)._known_ends()

    def _live_target(self) -> Offsets:
        super(_SeamDriver, self).freeze()
        return self._target or {}


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

    def _live_task(self, part: Range) -> InputPartition:
        return path_task(self.catalog, [self.catalog.cut(part)])

    def _live_ends(self) -> Offsets:
        return super(_SeamDriver, self)._known_ends()

    def _live_target(self) -> Offsets:
        return self._live_ends()
