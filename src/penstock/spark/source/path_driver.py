"""The driver of reads from store directories: looks for what was added to their files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.model import MessageQueue
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.positions import Positions
from penstock.spark.source.ranges import Range
from penstock.spark.source.store_catalog import StoreCatalog
from penstock.spark.source.store_path import plan_path
from penstock.spark.source.stream_driver import Offsets, StreamDriver
from penstock.spark.source.truncated_queues import Cause

LOOK_SECONDS: Final = 0.02
"""The pause between two looks at an idle store; a look costs a listing of the log's directory."""
MAX_TAIL_BYTES: Final = 32 << 20
"""Entries kept in memory before the store is opened again, to find them in its files."""


class PathDriver(StreamDriver):
    """Holds the stores open for reading."""

    def __init__(self, options: ReadOptions, cores: int | None = None) -> None:
        super().__init__(options, cores)
        self.catalog = StoreCatalog(options)

    @property
    def _positions(self) -> Positions:
        # A store without any queue yet is empty, not a mistake.
        return Positions(self._options, self.catalog, needs_queue=False)

    def close(self) -> None:
        self.catalog.close()

    def _plan(self, ranges: Sequence[Range]) -> list[InputPartition]:
        return list(plan_path(self._options, self.catalog, ranges, self._cores))

    def _wait(self, begun: Offsets) -> Offsets:
        deadline = time.monotonic() + self._options.poll_seconds
        end = begun
        while end == begun and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            if self._look():
                end = self._ends(begun)
        return end

    def _look(self) -> int:
        if self.catalog.tail_bytes > MAX_TAIL_BYTES:
            fresh = StoreCatalog(self._options)
            self.catalog.close()
            self.catalog = fresh
            return 1
        return self.catalog.refresh()

    def _known_ends(self) -> Offsets:
        self._look()
        return self.catalog.latest(self.catalog.queues(self._options))

    def _why_shorter(self, queue: MessageQueue) -> Cause:
        # Files do not distinguish an older copy of a queue from a new queue of the same name.
        return Cause.UNKNOWN
