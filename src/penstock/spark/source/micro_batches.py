"""What every stream of ours has in common: Spark's questions, and the arithmetic of its answers.

Spark keeps one process for a stream's reader as long as the query runs; what it knows there, its
connections or open files, is the driver's driver. Tasks get the reader without it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidArgument, PenstockError
from penstock.model import MessageQueue
from penstock.spark.source.fetch import RETRY_DELAY, DataLost, lost
from penstock.spark.source.options import ReadOptions, offsets_of
from penstock.spark.source.planning import Range
from penstock.spark.source.truncated_queues import Cause, TruncatedQueues

log = logging.getLogger(__name__)

Offsets = dict[MessageQueue, int]

_MAX_SHOWN: Final = 5


class StreamDriver(ABC):
    """What the driver's process knows of a stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        """Where a stream of what is available now ends."""
        self._seen: Offsets = {}
        self._truncated = TruncatedQueues(options.fail_on_data_loss, self._why_shorter)

    @abstractmethod
    def initial(self) -> dict[str, object]:
        """Where a stream without a checkpoint begins."""

    @abstractmethod
    def freeze(self) -> None:
        """End at what is there now."""

    @abstractmethod
    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        """How far the next micro-batch goes; waits a while for something to arrive."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is open."""

    @abstractmethod
    def _known_ends(self) -> Offsets:
        """Where the queues end, as far as that can be found out."""

    @abstractmethod
    def _why_shorter(self, queue: MessageQueue) -> Cause:
        """Why a queue ends before the stream's place."""

    @abstractmethod
    def _earliest(self, queues: Sequence[MessageQueue]) -> Offsets:
        """The first message of each queue."""

    @abstractmethod
    def _written(self, offsets: Offsets) -> dict[str, object]:
        """Offsets as Spark keeps them."""

    def reported(self) -> dict[str, object] | None:
        """The latest offsets seen, for the progress report."""
        return self._written(self._seen) if self._seen else None

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[Range]:
        """What a micro-batch reads."""
        ends = read_offsets(end)
        begun = self._with_beginnings(read_offsets(start), ends)
        ranges = []
        for queue, high in ends.items():
            low = begun[queue]
            if high < low and self._options.fail_on_data_loss:
                # Written down by a stream that was allowed to go on after a loss.
                raise lost(f"{queue} ended at {high}, and the stream had read up to {low}")
            # A place that moves back has nothing to be read before the next batch.
            ranges.append(Range(queue, min(low, high), high))
        return ranges

    def _begun(self, start: Mapping[str, object]) -> Offsets:
        """Where the next micro-batch begins, of the queues that the stream still reads.

        A checkpoint may know others: the options were changed. Nobody would read their messages
        from then on, and nothing would show it.
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
                expected="a stream that goes on with all it read before",
                hint="name it again, begin with a new checkpoint, or leave it for good with "
                "option failOnDataLoss false",
            )
        log.warning("%s; left for good", what)
        return {queue: offset for queue, offset in begun.items() if queue not in left}

    def _ends(self, begun: Offsets) -> Offsets:
        """How far a micro-batch may go; a queue that is too short just now stays where it is."""
        if self._target is None:
            return {**begun, **self._truncated.resolve(begun, self._known_ends())}
        while True:
            end = {**begun, **self._truncated.resolve(begun, self._target)}
            waiting = self._truncated.waiting
            if not waiting:
                return end
            # Spark asks no more once nothing is new, so time has to tell within this answer.
            time.sleep(RETRY_DELAY)
            now = self._known_ends()
            self._target.update({queue: now[queue] for queue in waiting if queue in now})

    def _with_beginnings(self, begun: Offsets, ends: Offsets) -> Offsets:
        """The starts, with those of queues that have been added since: their first messages.

        A queue begins at 0. Where its first messages are gone before the stream saw it, it came
        while the stream stood still, and they are lost.
        """
        added = [queue for queue in ends if queue not in begun]
        if not added:
            return begun
        first = self._earliest(added)
        for queue, offset in first.items():
            if offset > 0:
                what = f"{queue} was added to the stream, and its first {offset} messages are gone"
                if self._options.fail_on_data_loss:
                    raise lost(what)
                log.warning("%s; going on with what is left", what)
        return {**begun, **first}


_Driver = TypeVar("_Driver", bound=StreamDriver)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[_Driver]):
    """Answers Spark's questions from the driver's half; kinds of streams plan and read."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], cores: int | None) -> None:
        if options.ending is not None:
            raise InvalidArgument(
                "option endingOffsets or endingTimestamp in a stream",
                expected="no end: a stream goes on",
                hint="spark.read, or trigger(availableNow=True)",
            )
        self._options = options
        self._columns = columns
        self._cores = cores
        self._driver: _Driver | None = None

    @abstractmethod
    def _new_driver(self) -> _Driver:
        """Open what the driver needs; called there, once."""

    def __getstate__(self) -> dict[str, object]:
        # The driver's half stays on the driver: tasks get the options.
        return {**self.__dict__, "_driver": None}

    @property
    def _stream_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = self._new_driver()
        return self._driver

    def initialOffset(self) -> dict[str, object]:
        return self._stream_driver.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._stream_driver.latest(start, most)

    def reportLatestOffset(self) -> dict[str, object] | None:
        return self._stream_driver.reported()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream_driver.freeze()

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot be: it says why as soon as Spark asks it anything.

    Where no reader is made at all, Spark's runner stumbles over that, and what users read last is
    its complaint and not ours.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def initialOffset(self) -> dict[str, object]:
        raise self._error

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        raise self._error

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        raise self._error


def read_offsets(written: Mapping[str, object]) -> Offsets:
    """The offsets of the queues in what Spark keeps."""
    offsets = written.get("offsets")
    if not isinstance(offsets, dict):
        raise InvalidArgument(
            f"offset {written!r:.200} in the checkpoint",
            expected="one that format penstock wrote",
            hint="does the checkpoint belong to another query?",
        )
    return offsets_of(offsets)
