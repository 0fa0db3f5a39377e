"""Reads ranges of offsets from the Parquet files of an archive.

Usually the files follow each other in every queue, and the rows of a queue are in order within a
file: then a file is read from its beginning to its end, for all queues at once. Where a clock was
set back, or rows were written in another order, each queue is read by itself and sorted: that is
slower, and shows what the usual way has to give. Both count the rows: a message that is neither
there nor recorded as a gap is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.columnar.schema import arrow_schema
from penstock.errors import StoreDamaged
from penstock.spark.source.archive_index import (
    MAX_RELOADS,
    PLACE,
    ArchivedFile,
    ArchiveIndex,
    Mask,
    QueuePlaces,
    missing_file,
)
from penstock.spark.source.data_loss import lost
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 16_384


def read_archived(
    index: ArchiveIndex, ranges: Sequence[Range], options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The messages of ranges, in their order within each queue."""
    _check_gaps(index, ranges, options)
    reader = _Reader(index, sorted(ranges, key=_place), columns)
    for attempt in range(MAX_RELOADS + 1):
        try:
            for rows in reader.tables():
                yield from _finished(rows, options, columns)
        except FileNotFoundError as error:
            # Compacted meanwhile: the new state names the files that have the rows now.
            if attempt == MAX_RELOADS or not index.reload():
                raise missing_file(index, error) from error
        else:
            return


class _Reader:
    """Reads what is left of some ranges; a file that is missing changes nothing of that."""

    def __init__(
        self, index: ArchiveIndex, ranges: Sequence[Range], columns: tuple[str, ...]
    ) -> None:
        self._index = index
        self._left = list(ranges)
        # Filters and order need these, also if they are not asked for.
        self._columns = sorted({*columns, *PLACE, "tags", "keys"})

    def tables(self) -> Iterator[pa.Table]:
        """The rows, in their order within each queue."""
        files = self._index.overlapping(self._left)
        if not is_in_order(files, self._left):
            while self._left:
                yield self._of_queue(files, self._left[0])
                self._left.pop(0)
            return
        for file in files:
            now, later = divided(file, self._left)
            # A file that is open can be read to its end, even if it is deleted meanwhile.
            yield from self._of_file(file, now)
            self._left = later
        self._check_count(self._index, 0, self._left)

    def _of_file(self, file: ArchivedFile, wanted: Sequence[Range]) -> Iterator[pa.Table]:
        place = self._index.columns(file.path, PLACE)
        mask = _mask(place, wanted)
        self._check_count(f"{self._index}/{file.path}", int(mask.sum()), wanted)
        if not mask.any():
            return
        with self._index.parquet(file.path) as parquet:
            if not _rises(place, mask):
                rows = parquet.read(columns=self._columns)
                yield _sorted(rows.filter(pa.array(mask)))
                return
            groups, mask = _groups_with_rows(parquet, mask)
            first = 0
            for batch in parquet.iter_batches(BATCH_ROWS, groups, columns=self._columns):
                chosen = mask[first : first + batch.num_rows]
                first += batch.num_rows
                if chosen.any():
                    rows = pa.Table.from_batches([batch])
                    yield rows if chosen.all() else rows.filter(pa.array(chosen))

    def _of_queue(self, files: Sequence[ArchivedFile], part: Range) -> pa.Table:
        """The rows of one range from any files."""
        found = []
        for file in files:
            if file.overlaps(part):
                with self._index.parquet(file.path) as parquet:
                    rows = parquet.read(columns=self._columns)
                found.append(rows.filter(pa.array(_mask(rows, [part]))))
        rows = _sorted(pa.concat_tables(found)) if found else pa.table({})
        self._check_count(self._index, rows.num_rows, [part])
        return rows

    def _check_count(self, where: object, found: int, wanted: Sequence[Range]) -> None:
        expected = sum(part.count - _gone(self._index, part) for part in wanted)
        if found != expected:
            shown = ", ".join(f"{part.queue}[{part.low}:{part.high}]" for part in wanted)
            raise StoreDamaged(
                f"{where} has {found} rows of {shown or 'nothing that was asked for'}",
                expected=f"{expected}, as the archive's state says",
                hint="the files were changed by another program: restore them from a copy",
            )


def is_in_order(files: Sequence[ArchivedFile], ranges: Sequence[Range]) -> bool:
    """Whether each file continues all its queues where the files before it ended."""
    queues = {part.queue for part in ranges}
    reached: dict[object, int] = {}
    for file in files:
        for part in file.ranges:
            if part.queue in queues:
                if part.low < reached.get(part.queue, 0):
                    return False
                reached[part.queue] = part.high
    return True


def divided(file: ArchivedFile, ranges: Sequence[Range]) -> tuple[list[Range], list[Range]]:
    """The parts of ranges that a file holds, and those that come after it."""
    held = {part.queue: part for part in file.ranges}
    now, later = [], []
    for part in ranges:
        own = held.get(part.queue)
        if own is None or part.low >= own.high:
            later.append(part)
            continue
        end = min(part.high, own.high)
        now.append(Range(part.queue, part.low, end))
        if end < part.high:
            later.append(Range(part.queue, end, part.high))
    return now, later


# ------------------------------------------------------------------------------------- the rows


