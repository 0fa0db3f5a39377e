"""Reads the Parquet files of an archive that ``penstock.spark.archive`` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.schema import arrow_schema
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.pipelines.archive.directory import data_paths, load_existing
from penstock.spark.pipelines.archive.state import PRIVATE
from penstock.spark.pipelines.files import is_local
from penstock.spark.pipelines.readable_files import ParquetFiles, open_readable
from penstock.spark.source.archive_reading import row_filter
from penstock.spark.source.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Position,
    ReadOptions,
    Where,
)

_ENDLESS: Final = (1 << 63) - 1


def is_archive(path: str) -> bool:
    """Whether a directory is an archive; one by a URL is nothing else."""
    return not is_local(path) or (_local(path) / PRIVATE).is_dir()


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://")).expanduser()


def read_archive(
    path: str, options: ReadOptions, names: tuple[str, ...], topic: str | None
) -> pa.RecordBatchReader:
    """The rows of an archive as of its last commit; files of other times are not opened."""
    files = open_readable(_local(path) if is_local(path) else path)
    state = load_existing(files)
    if topic is not None and topic != state.topic:
        raise InvalidArgument(
            f"topic {topic!r}, and an archive of topic {state.topic!r}",
            expected="the archive of that topic",
        )
    places = data_paths(files, state)
    start_ms, end_ms = _time(options.starting), _time(options.ending)
    chosen = sorted(
        (
            file
            for file in state.files
            if (start_ms is None or file.to_ms >= start_ms)
            and (end_ms is None or file.from_ms < end_ms)
        ),
        key=lambda file: (file.from_ms, file.path),
    )
    paths = [places[file.path] for file in chosen]
    batches = _batches(files, paths, options, names)
    return pa.RecordBatchReader.from_batches(arrow_schema(names), batches)


def _batches(
    files: ParquetFiles, paths: Sequence[str], options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    needed = {"broker", "queue_id", "offset", "store_timestamp", "tags", "keys"}
    schema = arrow_schema(names)
    for path in paths:
        with files.parquet(path) as file:
            for batch in file.iter_batches(columns=sorted({*names, *needed})):
                rows = pa.Table.from_batches([batch])
                mask = _mask(rows, options)
                if mask is not None:
                    rows = rows.filter(mask)
                if "properties" in names and not options.include_properties:
                    empty = pa.nulls(rows.num_rows, schema.field("properties").type)
                    at = rows.column_names.index("properties")
                    rows = rows.set_column(at, "properties", empty)
                yield from rows.select(names).cast(schema, safe=False).to_batches()


def _mask(rows: pa.Table, options: ReadOptions) -> pa.ChunkedArray | None:
    """Which rows are in the range and pass the filters; None: all of them."""
    masks = []
    times = rows["store_timestamp"].cast(pa.timestamp("us", "UTC"), safe=False)
    for position, compare in ((options.starting, pc.greater_equal), (options.ending, pc.less)):
        bound = _time(position)
        if bound is not None:
            moment = pa.scalar(bound * 1000, pa.timestamp("us", "UTC"))
            masks.append(compare(times, moment))
        elif position is not None and position.where is Where.OFFSETS:
            masks.append(compare(rows["offset"], _bounds(rows, dict(position.offsets))))
    filtered = row_filter(rows, options)
    if filtered is not None:
        masks.append(filtered)
    whole = None
    for mask in masks:
        known = mask.fill_null(True)
        whole = known if whole is None else pc.and_(whole, known)
    return whole


def _bounds(rows: pa.Table, offsets: dict[MessageQueue, int]) -> pa.ChunkedArray:
    """The bound of each row's queue; queues that are not named have none."""
    ends = {EARLIEST_OFFSET: 0, LATEST_OFFSET: _ENDLESS}
    by_place = {
        (queue.broker_name, queue.queue_id): ends.get(offset, offset)
        for queue, offset in offsets.items()
    }
    places = zip(rows["broker"].to_pylist(), rows["queue_id"].to_pylist(), strict=True)
    return pa.chunked_array([[by_place.get(place) for place in places]], pa.int64())


def _time(position: Position | None) -> int | None:
    is_time = position is not None and position.where is Where.TIME
    return position.timestamp_ms if is_time and position is not None else None
