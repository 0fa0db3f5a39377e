"""The driver's part of a read: which messages a batch or micro-batch covers, and in which tasks.

`TopicDriver` asks brokers, `PathDriver` looks into store directories; what follows from their
answers is decided here. Spark keeps one process for a stream's reader as long as the query runs,
and the driver with its connections or open files lives there; tasks never get it.

Spark asks `latest` again and again, about ninety times a second when idle, so the answer waits
inside for a message to arrive. An offset is a dictionary that Spark turns into JSON and compares
as text:

    {"group": ..., "namesrv": ..., "offsets": {topic: {broker: {queue: offset}}}}

Group and name servers are there for the listener that commits progress (`group_progress`), and
only if there is something to commit; nothing in it is secret. Both kinds of driver use this form,
so a stream may continue from the other kind's checkpoint if the brokers keep their names.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.source.data_loss import DataLost, lost
from penstock.spark.source.fetch import RETRY_DELAY
from penstock.spark.source.group_progress import GroupProgress, offset_json
from penstock.spark.source.options import LATEST, ReadOptions, offsets_of
from penstock.spark.source.planning import capped
from penstock.spark.source.positions import Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.truncated_queues import Cause, TruncatedQueues

log = logging.getLogger(__name__)

Offsets = dict[MessageQueue, int]

_MAX_SHOWN: Final = 5


class StreamDriver(ABC):
    """Plans one batch, or the micro-batches of one stream."""

    def __init__(self, options: ReadOptions, cores: int | None = None) -> None:
        self._options = options
        self._cores = cores
        self._target: Offsets | None = None
        """The end of a stream with trigger availableNow."""
        self._seen: Offsets = {}
        self._progress: GroupProgress | None = None
        """Commits in this process, if that is not the listener's task."""
        self._group: str | None = None
        """The group in the offsets, for the listener."""
        self._truncated = TruncatedQueues(options.fail_on_data_loss, self._why_shorter)

    @property
    @abstractmethod
    def _positions(self) -> Positions:
        """Finds the offsets of positions."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and files."""

    @abstractmethod
    def _plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        """The tasks for these ranges."""

    @abstractmethod
    def _known_ends(self) -> Offsets:
        """The ends of the queues, as far as they can be found now."""

    @abstractmethod
    def _wait(self, begun: Offsets) -> Offsets:
        """Wait for a message after ``begun``, at most for the poll timeout; return the ends."""

    @abstractmethod
    def _why_shorter(self, queue: MessageQueue) -> Cause:
        """Why a queue ends before the stream's position."""

    def _initial_queues(self) -> list[MessageQueue]:
        return self._positions.queues()

    def _starts(self, queues: list[MessageQueue]) -> Offsets:
        """The first offset of each queue, by the options."""
        return self._positions.offsets(queues, self._options.starting or LATEST, "startingOffsets")

    # ------------------------------------------------------------------------ Spark's questions

    def batch_partitions(self) -> list[InputPartition]:
        """The tasks of a batch read; "latest" is decided now."""
        return self._plan(self._positions.batch_ranges())

    def initial(self) -> dict[str, object]:
        """The position of a stream without a checkpoint."""
        return self._written(self._starts(self._initial_queues()))

    def freeze(self) -> None:
        """Let the stream end at what is there now."""
        self._target = self._known_ends()

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        """The end of the next micro-batch; waits a while for a message to arrive.

        Spark asks with ``start`` only after the batch that ended there has finished.
        """
        begun = self._begun(start)
        if self._progress is not None:
            self._progress.commit(begun)
        # What the stream has passed stays, also of queues that cannot be reached now.
        end = self._ends(begun)
        if self._target is None and end == begun:
            end = self._wait(begun)
        self._seen = end
        begun = self._with_beginnings(begun, end)
        if most is not None:
            end = capped(begun, end, most)
        return self._written(end)

    def reported(self) -> dict[str, object] | None:
        """The latest offsets seen, for the progress report."""
        return self._written(self._seen) if self._seen else None

    def partitions(
        self, start: Mapping[str, object], end: Mapping[str, object]
    ) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        return self._plan(self._ranges(read_offsets(start), read_offsets(end)))

    # ---------------------------------------------------------------------------- the arithmetic

    def _written(self, offsets: Offsets) -> dict[str, object]:
        return offset_json(self._options.access, self._group, offsets)

    def _ranges(self, starts: Offsets, ends: Offsets) -> list[Range]:
        begun = self._with_beginnings(starts, ends)
        ranges = []
        for queue, high in ends.items():
            low = begun[queue]
            if high < low and self._options.fail_on_data_loss:
                # Written by a stream that was allowed to continue after a loss.
                raise lost(f"{queue} ended at {high}, and the stream had read up to {low}")
            # A position that moves back has nothing to read before the next batch.
            ranges.append(Range(queue, min(low, high), high))
        return ranges

    def _begun(self, start: Mapping[str, object]) -> Offsets:
        """The start of the next micro-batch, for the queues that the stream still reads.

        If the options were changed, the checkpoint may have others. Their messages would no longer
        be read, and nothing would show it.
        """
        begun = read_offsets(start)
        left = sorted(queue for queue in begun if not self._options.covers(queue))
        if not left:
            return begun
        shown = ", ".join(map(str, left[:_MAX_SHOWN])) + (", ..." if left[_MAX_SHOWN:] else "")
        what = f"the checkpoint has {shown}, and the stream reads {self._options.subject} only"
        if self._options.fail_on_data_loss:
            raise DataLost(
                what,
                expected="a stream that continues with all it read before",
                hint="name it again, begin with a new checkpoint, or leave it for good with "
                "option failOnDataLoss false",
            )
        log.warning("%s; left for good", what)
        return {queue: offset for queue, offset in begun.items() if queue not in left}

    def _ends(self, begun: Offsets) -> Offsets:
        """The end of a micro-batch; a queue that is too short for now stays where it is."""
        if self._target is None:
            return {**begun, **self._truncated.resolve(begun, self._known_ends())}
        while True:
            end = {**begun, **self._truncated.resolve(begun, self._target)}
            waiting = self._truncated.waiting
            if not waiting:
                return end
            # Spark stops asking once there is nothing new, so the wait is inside this answer.
            time.sleep(RETRY_DELAY)
            now = self._known_ends()
            self._target.update({queue: now[queue] for queue in waiting if queue in now})

    def _with_beginnings(self, begun: Offsets, ends: Offsets) -> Offsets:
        """The starts, and the first offsets of queues that were added since.

        A queue begins at 0. If its first messages are gone before the stream has seen it, it was
        added while the stream did not run, and they are lost.
        """
        added = [queue for queue in ends if queue not in begun]
        if not added:
            return begun
        first = self._positions.offsets_source.earliest(added)
        for queue, offset in first.items():
            if offset > 0:
                what = f"{queue} was added to the stream, and its first {offset} messages are gone"
                if self._options.fail_on_data_loss:
                    raise lost(what)
                log.warning("%s; continuing with the rest", what)
        return {**begun, **first}


def read_offsets(written: Mapping[str, object]) -> Offsets:
    """The offsets of the queues in an offset that Spark kept."""
    offsets = written.get("offsets")
    if not isinstance(offsets, dict):
        raise InvalidArgument(
            f"offset {written!r:.200} in the checkpoint",
            expected="one that format penstock wrote",
            hint="does the checkpoint belong to another query?",
        )
    return offsets_of(offsets)