def _mask(rows: pa.Table, wanted: Sequence[Range]) -> Mask:
    """Which rows are in one of the ranges."""
    offsets = rows["offset"].to_numpy()
    places = QueuePlaces(rows)
    mask = np.zeros(rows.num_rows, bool)
    for part in wanted:
        mask |= places.rows_of(part.queue) & (offsets >= part.low) & (offsets < part.high)
    return mask


def _groups_with_rows(parquet: pq.ParquetFile, mask: Mask) -> tuple[list[int], Mask]:
    """The row groups that have chosen rows, and the mask of their rows alone.

    A merged file has its rows by queue, so that a range of one queue is in a few of them.
    """
    counts = [parquet.metadata.row_group(at).num_rows for at in range(parquet.num_row_groups)]
    parts = np.split(mask, np.cumsum(counts)[:-1])
    groups = [at for at, part in enumerate(parts) if part.any()]
    return groups, np.concatenate([parts[at] for at in groups])


def _rises(place: pa.Table, mask: Mask) -> bool:
    """Whether the offsets of each queue rise from row to row, as far as rows are chosen."""
    queues, offsets = QueuePlaces(place).numbers[mask], place["offset"].to_numpy()[mask]
    order = np.argsort(queues, kind="stable")
    queues, offsets = queues[order], offsets[order]
    return bool(np.all((np.diff(offsets) > 0) | (np.diff(queues) != 0)))


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in PLACE])


def _finished(
    rows: pa.Table, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows that pass the filters, with the columns and types of the source."""
    if not rows.num_rows:
        return
    mask = row_filter(rows, options)
    if mask is not None:
        rows = rows.filter(mask)
    schema = arrow_schema(columns)
    if "properties" in columns and not options.include_properties:
        empty = pa.nulls(rows.num_rows, schema.field("properties").type)
        rows = rows.set_column(rows.column_names.index("properties"), "properties", empty)
    yield from rows.select(columns).cast(schema, safe=False).to_batches(BATCH_ROWS)


def row_filter(rows: pa.Table, options: ReadOptions) -> pa.ChunkedArray | None:
    """Which rows have the tags and keys that are asked for; None: all."""
    mask = None
    if options.exact_tags is not None:
        wanted = pa.array(sorted(options.exact_tags), pa.string())
        mask = pc.is_in(rows["tags"], value_set=wanted)  # False for null
    if options.keys is not None:
        keys = options.keys
        has_key = pa.chunked_array(
            [[not keys.isdisjoint(row or ()) for row in rows["keys"].to_pylist()]], pa.bool_()
        )
        mask = has_key if mask is None else pc.and_(mask, has_key)
    return mask


# ------------------------------------------------------------------------------------- the gaps


def _gone(index: ArchiveIndex, part: Range) -> int:
    """How many messages of a range were gone before they could be archived."""
    return sum(
        max(0, min(gap.high, part.high) - max(gap.low, part.low))
        for gap in index.gaps
        if gap.queue == part.queue
    )


def _check_gaps(index: ArchiveIndex, ranges: Sequence[Range], options: ReadOptions) -> None:
    for part in ranges:
        for gap in index.gaps:
            if gap.queue == part.queue and gap.low < part.high and part.low < gap.high:
                what = (
                    f"messages {gap.low} to {gap.high - 1} of {gap.queue} were gone before they "
                    f"could be archived in {index}"
                )
                if options.fail_on_data_loss:
                    raise lost(what)
                log.warning("%s; left out", what)


# ------------------------------------------------------------------------------------- the tasks


def pieces_of(
    index: ArchiveIndex, ranges: Sequence[Range], *, cores: int | None = None
) -> list[list[Range]]:
    """Ranges cut along the files, so that each file is read by one task.

    With ``cores`` neighbours are joined into so many pieces.
    """
    left = sorted((part for part in ranges if part.count > 0), key=_place)
    files = index.overlapping(left)
    if not is_in_order(files, left):
        return [[part] for part in left]
    pieces = []
    for file in files:
        now, left = divided(file, left)
        pieces.append(now)
    pieces.append(left)  # only gaps
    pieces = [piece for piece in pieces if piece]
    return _joined(pieces, cores) if pieces and cores is not None else pieces


def _joined(pieces: Sequence[list[Range]], count: int) -> list[list[Range]]:
    """Neighbours joined into about ``count`` pieces of the same number of messages."""
    sizes = np.array([sum(part.count for part in piece) for piece in pieces])
    ends = np.cumsum(sizes)
    cuts = [int(np.searchsorted(ends, ends[-1] * number / count)) + 1 for number in range(1, count)]
    edges = sorted({0, *cuts, len(pieces)})
    return [_merged(pieces[low:high]) for low, high in pairwise(edges) if low < high]


def _merged(pieces: Sequence[list[Range]]) -> list[Range]:
    """The ranges of neighbouring pieces, those that follow each other as one."""
    merged: list[Range] = []
    for part in sorted((part for piece in pieces for part in piece), key=_place):
        if merged and merged[-1].queue == part.queue and merged[-1].high == part.low:
            merged[-1] = Range(part.queue, merged[-1].low, part.high)
        else:
            merged.append(part)
    return merged


def _place(part: Range) -> tuple[object, int]:
    return part.queue, part.low
