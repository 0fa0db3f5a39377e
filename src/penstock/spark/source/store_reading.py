"""Messages straight from the files of a store, without a broker: the ranges of one task."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.spark.source.data_loss import wanted
from penstock.spark.source.log_windows import Lane, LogWindows
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.ranges import Range
from penstock.spark.source.store_catalog import StoreFiles, Tail
from penstock.spark.source.store_queue import QueueReader
from penstock.store.segments import OS_FILES, SegmentMaps

_OPEN_FILES: Final = 4


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
    """The messages of ranges as Arrow batches; ``files`` are the stores by broker.

    Messages of a queue come in its order. Queues of one topic and store are read together, so
    their messages alternate.
    """
    wish = wanted(options, columns)
    # The queues of a store share the log, so they share its maps: page faults are paid once.
    maps = SegmentMaps(OS_FILES, _OPEN_FILES)
    for _, together in itertools.groupby(ranges, _log_and_topic):
        lanes = []
        for part, tail in together:
            reader = QueueReader(files[part.queue.broker_name], part, options, maps, wish)
            lanes.append(Lane(reader, reader.chunks(tail)))
        yield from LogWindows(OS_FILES, lanes, wish).batches()


def _log_and_topic(found: PathRange) -> tuple[str, str]:
    return found.part.queue.broker_name, found.part.queue.topic
