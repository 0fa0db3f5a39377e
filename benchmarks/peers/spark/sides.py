"""The four compared sides: each reads and writes the same rows in its own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from benchmarks.peers.spark.plan import BROKER, IDLE, KAFKA, PARQUET, PATH, SCAN, SINK, STREAM
from benchmarks.spark_path import BODY_BYTES, LEAN, TOPIC
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from penstock import Message, Producer
from penstock.spark.jvm import jvm_of

SINK_TOPIC = "bench-sink"
FILES_A_BATCH = 2
"""Parquet files: one per core."""
_BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"


class Side(ABC):
    """One source and sink."""

    name: str
    rows: tuple[str, ...]

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @abstractmethod
    def read(self) -> DataFrame:
        """Offset, time and body of all rows."""

    @abstractmethod
    def stream(self, a_batch: int | None) -> DataFrame:
        """The same as a stream from the first row; without a limit, only new rows."""

    def write(self, frame: DataFrame) -> None:
        """Append a column ``body``; return when all rows are acknowledged."""
        raise LookupError(f"{self.name} has no row {SINK}")

    def send(self) -> None:
        """Send one more message and wait for its acknowledgement."""
        raise LookupError(f"{self.name} has no row {IDLE}")

    def written(self) -> int:
        """The number of rows that all calls of `write` stored."""
        raise LookupError(f"{self.name} has no row {SINK}")

    def close(self) -> None:
        """Release all resources."""
        return


class Ours(Side):
    """Penstock, read through its broker or from its files."""

    def __init__(self, spark: SparkSession, namesrv: str, store: Path | None = None) -> None:
        super().__init__(spark)
        self.name, self.rows = (
            (BROKER, (SCAN, STREAM, SINK, IDLE)) if store is None else (PATH, (SCAN, STREAM, IDLE))
        )
        self._namesrv = {"namesrv": namesrv}
        self._where = str(store) if store else None
        self._options = {"columns": ",".join(LEAN)} | ({} if store else self._namesrv)
        self._producer = Producer("bench", namesrv=namesrv)
        self._producer.start()

    def read(self) -> DataFrame:
        return self._read(TOPIC)

    def _read(self, topic: str) -> DataFrame:
        reader = self._spark.read.format("penstock").options(**self._options, topic=topic)
        return reader.load(self._where)

    def stream(self, a_batch: int | None) -> DataFrame:
        reader = self._spark.readStream.format("penstock").options(**self._options, topic=TOPIC)
        return _from_the_start(reader, a_batch).load(self._where)

    def write(self, frame: DataFrame) -> None:
        writer = frame.write.format("penstock").mode("append")
        writer.options(**self._namesrv, topic=SINK_TOPIC).save()

    def send(self) -> None:
        self._producer.send(Message(TOPIC, b"x" * BODY_BYTES))

    def written(self) -> int:
        return self._read(SINK_TOPIC).count()

    def close(self) -> None:
        self._producer.stop()


class Kafka(Side):
    """Spark's own Kafka connector."""

    name = KAFKA
    rows = (SCAN, STREAM, SINK, IDLE)

    def __init__(self, spark: SparkSession, address: str) -> None:
        super().__init__(spark)
        self._servers = {"kafka.bootstrap.servers": address}
        java: Any = jvm_of(spark)
        settings = java.java.util.HashMap()
        settings.put("bootstrap.servers", address)
        settings.put("key.serializer", _BYTES)
        settings.put("value.serializer", _BYTES)
        clients = java.org.apache.kafka.clients.producer
        self._record = clients.ProducerRecord
        self._producer = clients.KafkaProducer(settings)

    def fill(self, frame: DataFrame) -> None:
        """Write bodies as values, into the partition that equals their queue."""
        rows = frame.selectExpr("body AS value", "CAST(queue_id AS int) AS partition")
        rows.write.format("kafka").options(**self._servers, topic=TOPIC).save()

    def read(self) -> DataFrame:
        return self._read(TOPIC)

    def _read(self, topic: str) -> DataFrame:
        reader = self._spark.read.format("kafka").options(**self._servers, subscribe=topic)
        return reader.load().select("offset", "timestamp", "value")

    def stream(self, a_batch: int | None) -> DataFrame:
        reader = self._spark.readStream.format("kafka").options(**self._servers, subscribe=TOPIC)
        return _from_the_start(reader, a_batch).load().select("offset", "timestamp", "value")

    def write(self, frame: DataFrame) -> None:
        rows = frame.selectExpr("body AS value")
        rows.write.format("kafka").options(**self._servers, topic=SINK_TOPIC).save()

    def send(self) -> None:
        self._producer.send(self._record(TOPIC, b"x" * BODY_BYTES)).get()

    def written(self) -> int:
        return self._read(SINK_TOPIC).count()

    def close(self) -> None:
        self._producer.close()


class Parquet(Side):
    """Uncompressed Parquet files, without any server."""

    name = PARQUET
    rows = (SCAN, STREAM, SINK)

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        super().__init__(spark)
        self._rows, self._sink = str(directory / "rows"), str(directory / "sink")

    def fill(self, frame: DataFrame, batches: int) -> None:
        """Write as many files as a stream needs for its micro-batches."""
        files = frame.select(*LEAN).repartition(batches * FILES_A_BATCH)
        files.write.option("compression", "none").parquet(self._rows)

    def read(self) -> DataFrame:
        return self._spark.read.parquet(self._rows)

    def stream(self, a_batch: int | None) -> DataFrame:
        reader = self._spark.readStream.schema(self.read().schema)
        return reader.option("maxFilesPerTrigger", FILES_A_BATCH).parquet(self._rows)

    def write(self, frame: DataFrame) -> None:
        frame.write.mode("append").option("compression", "none").parquet(self._sink)

    def written(self) -> int:
        return self._spark.read.parquet(self._sink).count()


def _from_the_start(reader: DataStreamReader, a_batch: int | None) -> DataStreamReader:
    if a_batch is None:
        return reader
    return reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(a_batch))
