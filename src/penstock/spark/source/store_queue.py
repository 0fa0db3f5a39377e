"""One queue of a store, read from its files without a broker: the plain path.

The entries of a consume queue have the log positions of its messages. They are read as numbers,
many at a time: filtered by the hash of the tag before a message is read, then passed to the decoder
with the mapped segment they point into. Only what ends up in a batch is copied.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.decode import Wanted, to_batches
from penstock.model.names import SCHEDULE_TOPIC
from penstock.protocol.filters.tags import parse_tags
from penstock.spark.source.data_loss import BadRecords, lost
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range
from penstock.spark.source.store_catalog import StoreFiles, Tail
from penstock.store import layout
from penstock.store.consume_queue import FILLER, UNIT, UNIT_BYTES
from penstock.store.segments import SegmentMaps, segment_path

log = logging.getLogger(__name__)

Entries = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]

CHUNK_ENTRIES: Final = 1 << 16
_ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])
_FILLER_SIZE: Final = UNIT.unpack(FILLER)[1]
# At or below this a tags code is an address in an extended queue file, not a hash.
_LAST_EXTENDED_ADDRESS: Final = -(1 << 31) - 1


class Chunk(NamedTuple):
    """Entries of a queue, in its order, as columns."""

    positions: Numbers
    sizes: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, first: int, end: int) -> Chunk:
        """The entries from ``first`` up to ``end``."""
        return Chunk(self.positions[first:end], self.sizes[first:end], self.offsets[first:end])


class QueueReader:
    """Reads one range of one queue."""

    def __init__(
        self,
        store: StoreFiles,
        part: Range,
        options: ReadOptions,
        maps: SegmentMaps,
        wish: Wanted,
    ) -> None:
        self.store = store
        self.queue = part.queue
        self._part = part
        self._options = options
        self._wish = wish
        topic = options.access.long_name(part.queue.topic)
        queue_id = part.queue.queue_id
        self._directory = f"{store.root}/{layout.CONSUME_QUEUE}/{topic}/{queue_id}"
        self._log_directory = f"{store.root}/{layout.COMMIT_LOG}"
        self._maps = maps
        self._on_bad = BadRecords(options, part, store.root)
        codes = parse_tags(options.tags).codes
        # In the schedule topic the code is the time of delivery.
        self._codes = None if topic == SCHEDULE_TOPIC or not codes else np.array(sorted(codes))

    def chunks(self, tail: Tail) -> Iterator[Chunk]:
        """The entries of the messages that may be wanted."""
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
                positions, sizes, offsets = positions[is_kept], sizes[is_kept], offsets[is_kept]
            if len(positions):
                yield Chunk(positions, sizes, offsets)

    def _entries(self, tail: Tail) -> Iterator[tuple[int, Entries]]:
        """The entries of the range, chunk by chunk, each with the offset of its first."""
        offset, high = self._part.low, min(self._part.high, tail.start)
        per_file = self.store.queue_bytes // UNIT_BYTES
        while offset < high:
            number = offset // per_file
            path = segment_path(self._directory, number * self.store.queue_bytes)
            stop = min(high, (number + 1) * per_file, offset + CHUNK_ENTRIES)
            view = self._maps.view(path, self.store.queue_bytes)
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

    def records(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The messages of some entries, segment by segment."""
        positions, _, offsets = chunk
        if not len(positions):
            return
        size = self.store.log_bytes
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
                wanted=self._wish,
                positions=starts,
                offsets=offsets[first:last],
                on_bad=self._on_bad,
            )

    def _lose(self, low: int, high: int, why: str) -> None:
        what = f"messages {low} to {high - 1} of {self._part.queue} are gone: {why}"
        if self._options.fail_on_data_loss:
            raise lost(what)
        log.warning("%s; skipped", what)
