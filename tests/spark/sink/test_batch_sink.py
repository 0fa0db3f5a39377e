"""Whole DataFrames into topics, and back."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock import Message, Producer
from penstock.client.producing.selection import by_hash
from penstock.model import MessageQueue
from penstock.spark.sink.deduplication import deduplicate
from penstock.testing.embedded import Embedded


def write(df: DataFrame, mq: Embedded, **options: object) -> None:
    writer = df.write.format("penstock").mode("append").option("namesrv", mq.namesrv)
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def read(spark: SparkSession, mq: Embedded, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("namesrv", mq.namesrv).option("topic", topic)
    return reader.options(**options).load()


def test_what_is_written_comes_back_row_for_row(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=4)
    rows = [
        (
            f"body {number} \u00e4".encode(),
            [f"k{number}", "all"] if number % 3 else None,
            f"tag{number % 5}" if number % 2 else None,
            {"colour": "red", "number": str(number)} if number % 4 else None,
        )
        for number in range(2000)
    ]
    schema = "body binary, keys array<string>, tags string, properties map<string,string>"
    write(spark.createDataFrame(rows, schema).repartition(3), mq, topic="orders")
    found = read(spark, mq, "orders").collect()
    own = {"colour", "number"}
    got = sorted(
        (
            bytes(row.body),
            row["keys"] or None,
            row.tags,
            {key: value for key, value in row.properties.items() if key in own} or None,
        )
        for row in found
    )
    assert got == sorted(rows, key=lambda row: row[0])
    assert len({row.msg_id for row in found}) == 2000
    with_id = sum("UNIQ_KEY" in row.properties for row in found)
    assert with_id == 3, "the first message of each request"
    assert len({row.queue_id for row in found}) == 3, "each task begins with another queue"


def test_a_text_body_and_the_topic_of_each_row(spark: SparkSession, mq: Embedded) -> None:
    for topic in ("left", "right"):
        mq.admin.create_topic(topic, queues=2)
    df = spark.range(100).selectExpr(
        "CAST(id AS string) AS body", "IF(id % 2 = 0, 'left', 'right') AS topic"
    )
    write(df, mq, messageIds=True)
    for topic, remainder in (("left", 0), ("right", 1)):
        rows = read(spark, mq, topic).collect()
        assert len({row.properties["UNIQ_KEY"] for row in rows}) == 50
        numbers = {int(row.body) for row in rows}
        assert numbers == {number for number in range(100) if number % 2 == remainder}


def test_a_sharding_key_chooses_the_queue_a_producer_would_and_keeps_order(
    spark: SparkSession, mq: Embedded
) -> None:
    mq.admin.create_topic("orders", queues=3)
    df = spark.range(0, 3000, 1, 1).selectExpr(
        "CAST(id AS string) AS body", "concat('user-', id % 7) AS sharding_key"
    )
    write(df, mq, topic="orders", batchBytes=4096)
    rows = read(spark, mq, "orders").select("queue_id", "offset", "body", "properties").collect()
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        queues = producer.queues("orders")
    last: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row.queue_id, row.offset)):
        number = int(row.body)
        key = row.properties["__SHARDINGKEY"]
        assert key == f"user-{number % 7}"
        assert row.queue_id == by_hash(queues, key).queue_id
        assert number > last.get(key, -1), "rows of a key keep their order"
        last[key] = number
    assert len(rows) == 3000


def test_keep_queue_copies_a_topic_queue_by_queue(spark: SparkSession, mq: Embedded) -> None:
    for topic in ("from", "to"):
        mq.admin.create_topic(topic, queues=4)
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number in range(40):
            queue = MessageQueue("from", "broker-a", number % 4)
            producer.send(Message("from", b"%d" % number, tag="t", keys=["k"]), queue=queue)
    write(read(spark, mq, "from"), mq, topic="to", keepQueue=True)
    rows = read(spark, mq, "to").collect()
    assert sorted((int(row.body), row.queue_id) for row in rows) == [(n, n % 4) for n in range(40)]
    assert {(row.tags, *row["keys"]) for row in rows} == {("t", "k")}


def test_a_delayed_row_waits_at_the_broker(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    df = spark.createDataFrame([(b"now", None), (b"later", "2h")], "body binary, delay string")
    write(df, mq, topic="orders")
    assert [bytes(row.body) for row in read(spark, mq, "orders").collect()] == [b"now"]
    (waiting,) = read(spark, mq, "SCHEDULE_TOPIC_XXXX").collect()
    assert bytes(waiting.body) == b"later"
    assert waiting.properties["REAL_TOPIC"] == "orders"


def test_a_big_body_goes_alone(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    sizes = [10, 4 * 1024 * 1024, 1_500_000, 20]
    df = spark.createDataFrame([(b"x" * size,) for size in sizes], "body binary").coalesce(1)
    write(df, mq, topic="orders")
    lengths = read(spark, mq, "orders").select(F.length("body").alias("n")).collect()
    assert sorted(row.n for row in lengths) == sorted(sizes)


def test_every_message_says_which_row_it_is(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=2)
    df = spark.range(0, 50, 1, 2).selectExpr("CAST(id AS string) AS body")
    write(df, mq, topic="orders")
    found = read(spark, mq, "orders").collect()
    names = [row.properties["PENSTOCK_ROW"].split("/") for row in found]
    assert len({query for query, _, _, _ in names}) == 1
    assert {batch for _, batch, _, _ in names} == {"0"}
    assert sorted((int(partition), int(row)) for _, _, partition, row in names) == [
        (partition, row) for partition in range(2) for row in range(25)
    ]
    write(df, mq, topic="orders")
    again = deduplicate(read(spark, mq, "orders"))
    assert again.count() == 100, "a second write is another write, not a repeat"


def test_copies_of_a_row_are_dropped_and_other_messages_are_not(
    spark: SparkSession, mq: Embedded
) -> None:
    mq.admin.create_topic("orders", queues=2)
    df = spark.range(0, 30, 1, 2).selectExpr("CAST(id AS string) AS body")
    write(df, mq, topic="orders")
    copies = read(spark, mq, "orders").collect()[:10]
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for row in copies:
            own = {k: v for k, v in row.properties.items() if k.startswith("PENSTOCK_")}
            producer.send(Message("orders", bytes(row.body), properties=own))
        for _ in range(3):
            producer.send(Message("orders", b"0"))
    everything = read(spark, mq, "orders")
    assert everything.count() == 43
    once = deduplicate(everything)
    bodies = sorted(int(row.body) for row in once.collect())
    assert bodies == sorted([*range(30), 0, 0, 0])
    assert once.columns == everything.columns


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ("CAST(id AS string) AS text", {"topic": "orders"}, "no column 'body'"),
        ("id AS body", {"topic": "orders"}, "'body' is bigint"),
        ("'x' AS body, id AS tags", {"topic": "orders"}, "'tags' is bigint"),
        ("'x' AS body", {}, "rows without a topic"),
        ("'x' AS body", {"topic": "orders", "keepQueues": True}, "keepQueue"),
        ("'x' AS body", {"topic": "or ders"}, "or ders"),
        ("'x' AS body", {"topic": "orders", "keepQueue": True}, "broker and queue_id"),
        ("'' AS body", {"topic": "orders"}, "empty"),
        ("'x' AS body, '7s' AS delay", {"topic": "orders"}, "'7s'"),
        (
            "'x' AS body, 'broker-a' AS broker, 99 AS queue_id",
            {"topic": "orders", "keepQueue": True},
            "orders@broker-a:99",
        ),
    ],
)
def test_a_frame_that_cannot_be_sent_is_a_spark_error_that_says_why(
    spark: SparkSession, mq: Embedded, frame: str, options: dict[str, object], words: str
) -> None:
    mq.admin.create_topic("orders", queues=1)
    with pytest.raises(PySparkException) as caught:
        write(spark.range(1).selectExpr(*frame.split(", ")), mq, **options)
    assert words in str(caught.value)


def test_a_refusal_names_topic_and_queue(spark: SparkSession, mq: Embedded) -> None:
    mq.admin.create_topic("orders", queues=1)
    df = spark.createDataFrame(
        [(b"x", {"TIMER_DELAY_SEC": "99999999"})], "body binary, properties map<string,string>"
    )
    with pytest.raises(PySparkException) as caught:
        write(df, mq, topic="orders")
    assert "orders@broker-a:0" in str(caught.value)
    assert "timer" in str(caught.value)


def test_a_cluster_that_is_not_there_is_named(spark: SparkSession, mq: Embedded) -> None:
    df = spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(PySparkException) as caught:
        write(df, mq, topic="orders", namesrv="127.0.0.1:9", retries=0)
    assert "127.0.0.1:9" in str(caught.value)
    assert "orders" in str(caught.value)


def test_only_appending_is_possible(spark: SparkSession, mq: Embedded) -> None:
    df = spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(PySparkException, match="append"):
        df.write.format("penstock").mode("overwrite").option("namesrv", mq.namesrv).option(
            "topic", "orders"
        ).save()


def test_secrets_are_in_no_error(spark: SparkSession, mq: Embedded) -> None:
    df = spark.range(1).selectExpr("'' AS body")
    with pytest.raises(PySparkException) as caught:
        write(df, mq, topic="orders", accessKey="user-one", secretKey="hidden-word")
    assert "hidden-word" not in str(caught.value)
