"""Streams into topics: a committed micro-batch is stored, and once if it runs again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Admin, Message, Producer
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


def test_a_micro_batch_that_runs_again_is_stored_once_or_recognised(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        mq.admin.create_topic(topic, queues=3)
    checkpoint = tmp_path / "cp"
    produce(mq, range(50))
    copy(spark, mq, checkpoint)
    produce(mq, range(50, 90))
    copy(spark, mq, checkpoint)
    undo_last_commit(checkpoint)
    copy(spark, mq, checkpoint)
    assert Counter(int(row.body) for row in read(spark, mq).collect()) == Counter(range(90))
    # As on a broker that looks for nothing.
    undo_last_commit(checkpoint)
    copy(spark, mq, checkpoint, exactlyOnce="false")
    rows = read(spark, mq).collect()
    assert Counter(int(row.body) for row in rows) == Counter([*range(90), *range(50, 90)])
    names = [row.properties["PENSTOCK_ROW"].split("/") for row in rows]
    assert len({query for query, _, _, _ in names}) == 1, "the query kept its name"
    assert {batch for _, batch, _, _ in names} == {"0", "1"}
    single = deduplicate(read(spark, mq)).collect()
    assert Counter(int(row.body) for row in single) == Counter(range(90))
    assert {(int(row.body) % 2, row.tags) for row in single} == {(0, "t0"), (1, "t1")}


def test_a_task_that_fails_after_it_sent_rows_stores_each_once(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("in", "out"):
        mq.admin.create_topic(topic, queues=3)
    produce(mq, range(60))
    namesrv, failed = mq.namesrv, tmp_path / "failed"
    size = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(size)
    spark.conf.set(size, "50")

    def fail_when_sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for at in range(batch.num_rows):
                row = batch.slice(at, 1)
                body = row.column(0)[0].as_py()
                # Enough bytes to fill the buffers between here and the sink.
                yield from [_wide(row, body, copy) for copy in range(30)]
        if context.attemptNumber() == 0:
            wait_for_rows(namesrv)
            failed.touch()
            raise RuntimeError("the first attempt fails, and rows of it are stored")

    stream = spark.readStream.format("penstock").option("namesrv", mq.namesrv)
    frame = stream.option("topic", "in").option("startingOffsets", "earliest").load()
    wide = frame.select("body").mapInArrow(fail_when_sent, "body binary")
    try:
        write(wide, mq, tmp_path / "cp")
    finally:
        spark.conf.set(size, str(before))
    assert failed.exists(), "a task failed when rows of it were stored"
    bodies = Counter(bytes(row.body)[:6] for row in read(spark, mq).collect())
    assert bodies == Counter(b"%03d-%02d" % (n, copy) for n in range(60) for copy in range(30))


def _wide(row: pa.RecordBatch, body: bytes, copy: int) -> pa.RecordBatch:
    text = b"%03d-%02d" % (int(body), copy)
    return pa.RecordBatch.from_arrays([pa.array([text.ljust(4000)], pa.binary())], ["body"])


def wait_for_rows(namesrv: str) -> None:
    """Wait until the topic has a row."""
    with Admin(namesrv=namesrv) as admin:
        until = time.monotonic() + 60
        while not sum(part.count for part in admin.topic_stats("out")):
            assert time.monotonic() < until, "no row was sent"
            time.sleep(0.05)


def test_a_named_write_that_runs_again_adds_nothing(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("out", queues=3)
    rows = spark.range(300).selectExpr("CAST(id AS string) AS body")
    writer = rows.write.format("penstock").option("namesrv", mq.namesrv).option("topic", "out")
    for _ in range(2):
        writer.option("writeName", "nightly-7").mode("append").save()
    assert Counter(int(row.body) for row in read(spark, mq).collect()) == Counter(range(300))
    by_id = rows.withColumn("number", rows.body).repartition(3)
    writer = by_id.write.format("penstock").option("namesrv", mq.namesrv).option("topic", "out")
    for _ in range(2):
        writer.options(writeName="by-id", idColumn="number").mode("append").save()
    counts = Counter(int(row.body) for row in read(spark, mq).collect())
    assert counts == Counter({number: 2 for number in range(300)})


def test_updated_rows_of_an_aggregation_are_written_once(
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
    assert bodies == {b"t0 5": 1, b"t1 5": 1, b"t0 10": 1}


def test_the_name_of_a_write_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="letters, digits"):
        batch_writer("out", name="a/b", namesrv="127.0.0.1:9876")


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
