"""A Python source for Spark that yields ready-made Arrow batches: the limit of any such source.

It reads a file in Arrow's IPC format that is mapped into memory, so it decodes nothing; what is
left is what Spark itself takes to receive the batches from a Python process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT: Final = "penstock_bench_ready"


class ReadyBatches(DataSource):
    """One task for each file of the option ``files``; the user's schema is that of the files."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["files"].split(","))


class _Reader(DataSourceReader):
    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(path) for path in self._files]

    # As Spark's own class declares it: rows or batches.
    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.memory_map(partition.value) as file, pa.ipc.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


def write_ready(path: Path, batches: pa.RecordBatchReader) -> str:
    """The batches as a file, in the sizes in which they come."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches.schema) as target:
        for batch in batches:
            target.write_batch(batch)
    return str(path)
