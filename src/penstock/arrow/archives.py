"""Reads the Parquet files of an archive that ``penstock.spark.archive`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from penstock.columnar.schema import arrow_schema
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.pipelines.archive.state import PRIVATE
from penstock.spark.pipelines.files import is_local
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.archive_reading import read_archived
from penstock.spark.source.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    Position,
    ReadOptions,
    Where,
)
from penstock.spark.source.ranges import Range


def is_archive(path: str) -> bool:
    """Whether a directory is an archive; one by a URL is nothing else."""
    return not is_local(path) or (_local(path) / PRIVATE).is_dir()


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://")).expanduser()


def read_archive(
    path: str, options: ReadOptions, names: tuple[str, ...], topic: str | None
) -> pa.RecordBatchReader:
    """The rows of an archive as of its last commit, in the order of each queue.

    Files of other times are not opened. Messages that were gone before they could be archived are
    an error, unless ``failOnDataLoss`` is false.
    """
    index = ArchiveIndex(str(_local(path)) if is_local(path) else path)
    if topic is not None and topic != index.topic:
        raise InvalidArgument(
            f"topic {topic!r}, and an archive of topic {index.topic!r}",
            expected="the archive of that topic",
        )
    low = _offsets(index, options.starting or EARLIEST)
    high = _offsets(index, options.ending or LATEST, index.ends)
    ranges = [Range(queue, low[queue], high[queue]) for queue in sorted(index.ends)]
    batches = read_archived(index, [part for part in ranges if part.count > 0], options, names)
    return pa.RecordBatchReader.from_batches(arrow_schema(names), batches)


def _offsets(
    index: ArchiveIndex, position: Position, unnamed: Mapping[MessageQueue, int] | None = None
) -> dict[MessageQueue, int]:
    """The offset of a position in each archived queue, within what is archived.

    ``unnamed`` are those of queues that the user's offsets do not name; None: their beginnings.
    """
    first, end = index.starts, index.ends
    match position.where:
        case Where.EARLIEST:
            return dict(first)
        case Where.LATEST | Where.GROUP:
            return dict(end)
        case Where.TIME:
            return {**end, **index.offsets_at(end, position.timestamp_ms)}
        case Where.OFFSETS:
            named = {**(first if unnamed is None else unnamed), **dict(position.offsets)}
    marks = {EARLIEST_OFFSET: first, LATEST_OFFSET: end}
    return {
        queue: min(max(marks.get(offset, named)[queue], first[queue]), end[queue])
        for queue, offset in named.items()
        if queue in end
    }
