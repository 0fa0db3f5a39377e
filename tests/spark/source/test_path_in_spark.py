"""``option("path")`` inside of Spark, as a table and as a stream."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock import Message, Producer
from penstock.testing.embedded import Embedded

Row = dict[str, Any]
PLACE = ("topic", "queue_id", "offset")


def place(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in PLACE)


def test_spark_shows_what_the_store_holds(
    spark: SparkSession,
    unpacked: Callable[[str], tuple[Path, list[Row]]],
    read: Callable[..., list[Row]],
) -> None:
    root, _ = unpacked("5.5.0")
    frame = spark.read.format("penstock").option("path", str(root)).load()
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        for name in ("born_timestamp", "store_timestamp"):
            row[name] = row[name].astimezone(UTC)
    assert sorted(found, key=place) == sorted(read(root), key=place)
    assert frame.rdd.getNumPartitions() == 1


def test_columns_are_pruned_by_schema_and_by_option(
    spark: SparkSession, unpacked: Callable[[str], tuple[Path, list[Row]]]
) -> None:
    root, messages = unpacked("4.9.7")
    reader = spark.read.format("penstock").option("topic", "golden-one")
    total = sum(row["bodyLength"] for row in messages if row["topic"] == "golden-one")
    pruned = reader.schema("body binary, offset long").load(str(root))
    assert pruned.columns == ["body", "offset"]
    assert pruned.selectExpr("sum(length(body))").first() == (total,)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW golden USING penstock "
        f"OPTIONS (path '{root}', topic 'golden-one', columns 'body')"
    )
    assert spark.sql("SELECT sum(length(body)) FROM golden").first() == (total,)


def test_a_stream_follows_a_running_broker_and_goes_on_from_its_checkpoint(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    mq.admin.create_topic("orders", queues=2)
    stream = (
        spark.readStream.format("penstock")
        .option("path", str(mq.data))
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("columns", "broker,queue_id,offset,body,tags")
        .load()
    )
    table = str(tmp_path / "table")

    def rows() -> list[bytes]:
        return sorted(row.body for row in spark.read.parquet(table).collect())

    sent: list[bytes] = []
    with Producer(group="shop", namesrv=mq.namesrv) as producer:

        def send(count: int) -> None:
            for _ in range(count):
                sent.append(b"message %04d" % len(sent))
                producer.send(Message("orders", sent[-1], tag="t"))

        def write(**trigger: Any) -> Any:
            return (
                stream.writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(**trigger)
                .start(table)
            )

        send(40)
        running = write(processingTime="0 seconds")
        running.processAllAvailable()
        assert rows() == sent
        send(40)
        running.processAllAvailable()
        assert rows() == sent
        running.stop()
        send(40)
        finished = write(availableNow=True)
        assert finished.awaitTermination(60)
    assert rows() == sent
    found = spark.read.parquet(table).select("broker", "queue_id", "offset").collect()
    assert len({tuple(row) for row in found}) == 120
    assert {row.broker for row in found} == {"broker-a"}
