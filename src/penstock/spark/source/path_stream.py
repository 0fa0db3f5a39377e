"""A stream from store directories: what a broker on this machine writes, read from its files.

The driver's process keeps the store open for reading and looks for what was added, as `streaming`
asks brokers. Offsets in the checkpoint have the same form, so the two kinds of stream may follow
each other with one checkpoint as long as the brokers keep their names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from penstock.model import MessageQueue
from penstock.spark.source.group_progress import written
from penstock.spark.source.micro_batches import Offsets, StreamDriver, StreamReader
from penstock.spark.source.options import LATEST, ReadOptions
from penstock.spark.source.planning import capped
from penstock.spark.source.store_catalog import StoreCatalog
from penstock.spark.source.store_path import PathTask, StorePositions, planned, read_path
from penstock.spark.source.truncated_queues import Cause

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_SECONDS: Final = 0.02
"""How often an idle store is looked at; a look costs a listing of the log's directory."""
MAX_TAIL_BYTES: Final = 32 << 20
"""Entries kept in memory before the store is opened anew, to find them in its files."""


class PathStream(StreamReader["PathDriver"]):
    """A stream from a store, or from all stores of a DATA directory."""

    def _new_driver(self) -> PathDriver:
        return PathDriver(self._options)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        driver = self._stream_driver
        return list(planned(self._options, driver.catalog, driver.ranges(start, end), self._cores))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PathTask):
            yield from read_path(partition, self._options, self._columns)


class PathDriver(StreamDriver):
    """The open stores, and where their queues end."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self.catalog = StoreCatalog(options)

    def close(self) -> None:
        self.catalog.close()

    def initial(self) -> dict[str, object]:
        positions = StorePositions(self._options, self.catalog)
        starting = self._options.starting or LATEST
        return self._written(positions.offsets(positions.queues(), starting, "startingOffsets"))

    def freeze(self) -> None:
        self._target = self._known_ends()

    def latest(self, start: Mapping[str, object], most: int | None) -> dict[str, object]:
        begun = self._begun(start)
        end = self._ends(begun)
        deadline = time.monotonic() + self._options.poll_seconds
        while self._target is None and end == begun and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            if self._look():
                end = self._ends(begun)
        self._seen = end
        begun = self._with_beginnings(begun, end)
        if most is not None:
            end = capped(begun, end, most)
        return self._written(end)

    def _look(self) -> int:
        if self.catalog.tail_bytes > MAX_TAIL_BYTES:
            fresh = StoreCatalog(self._options)
            self.catalog.close()
            self.catalog = fresh
            return 1
        return self.catalog.refresh()

    def _why_shorter(self, queue: MessageQueue) -> Cause:
        # Files do not tell an older copy of a queue from a new queue of the same name.
        return Cause.UNKNOWN

    def _known_ends(self) -> Offsets:
        self._look()
        return self.catalog.latest(self.catalog.queues(self._options))

    def _earliest(self, queues: Sequence[MessageQueue]) -> Offsets:
        return self.catalog.earliest(queues)

    def _written(self, offsets: Offsets) -> dict[str, object]:
        return written(self._options.access, None, offsets)
