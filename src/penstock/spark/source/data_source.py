"""``format("penstock")``: what Spark asks of a data source, and which module answers.

Spark makes this object on the driver, sends it to worker processes and asks it there for readers
and writers, so it holds nothing but the options. Each part is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from penstock.errors import PenstockError
from penstock.spark.option_table import refuse_catalog_table
from penstock.spark.source.columns import asked_columns, spark_schema
from penstock.spark.source.options import ReadOptions, parse_read
from penstock.spark.source.readers import BatchReader, InvalidStream, StreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


class PenstockSource(DataSource):
    """RocketMQ topics, and store directories, as tables and streams."""

    cores: int | None = None
    """The number of tasks that run at once, if known: `register` sets it for local sessions."""

    has_listener = False
    """Whether the session commits the progress of streams: `register` adds a listener for that."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # Called when a read is made, so a misspelt option is reported here.
        refuse_catalog_table(self.options)
        return spark_schema(asked_columns(None, parse_read(dict(self.options)).columns))

    def _parsed(self, schema: StructType) -> tuple[ReadOptions, tuple[str, ...], int | None]:
        options = parse_read(dict(self.options))
        return options, asked_columns(schema, options.columns), self.cores

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(*self._parsed(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return StreamReader(*self._parsed(schema), has_listener=self.has_listener)
        except PenstockError as error:
            return InvalidStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink.write_options import batch_of
        from penstock.spark.sink.writers import BatchWriter, checked_write

        given = dict(self.options)
        return BatchWriter(*checked_write(given, schema, overwrite), batch_of(given))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from penstock.spark.sink.writers import StreamWriter, checked_write

        return StreamWriter(*checked_write(dict(self.options), schema, overwrite))
