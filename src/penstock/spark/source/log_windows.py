"""Queues of one store read together, window by window of the log: the fast path of `store_queue`.

The records of several queues alternate in the log. Queue by queue, every page of it is mapped and
fetched from memory once for each queue, by addresses that the processor cannot foresee. Here a
window of the log is read with one call into memory that stays in the processor's cache, and the
records of all queues are decoded from there, the queues one after the other within a window.

That pays only where most of the log is wanted. Anything else takes the plain path, which is the
specification: logs of which other topics have a large part, entries that do not ascend, records
that need more than a copy (compressed ones, inner batches), and windows with anything damaged,
since only the plain path knows which queue to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.columnar.bad_records import BadRecord
from penstock.columnar.decode import BATCH_ROWS, UnusualRecords, Wanted, to_batches
from penstock.model.record_layout import MIN_RECORD_BYTES
from penstock.protocol.records.sys_flags import SysFlag
from penstock.spark.source.store_catalog import StoreFiles
from penstock.spark.source.store_queue import Chunk, QueueReader
from penstock.store import layout
from penstock.store.files import FileLayer
from penstock.store.segments import segment_path

WINDOW_BYTES: Final = 4 << 20
"""Read at once: no more, so that it stays in the cache; no less, so that batches are long."""
MIN_SHARE: Final = 2 / 3
"""Of a window that is read, so much has to be wanted."""
_UNUSUAL: Final = SysFlag.COMPRESSED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH


class Lane:
    """The entries of one queue that are still to be read."""

    def __init__(self, reader: QueueReader, chunks: Iterator[Chunk]) -> None:
        self.reader = reader
        self._chunks = chunks
        self._chunk: Chunk | None = None
        self._at = 0
        self.ascends = False
        """Whether the entries at hand are in the order of the log, without repetition."""

    def load(self) -> bool:
        """Make sure that there are entries at hand; False at the end of the queue."""
        if self._chunk is None:
            self._chunk = next(self._chunks, None)
            self._at = 0
            if self._chunk is None:
                return False
            positions = self._chunk.positions
            self.ascends = bool(positions[0] >= 0 and (positions[1:] > positions[:-1]).all())
        return True

    @property
    def position(self) -> int:
        """The log position of the next entry."""
        assert self._chunk is not None, "it is loaded"
        return int(self._chunk.positions[self._at])

    @property
    def last_position(self) -> int:
        """The log position of the last entry at hand."""
        assert self._chunk is not None, "it is loaded"
        return int(self._chunk.positions[-1])

    def count_before(self, end: int) -> int:
        """The number of entries at hand before a log position."""
        assert self._chunk is not None, "it is loaded"
        return int(self._chunk.positions.searchsorted(end)) - self._at

    def seen(self, count: int) -> Chunk:
        """The next ``count`` entries; they stay."""
        assert self._chunk is not None, "it is loaded"
        return self._chunk.part(self._at, self._at + count)

    def drop(self, count: int) -> None:
        """Pass over ``count`` entries."""
        assert self._chunk is not None, "it is loaded"
        self._at += count
        if self._at >= len(self._chunk):
            self._chunk = None

    def rest(self) -> Chunk:
        """All entries at hand; they are passed over."""
        assert self._chunk is not None, "it is loaded"
        chunk, self._chunk = self._chunk.part(self._at, len(self._chunk)), None
        return chunk


def _refuse(bad: BadRecord) -> None:
    raise UnusualRecords(bad.why)


class LogWindows:
    """Reads queues of one topic and store together."""

    def __init__(self, files: FileLayer, lanes: Sequence[Lane], wish: Wanted) -> None:
        self._files = files
        self._lanes = list(lanes)
        self._wish = wish
        self._store: StoreFiles = lanes[0].reader.store
        self._queue = lanes[0].reader.queue
        self._path = ""
        self._descriptor = -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The messages of all lanes, those of each queue in order."""
        try:
            while lanes := [lane for lane in self._lanes if lane.load()]:
                self._lanes = lanes
                first = min(lanes, key=lambda lane: lane.position)
                counts = self._window(first.position)
                if counts is None:
                    # More than a window: the plain path makes whole batches of it.
                    yield from first.reader.records(first.rest())
                    continue
                parts = [lane.seen(count) for lane, count in zip(lanes, counts, strict=True)]
                for lane, count in zip(lanes, counts, strict=True):
                    lane.drop(count)
                try:
                    made = self._decoded([part for part in parts if len(part)])
                except UnusualRecords:
                    for lane, part in zip(lanes, parts, strict=True):
                        yield from lane.reader.records(part)
                    continue
                yield from made
        finally:
            self._close()

    def _window(self, start: int) -> list[int] | None:
        """The number of entries of each lane in the window at ``start``; None: not worth it."""
        if not all(lane.ascends for lane in self._lanes):
            return None
        size = self._store.log_bytes
        base = start // size * size
        end = min(start + WINDOW_BYTES, base + size)
        # Beyond the entries at hand a queue may have more: the window would miss them.
        end = min(end, 1 + min(lane.last_position for lane in self._lanes))
        counts = self._counts(end)
        while (total := sum(counts)) > BATCH_ROWS:
            # One batch and no short one after it; a little less, to be done soon.
            end = start + max(1, (end - start) * BATCH_ROWS * 127 // (total * 128))
            counts = self._counts(end)
        parts = [lane.seen(count) for lane, count in zip(self._lanes, counts, strict=True)]
        filled = [part for part in parts if len(part)]
        last = max(int(part.positions[-1] + part.sizes[-1]) for part in filled)
        taken = sum(int(part.sizes.sum()) for part in filled)
        is_whole = min(int(part.sizes.min()) for part in filled) >= MIN_RECORD_BYTES
        if not is_whole or taken < MIN_SHARE * (last - start):
            return None
        path = segment_path(f"{self._store.root}/{layout.COMMIT_LOG}", base)
        return counts if self._open(path) else None

    def _counts(self, end: int) -> list[int]:
        return [lane.count_before(end) for lane in self._lanes]

    def _decoded(self, parts: Sequence[Chunk]) -> list[pa.RecordBatch]:
        """The messages of a window; it is short, so its batches may wait for the last one."""
        positions = np.concatenate([part.positions for part in parts])
        start = int(positions.min())
        end = max(int(part.positions[-1] + part.sizes[-1]) for part in parts)
        base = start // self._store.log_bytes * self._store.log_bytes
        content = self._files.read(self._descriptor, end - start, start - base)
        positions -= start
        if len(content) < end - start:
            raise UnusualRecords("cut off")
        return list(
            to_batches(
                content,
                broker=self._queue.broker_name,
                topic=self._queue.topic,
                wanted=self._wish,
                positions=positions,
                offsets=np.concatenate([part.offsets for part in parts]),
                on_bad=_refuse,
                refused_flags=_UNUSUAL,
            )
        )

    def _open(self, path: str) -> bool:
        """Open a segment; False if it is gone."""
        if path == self._path:
            return True
        self._close()
        try:
            self._descriptor = self._files.open(path)
        except FileNotFoundError:
            return False
        self._path = path
        return True

    def _close(self) -> None:
        if self._path:
            self._files.close(self._descriptor)
            self._path = ""
