"""What an archive holds of each queue, and in which of its files. Reads states, and no rows.

An archive (`pipelines.archive`) grows while it is read: new files appear, and small ones are
replaced by larger ones with the same rows. So its state is read again when it is needed, and tasks
are given ranges of offsets, not names of files.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.columnar.buffers import Numbers
from penstock.errors import StoreDamaged
from penstock.model import MessageQueue
from penstock.spark.pipelines.archive.directory import data_paths, load_existing
from penstock.spark.pipelines.archive.state import DataFile, State
from penstock.spark.pipelines.readable_files import open_readable
from penstock.spark.pipelines.spans import Span
from penstock.spark.source.ranges import Range

Mask: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]

log = logging.getLogger(__name__)

MAX_RELOADS: Final = 5
"""How often files may be replaced while they are read."""
PLACE: Final = ("broker", "queue_id", "offset")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file, the offsets in it of each queue, and the store times of its rows."""

    path: str
    """Where it is in the archive."""
    ranges: tuple[Range, ...]
    rows: int
    from_ms: int
    to_ms: int

    def overlaps(self, wanted: Range) -> bool:
        """Whether it may have rows of a range."""
        return any(
            part.queue == wanted.queue and part.low < wanted.high and wanted.low < part.high
            for part in self.ranges
        )


