"""Batch reads through Spark itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.source.brokers import create, numbered, produce

from penstock import Message, MessageQueue, Producer
from penstock.columnar.schema import ALL
from penstock.testing.embedded import Embedded


def load(spark: SparkSession, mq: Embedded, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(namesrv=mq.namesrv, **options).load()


def bodies(df: DataFrame) -> list[bytes]:
    return sorted(bytes(row.body) for row in df.select("body").collect())


def ints(df: DataFrame) -> list[int]:
    return sorted(int(body) for body in bodies(df))


def test_a_topic_is_a_table_row_for_row(spark: SparkSession, mq: Embedded) -> None:
    for topic in ("orders", "payments", "empty"):
        create(mq.namesrv, topic, 3)
    big = b"compress me " * 1000
    sent = [
        Message(
            topic,
            big + b"%d" % n if n % 7 == 0 else b"%s %d" % (topic.encode(), n),
            keys=[f"{topic}-{n}"],
            tag=("created", "paid", None)[n % 3],
            properties={"n": str(n)},
        )
        for topic in ("orders", "payments")
        for n in range(100)
    ]
    with Producer("p", namesrv=mq.namesrv) as producer:
        receipts = [producer.send(message) for message in sent]
        together = [Message("orders", b"batch %d" % n) for n in range(10)]
        batch = producer.send_batch(together)
    df = load(spark, mq, subscribe="orders,payments,empty")
    assert df.columns == list(ALL)
    rows = {(row.topic, row.broker, row.queue_id, row.offset): row for row in df.collect()}
    assert len(rows) == len(sent) + len(together)
    for message, receipt in zip(sent, receipts, strict=True):
        row = rows[(*receipt.queue, receipt.queue_offset)]
        assert bytes(row.body) == message.body
        assert row.msg_id == receipt.msg_id
        assert row["keys"] == list(message.keys)
        assert row.tags == message.tag
        assert row.properties["n"] == (message.properties or {})["n"]
        assert row.reconsume_times == 0
    for index, message in enumerate(together):
        row = rows[(*batch.queue, batch.queue_offset + index)]
        assert bytes(row.body) == message.body
    paid = load(spark, mq, topic="orders", tags="paid")
    assert bodies(paid) == sorted(m.body for m in sent if m.topic == "orders" and m.tag == "paid")


def test_what_is_not_asked_for_is_not_built(spark: SparkSession, mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(20)))
    by_option = load(spark, mq, topic="orders", columns="offset, body")
    assert by_option.columns == ["offset", "body"]
    assert ints(by_option) == list(range(20))
    reader = spark.read.format("penstock").options(namesrv=mq.namesrv, topic="orders")
    by_schema = reader.schema("body binary, queue_id int").load()
    assert by_schema.columns == ["body", "queue_id"]
    assert ints(by_schema) == list(range(20))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topik": "orders"}, ("unknown option 'topik'", "option 'topic'")),
        ({"topic": "orders", "columns": "offset,bodi"}, ("no column 'bodi'",)),
        ({"topic": "absent"}, ("no route for topic 'absent'", "penstock topic create absent")),
        ({}, ("option topic, subscribePattern or assign",)),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do(
    spark: SparkSession, mq: Embedded, options: dict[str, str], words: Sequence[str]
) -> None:
    with pytest.raises(PySparkException) as refused:
        load(spark, mq, **options).collect()
    for word in words:
        assert word in str(refused.value)


def test_secrets_are_in_no_plan_and_no_error(
    spark: SparkSession, mq: Embedded, capsys: pytest.CaptureFixture[str]
) -> None:
    create(mq.namesrv, "orders", 1)
    secrets = {"accessKey": "AK-secret", "secretKey": "SK-secret", "securityToken": "TK-secret"}
    df = load(spark, mq, topic="orders", **secrets).select("body")
    df.explain(mode="extended")
    plan = capsys.readouterr().out
    assert "penstock" in plan
    with pytest.raises(PySparkException) as refused:
        load(spark, mq, topic="orders", nonsense="1", **secrets).collect()
    with pytest.raises(PySparkException) as missing:
        load(spark, mq, topic="absent", **secrets).collect()
    shown = plan + str(refused.value) + str(missing.value)
    assert not any(secret in shown for secret in secrets.values())


def test_a_queue_is_split_over_tasks(spark: SparkSession, mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(2500)))
    assert load(spark, mq, topic="orders").rdd.getNumPartitions() == 2
    split = load(spark, mq, topic="orders", minPartitions="7")
    assert split.rdd.getNumPartitions() == 7
    assert ints(split) == list(range(2500))
    assert load(spark, mq, topic="orders", ordered="true").rdd.getNumPartitions() == 1


def test_sql_knows_the_format(spark: SparkSession, mq: Embedded) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(10), size=3))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING penstock "
        f"OPTIONS (namesrv '{mq.namesrv}', topic 'orders', startingOffsets 'earliest')"
    )
    try:
        row = spark.sql("SELECT count(*) AS n, sum(length(body)) AS size FROM orders").first()
        assert row is not None
        assert (row["n"], row["size"]) == (10, 30)
    finally:
        spark.catalog.dropTempView("orders")


def test_sql_adds_messages_through_a_view(spark: SparkSession, mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders USING penstock "
        f"OPTIONS (namesrv '{mq.namesrv}', topic 'orders')"
    )
    try:
        spark.sql("INSERT INTO orders (body, tags) VALUES (X'2A', 'paid')")
    finally:
        spark.catalog.dropTempView("orders")
    row = load(spark, mq, topic="orders").select("body", "tags").first()
    assert row is not None
    assert tuple(row) == (b"*", "paid")


def test_a_table_of_a_catalog_has_its_options_at_every_use(
    spark: SparkSession, mq: Embedded
) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(3)))
    options = f"(namesrv = '{mq.namesrv}', topic = 'orders')"
    with pytest.raises(PySparkException, match="whose options Spark forgets") as refused:
        spark.sql(f"CREATE TABLE lost USING penstock OPTIONS {options}")
    assert "CREATE TEMPORARY VIEW" in str(refused.value)
    spark.sql("CREATE TABLE kept (offset BIGINT, body BINARY) USING penstock")
    try:
        assert ints(spark.sql(f"SELECT * FROM kept WITH {options}")) == [0, 1, 2]
        with pytest.raises(PySparkException, match=r"SELECT \.\.\. WITH"):
            spark.sql("SELECT * FROM kept").collect()
    finally:
        spark.sql("DROP TABLE kept")


def test_beginnings_and_ends_are_kept(spark: SparkSession, mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    queue = MessageQueue("orders", "broker-a", 0)
    produce(mq.namesrv, numbered("orders", range(10)))
    between = mq.clock.time_ms() + 1
    while mq.clock.time_ms() <= between:
        pass
    produce(mq.namesrv, numbered("orders", range(10, 20)))
    mq.admin.reset_offsets("audit", "orders", 4, queue=queue)

    def read(**options: str) -> list[int]:
        return ints(load(spark, mq, topic="orders", **options))

    assert read(startingTimestamp=str(between)) == list(range(10, 20))
    assert read(endingTimestamp=str(between)) == list(range(10))
    assert read(startingOffsets="group", group="audit") == list(range(4, 20))
    offsets = '{"orders": {"broker-a": {"0": %d}}}'
    assert read(startingOffsets=offsets % 3, endingOffsets=offsets % 6) == [3, 4, 5]
    assert read(startingOffsets=offsets % -1) == []
    assert read(startingTimestamp="2999-01-01T00:00:00Z") == []
    # A batch commits nothing: the group's offset is unchanged.
    assert [row.committed for row in mq.admin.group_lag("audit")] == [4]
