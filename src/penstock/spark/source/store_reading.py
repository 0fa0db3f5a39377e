"""Messages straight from the files of a store, without a broker.

The entries of a consume queue have the log positions of its messages. They are read as numbers,
many at a time: filtered by the hash of the tag before a message is read, then passed to the decoder
with the mapped segment they point into. Only what ends up in a batch is copied.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.decode import Wanted, to_batches
from penstock.model.names import SCHEDULE_TOPIC
from penstock.protocol.filters.tags import parse_tags
from penstock.spark.source.data_loss import BadRecords, lost, wanted
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range
from penstock.spark.source.store_catalog import StoreFiles, Tail
from penstock.store import layout
from penstock.store.consume_queue import FILLER, UNIT, UNIT_BYTES
from penstock.store.segments import OS_FILES, SegmentMaps, segment_path

log = logging.getLogger(__name__)

Entries = npt.NDArray[np.void]

CHUNK_ENTRIES: Final = 1 << 16
_OPEN_FILES: Final = 4
_ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])
_FILLER_SIZE: Final = UNIT.unpack(FILLER)[1]
# At or below this a tags code is an address in an extended queue file, not a hash.
_LAST_EXTENDED_ADDRESS: Final = -(1 << 31) - 1


class PathRange(NamedTuple):
    """A range, and those of its entries that are in no file."""

    part: Range
    tail: Tail


def read_ranges(
    ranges: Iterable[PathRange],
    files: Mapping[str, StoreFiles],
    options: ReadOptions,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """The messages of ranges as Arrow batches; ``files`` are the stores by broker."""
    wish = wanted(options, columns)
    # The queues of a store share the log, so they share its maps: page faults are paid once.
    maps = SegmentMaps(OS_FILES, _OPEN_FILES)
    for part, tail in ranges:
        yield from _QueueReader(files[part.queue.broker_name], part, options, maps).read(tail, wish)


class _QueueReader:
    """Reads one range of one queue."""

    def __init__(
        self, store: StoreFiles, part: Range, options: ReadOptions, maps: SegmentMaps
    ) -> None:
        self._store = store
        self._part = part
        self._options = options
        topic = options.access.long_name(part.queue.topic)
        queue_id = part.queue.queue_id
        self._directory = f"{store.root}/{layout.CONSUME_QUEUE}/{topic}/{queue_id}"
        self._log_directory = f"{store.root}/{layout.COMMIT_LOG}"
        self._maps = maps
        self._on_bad = BadRecords(options, part, store.root)
        codes = parse_tags(options.tags).codes
        # In the schedule topic the code is the time of delivery.
        self._codes = None if topic == SCHEDULE_TOPIC or not codes else np.array(sorted(codes))

    def read(self, tail: Tail, wish: Wanted) -> Iterator[pa.RecordBatch]:
        for first, entries in self._entries(tail):
            positions = entries["position"].astype(np.int64)
            sizes = entries["size"].astype(np.int64)
            offsets = np.arange(first, first + len(entries))
            # Where a part of a queue was lost, another program wrote filler entries.
            is_kept = sizes != _FILLER_SIZE
            if self._codes is not None:
                codes = entries["code"].astype(np.int64)
                is_kept &= np.isin(codes, self._codes) | (codes <= _LAST_EXTENDED_ADDRESS)
            if not is_kept.all():
                positions, offsets = positions[is_kept], offsets[is_kept]
            yield from self._records(positions, offsets, wish)

    def _entries(self, tail: Tail) -> Iterator[tuple[int, Entries]]:
        """The entries of the range, chunk by chunk, each with the offset of its first."""
        offset, high = self._part.low, min(self._part.high, tail.start)
        per_file = self._store.queue_bytes // UNIT_BYTES
        while offset < high:
            number = offset // per_file
            path = segment_path(self._directory, number * self._store.queue_bytes)
            stop = min(high, (number + 1) * per_file, offset + CHUNK_ENTRIES)
            view = self._maps.view(path, self._store.queue_bytes)
            if view is None:
                stop = min(high, (number + 1) * per_file)
                self._lose(offset, stop, f"{path} is gone")
            else:
                start = (offset - number * per_file) * UNIT_BYTES
                yield offset, np.frombuffer(view, _ENTRY, stop - offset, start)
            offset = stop
        for start in range(0, len(tail.entries), CHUNK_ENTRIES * UNIT_BYTES):
            part = tail.entries[start : start + CHUNK_ENTRIES * UNIT_BYTES]
            yield tail.start + start // UNIT_BYTES, np.frombuffer(part, _ENTRY)

    def _records(
        self, positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], wish: Wanted
    ) -> Iterator[pa.RecordBatch]:
        """Decode messages at these log positions, segment by segment."""
        if not len(positions):
            return
        size = self._store.log_bytes
        edges = [0, len(positions)]
        # Usually all are in one segment; two divisions show that.
        if positions.min() // size != positions.max() // size:
            edges[1:1] = (np.flatnonzero(np.diff(positions // size)) + 1).tolist()
        for first, last in itertools.pairwise(edges):
            base = int(positions[first]) // size * size
            path = segment_path(self._log_directory, base)
            view = self._maps.view(path, size) if base >= 0 else None
            if view is None:
                self._lose(int(offsets[first]), int(offsets[last - 1]) + 1, f"{path} is gone")
                continue
            starts = positions[first:last] - base
            yield from to_batches(
                view,
                broker=self._part.queue.broker_name,
                topic=self._part.queue.topic,
                wanted=wish,
                positions=starts,
                offsets=offsets[first:last],
                on_bad=self._on_bad,
            )

    def _lose(self, low: int, high: int, why: str) -> None:
        what = f"messages {low} to {high - 1} of {self._part.queue} are gone: {why}"
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; skipped", what)
