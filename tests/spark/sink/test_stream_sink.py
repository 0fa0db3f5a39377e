"""Streams into topics: a committed micro-batch is stored, and one that runs again is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Message, Producer
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.spark.sink.batch_writer import batch_writer
from penstock.spark.sink.deduplication import deduplicate
from penstock.testing.embedded import Embedded


def copy(spark: SparkSession, mq: Embedded, checkpoint: Path, **options: str) -> None:
    """Copy one topic into another, as far as it goes now."""
    stream = (
        spark.readStream.format("penstock")
        .option("namesrv", mq.namesrv)
        .option("topic", "in")
        .option("startingOffsets", "earliest")
        .load()
    )
    write(stream, mq, checkpoint, **options)


def write(stream: DataFrame, mq: Embedded, checkpoint: Path, **options: str) -> None:
    (
        stream.writeStream.format("penstock")
        .option("namesrv", mq.namesrv)
        .option("topic", "out")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def read(spark: SparkSession, mq: Embedded) -> DataFrame:
    return spark.read.format("penstock").option("namesrv", mq.namesrv).option("topic", "out").load()


def produce(mq: Embedded, numbers: range) -> None:
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number in numbers:
            queue = MessageQueue("in", "broker-a", number % 3)
            producer.send(Message("in", b"%d" % number, tag=f"t{number % 2}"), queue=queue)


def undo_last_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a process leaves it that died after the sink and before the commit."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for file in (checkpoint / "commits").iterdir():
        if str(last) in (file.name, file.name.removeprefix(".").removesuffix(".crc")):
            file.unlink()


def test_a_micro_batch_that_runs_again_is_recognised(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        mq.admin.create_topic(topic, queues=3)
    checkpoint = tmp_path / "cp"
    produce(mq, range(50))
    copy(spark, mq, checkpoint)
    produce(mq, range(50, 90))
    copy(spark, mq, checkpoint)
    assert Counter(int(row.body) for row in read(spark, mq).collect()) == Counter(range(90))
    undo_last_commit(checkpoint)
    copy(spark, mq, checkpoint)
    rows = read(spark, mq).collect()
    assert Counter(int(row.body) for row in rows) == Counter([*range(90), *range(50, 90)])
    names = [row.properties["PENSTOCK_ROW"].split("/") for row in rows]
    assert len({query for query, _, _, _ in names}) == 1, "the query kept its name"
    assert {batch for _, batch, _, _ in names} == {"0", "1"}
    once = deduplicate(read(spark, mq)).collect()
    assert Counter(int(row.body) for row in once) == Counter(range(90))
    assert {(int(row.body) % 2, row.tags) for row in once} == {(0, "t0"), (1, "t1")}


def test_updated_rows_of_an_aggregation_are_written_and_recognised(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        mq.admin.create_topic(topic, queues=3)
    checkpoint = tmp_path / "cp"

    def count() -> None:
        stream = spark.readStream.format("penstock").option("namesrv", mq.namesrv)
        frame = stream.option("topic", "in").option("startingOffsets", "earliest").load()
        counts = frame.groupBy("tags").count()
        (
            counts.selectExpr("tags", "concat(tags, ' ', count) AS body")
            .writeStream.outputMode("update")
            .foreachBatch(batch_writer("out", namesrv=mq.namesrv))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    produce(mq, range(10))
    count()
    produce(mq, range(10, 20, 2))
    count()
    undo_last_commit(checkpoint)
    count()
    bodies = Counter(bytes(row.body) for row in read(spark, mq).collect())
    assert bodies == {b"t0 5": 1, b"t1 5": 1, b"t0 10": 2}
    once = Counter(bytes(row.body) for row in deduplicate(read(spark, mq)).collect())
    assert once == {b"t0 5": 1, b"t1 5": 1, b"t0 10": 1}


def test_a_name_for_a_write_is_for_micro_batches(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    with pytest.raises(InvalidArgument, match="letters, digits"):
        batch_writer("out", name="a/b", namesrv=mq.namesrv)
    rows = spark.createDataFrame([("x",)], "body string")
    writer = rows.write.format("penstock").option("namesrv", mq.namesrv).option("topic", "out")
    with pytest.raises(PySparkException, match="writeName 'rows' outside of foreachBatch"):
        writer.option("writeName", "rows").mode("append").save()


def test_a_stream_that_cannot_be_sent_ends_with_an_error_that_says_why(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        mq.admin.create_topic(topic, queues=3)
    produce(mq, range(3))
    with pytest.raises(PySparkException, match="option 'keepQueue'"):
        copy(spark, mq, tmp_path / "one", keepQueues="true")
    stream = spark.readStream.format("penstock").option("namesrv", mq.namesrv)
    frame = stream.option("topic", "in").option("startingOffsets", "earliest").load()
    with pytest.raises(PySparkException) as caught:
        write(frame.selectExpr("'x' AS body", "'\u0001' AS tags"), mq, tmp_path / "two")
    assert "TAGS" in str(caught.value)
    assert "row 0 of partition" in str(caught.value)


def test_copies_can_be_dropped_from_a_stream_too(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    mq.admin.create_topic("out", queues=2)
    names = {"PENSTOCK_ROW": "q/1/0/7"}
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for _ in range(3):
            producer.send(Message("out", b"copy", properties=names))
            producer.send(Message("out", b"own"))
    stream = spark.readStream.format("penstock").option("namesrv", mq.namesrv)
    frame = stream.option("topic", "out").option("startingOffsets", "earliest").load()
    table = deduplicate(frame, within="1 hour").writeStream.format("memory").queryName("once")
    table.option("checkpointLocation", str(tmp_path / "cp")).trigger(
        availableNow=True
    ).start().awaitTermination()
    bodies = Counter(bytes(row.body) for row in spark.table("once").collect())
    assert bodies == {b"copy": 1, b"own": 3}