class ArchiveIndex:
    """The files and offsets of an archive, as of its last commit."""

    def __init__(self, directory: str) -> None:
        self._directory = open_readable(directory)
        self._known: dict[str, tuple[Range, ...]] = {}
        """The ranges of files of which the state does not say them."""
        self._version = -1
        self._places: dict[str, str] = {}
        """Where each file of the state is: staged files are moved after the commit."""
        self.topic = ""
        self.files: tuple[ArchivedFile, ...] = ()
        self.ends: dict[MessageQueue, int] = {}
        """The first offset of each queue that is not archived yet."""
        self.starts: dict[MessageQueue, int] = {}
        """The first offset that is, or that was gone before it could be: see `gaps`."""
        self.epochs: dict[MessageQueue, int] = {}
        """When the topic was last deleted before it was archived; see `State.epochs`."""
        self.gaps: tuple[Range, ...] = ()
        """Messages that were gone before they could be archived."""
        self.reload()

    def __str__(self) -> str:
        return str(self._directory)

    def reload(self) -> bool:
        """Read the newest state; whether it is a new one, or files of it have moved."""
        for _ in range(MAX_RELOADS):
            try:
                return self._load()
            except FileNotFoundError as error:
                # Replaced meanwhile.
                log.debug("archive state read again archive=%s error=%s", self, error)
        return self._load()

    def _load(self) -> bool:
        state = load_existing(self._directory)
        places = data_paths(self._directory, state)
        if state.version == self._version and places == self._places:
            return False
        self._version, self._places = state.version, places
        self.topic = state.topic
        self.files = tuple(self._file(file, places[file.path]) for file in _by_time(state))
        self.ends = {self._queue(*queue): end for queue, end in state.next_offsets.items()}
        self.gaps = tuple(self._range(gap) for gap in state.gaps)
        self.starts = dict(self.ends)
        for part in itertools.chain(self.gaps, *(file.ranges for file in self.files)):
            self.starts[part.queue] = min(part.low, self.starts.get(part.queue, part.low))
        self.epochs = {self._queue(*queue): epoch for queue, epoch in state.epochs.items()}
        return True

    def overlapping(self, ranges: Iterable[Range]) -> list[ArchivedFile]:
        """The files that may have rows of some ranges, oldest first."""
        wanted = list(ranges)
        return [file for file in self.files if any(map(file.overlaps, wanted))]

    def offsets_at(
        self, queues: Iterable[MessageQueue], timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """The first offset of each queue stored at a time or later, as far as it is archived.

        Opens only files that begin before the time and end after it, and of those four columns.
        """
        wanted = set(queues)
        for _ in range(MAX_RELOADS):
            try:
                return self._offsets_at(wanted, timestamp_ms)
            except FileNotFoundError as error:
                # Moved or compacted meanwhile: the state says where the rows are now.
                if not self.reload():
                    raise missing_file(self, error) from error
        return self._offsets_at(wanted, timestamp_ms)

    def _offsets_at(self, wanted: set[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for file in self.files:
            if file.to_ms < timestamp_ms:
                continue
            parts = [part for part in file.ranges if part.queue in wanted]
            if file.from_ms >= timestamp_ms:
                first = {part.queue: part.low for part in parts}
            elif parts:
                rows = self.columns(file.path, (*PLACE, "store_timestamp"))
                first = _first_since(rows, [part.queue for part in parts], timestamp_ms)
            else:
                continue
            for queue, offset in first.items():
                found[queue] = min(offset, found.get(queue, offset))
        return found

    def _queue(self, broker: str, queue_id: int) -> MessageQueue:
        return MessageQueue(self.topic, broker, queue_id)

    def _range(self, span: Span) -> Range:
        return Range(self._queue(*span.queue), span.start, span.end)

    def _file(self, file: DataFile, place: str) -> ArchivedFile:
        if file.spans:
            ranges = tuple(map(self._range, file.spans))
        elif (known := self._known.get(file.path)) is not None:
            ranges = known
        else:
            # Written before states named them.
            ranges = self._known[file.path] = self._ranges_in(place)
        return ArchivedFile(place, ranges, file.rows, file.from_ms, file.to_ms)

    def parquet(self, path: str) -> pq.ParquetFile:
        """Open one of the files."""
        return self._directory.parquet(path)

    def columns(self, path: str, names: Sequence[str]) -> pa.Table:
        """Some columns of a file."""
        with self.parquet(path) as file:
            return file.read(columns=list(names))

    def _ranges_in(self, path: str) -> tuple[Range, ...]:
        rows = self.columns(path, PLACE)
        found = rows.group_by(["broker", "queue_id"]).aggregate(
            [("offset", "min"), ("offset", "max")]
        )
        spans = (
            Span(row["broker"], row["queue_id"], row["offset_min"], row["offset_max"] + 1)
            for row in found.to_pylist()
        )
        return tuple(map(self._range, spans))


def missing_file(index: ArchiveIndex, error: FileNotFoundError) -> StoreDamaged:
    """The error for a file that the newest state names, and that is not there."""
    return StoreDamaged(
        f"a file of the archive {index} is missing: {error}",
        expected="every file that its state names",
        hint="do driver and executors see the same directory?",
    )


def _by_time(state: State) -> list[DataFile]:
    return sorted(state.files, key=lambda file: (file.from_ms, file.path))


def _first_since(
    rows: pa.Table, queues: Sequence[MessageQueue], timestamp_ms: int
) -> dict[MessageQueue, int]:
    times = rows["store_timestamp"].cast(pa.timestamp("us", "UTC"), safe=False)
    is_late = times.cast(pa.int64()).to_numpy() >= timestamp_ms * 1000
    offsets, places = rows["offset"].to_numpy(), QueuePlaces(rows)
    first = {}
    for queue in queues:
        late = offsets[places.rows_of(queue) & is_late]
        if len(late):
            first[queue] = int(late.min())
    return first


class QueuePlaces:
    """The queue of each row of a table, as a number."""

    def __init__(self, rows: pa.Table) -> None:
        brokers = rows["broker"].combine_chunks().dictionary_encode()
        if isinstance(brokers, pa.ChunkedArray):
            brokers = brokers.combine_chunks()
        self._names: list[str] = brokers.dictionary.to_pylist()
        indices = brokers.indices.to_numpy().astype(np.int64)
        self.numbers: Numbers = indices << 32 | rows["queue_id"].to_numpy()

    def rows_of(self, queue: MessageQueue) -> Mask:
        """Which rows are of a queue."""
        if queue.broker_name not in self._names:
            return np.zeros(len(self.numbers), bool)
        number = self._names.index(queue.broker_name) << 32 | queue.queue_id
        return np.equal(self.numbers, number)
