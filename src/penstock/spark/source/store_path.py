"""``option("path", DIR)``: the tasks of a read from the files of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.spark.source.options import ReadOptions
from penstock.spark.source.planning import tasks
from penstock.spark.source.ranges import Range
from penstock.spark.source.store_catalog import StoreCatalog, StoreFiles
from penstock.spark.source.store_reading import PathRange, read_ranges


class PathTask(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[PathRange], files: dict[str, StoreFiles]) -> None:
        self.ranges = tuple(ranges)
        self.files = files

    def __repr__(self) -> str:
        shown = ", ".join(f"{part.queue}[{part.low}:{part.high}]" for part, _ in self.ranges)
        return f"PathTask({shown})"


def plan_path(
    options: ReadOptions, catalog: StoreCatalog, ranges: Sequence[Range], cores: int | None
) -> list[PathTask]:
    """Tasks for ranges of a catalog's queues."""
    made = tasks(
        [catalog.cut(part) for part in ranges],
        cores=cores,
        min_partitions=options.min_partitions,
        ordered=options.ordered,
        striped=True,
    )
    return [path_task(catalog, task.ranges) for task in made]


def path_task(catalog: StoreCatalog, ranges: Sequence[Range]) -> PathTask:
    """The task for ranges of a catalog's queues."""
    files = catalog.files()
    return PathTask(
        [PathRange(part, catalog.tail(part)) for part in ranges],
        {part.queue.broker_name: files[part.queue.broker_name] for part in ranges},
    )


def read_path(
    task: PathTask, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The messages of a task as Arrow batches."""
    yield from read_ranges(task.ranges, task.files, options, columns)
