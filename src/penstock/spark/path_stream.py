"""A stream from store directories: what a broker on this machine writes, read from its files.

The driver's process keeps the store open for reading and looks for what was added, as `streaming`
asks brokers. Offsets in the checkpoint have the same form, so the two kinds of stream may follow
each other with one checkpoint as long as the brokers keep their names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.fetch import lost
from penstock.spark.mirror import written
from penstock.spark.options import LATEST, ReadOptions
from penstock.spark.path import PathTask, StorePositions, planned, read_path
from penstock.spark.planning import Range, capped
from penstock.spark.store_catalog import StoreCatalog
from penstock.spark.streaming import read_offsets

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
"""How often an idle store is looked at; a look costs a listing of the log's directory."""
MAX_TAIL_BYTES: Final = 32 << 20
"""Entries kept in memory before the store is opened anew, to find them in its files."""

Offsets = dict[MessageQueue, int]


class PathStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream from a store, or from all stores of a DATA directory."""

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

    def __getstate__(self) -> dict[str, object]:
        # Open files stay on the driver: tasks get the options.
        return {**self.__dict__, "_driver": None}

    @property
    def _half(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, object]:
        return self._half.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._half.latest(start, most)

    def reportLatestOffset(self) -> dict[str, object] | None:
        return self._half.reported()

    def prepareForTriggerAvailableNow(self) -> None:
        self._half.freeze()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        half = self._half
        return list(planned(self._options, half.catalog, half.ranges(start, end), self._cores))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.catalog.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PathTask):
            yield from read_path(partition, self._options, self._columns)


class _Driver:
    """What the driver's process knows of the stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.catalog = StoreCatalog(options)
        self._target: Offsets | None = None
        self._seen: Offsets = {}

    def initial(self) -> dict[str, object]:
        """Where a stream without a checkpoint begins."""
        positions = StorePositions(self._options, self.catalog)
        starting = self._options.starting or LATEST
        return self._written(positions.offsets(positions.queues(), starting, "startingOffsets"))

    def freeze(self) -> None:
        """End at what is there now."""
        self._look()
        self._target = self._ends()

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        """How far the next micro-batch goes; waits a while for something to arrive."""
        begun = read_offsets(start)
        if self._target is None:
            self._look()
        end = {**begun, **(self._ends() if self._target is None else self._target)}
        deadline = time.monotonic() + self._options.poll_seconds
        while self._target is None and end == begun and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            if self._look():
                end = {**begun, **self._ends()}
        self._seen = end
        if most is not None:
            end = capped(self._with_beginnings(begun, end), end, most)
        return self._written(end)

    def reported(self) -> dict[str, object] | None:
        """The latest offsets seen, for the progress report."""
        return self._written(self._seen) if self._seen else None

    def _look(self) -> int:
        if self.catalog.tail_bytes > MAX_TAIL_BYTES:
            fresh = StoreCatalog(self._options)
            self.catalog.close()
            self.catalog = fresh
            return 1
        return self.catalog.refresh()

    def _ends(self) -> Offsets:
        return self.catalog.latest(self.catalog.queues(self._options))

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[Range]:
        """What a micro-batch reads."""
        begun, ends = read_offsets(start), read_offsets(end)
        begun = self._with_beginnings(begun, ends)
        ranges = []
        for queue, high in ends.items():
            low = begun[queue]
            if high < low:
                low = self._begun_anew(queue, low, high)
            ranges.append(Range(queue, low, high))
        return ranges

    def _with_beginnings(self, begun: Offsets, ends: Offsets) -> Offsets:
        """The starts, with those of queues that have been added since: their first messages."""
        added = [queue for queue in ends if queue not in begun]
        return {**begun, **self.catalog.earliest(added)}

    def _begun_anew(self, queue: MessageQueue, low: int, high: int) -> int:
        """A queue that ends before the stream's place: the topic was deleted and made again."""
        what = f"{queue} ends at {high}, and the stream has read up to {low}: was the topic deleted"
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; reading it from its beginning", what)
        return 0

    def _written(self, offsets: Offsets) -> dict[str, object]:
        return written(self._options.access, None, offsets)
