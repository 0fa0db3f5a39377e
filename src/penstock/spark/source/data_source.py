"""``format("penstock")``: what Spark asks of a data source, and who answers it.

Spark makes this object on the driver, sends it to worker processes and asks it there for readers
and writers, so it holds nothing but the options. Each part is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from penstock.errors import PenstockError
from penstock.spark.option_reader import refuse_catalog_table
from penstock.spark.source.columns import asked_columns, spark_schema
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.planning import TaskRanges, tasks
from penstock.spark.source.positions import Positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """RocketMQ topics, and store directories, as tables and streams."""

    cores: int | None = None
    """How many tasks run at once, where that is known: `register` says so for local sessions."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Asked for when a read is made, so this is where a misspelt option comes to light.
        refuse_catalog_table(self.options)
        return spark_schema(asked_columns(None, parse_read(dict(self.options)).columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read(dict(self.options))
        columns = asked_columns(schema, options.columns)
        if options.path is not None:
            from penstock.spark.source.store_path import path_reader

            return path_reader(options, columns, self.cores)
        return TopicReader(options, columns, self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except PenstockError as error:
            from penstock.spark.source.micro_batches import RefusedStream

            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_read(dict(self.options))
        columns = asked_columns(schema, options.columns)
        if options.path is not None:
            from penstock.spark.source.store_path import path_stream

            return path_stream(options, columns, self.cores)
        from penstock.spark.source.topic_stream import TopicStream

        return TopicStream(options, columns, self.cores)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink.writers import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from penstock.spark.sink.writers import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)


class TopicReader(DataSourceReader):
    """One batch read of topics; what "latest" means is decided when Spark plans it."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...], cores: int | None) -> None:
        self._options = options
        self._columns = columns
        self._cores = cores

    def partitions(self) -> list[InputPartition]:
        options = self._options
        planned = tasks(
            Positions(options).batch_ranges(),
            cores=self._cores,
            min_partitions=options.min_partitions,
            ordered=options.ordered,
        )
        return list(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without any partition Spark reads one that is not ours.
        if isinstance(partition, TaskRanges):
            yield from Fetcher(self._options).batches(partition, self._columns)
