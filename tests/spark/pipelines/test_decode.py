"""Bodies as typed columns; what does not parse is in a second frame, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Message, Producer
from penstock.errors import InvalidArgument, MissingPackage
from penstock.spark.pipelines.decode import decode
from penstock.testing.embedded import Embedded

SCHEMA = "id bigint NOT NULL, amount double, tags array<string>"
BODIES = [
    b'{"id": 1, "amount": 2.5, "tags": ["a", "b"]}',
    b'{"id": 2}',
    b'{"amount": 1}',
    b'{"id": "three", "amount": 1}',
    b"no JSON at all",
    b"\xff\xfe",
    None,
    b'{"id": 4, "amount": "many"}',
    b"[1, 2]",
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = [(number, body) for number, body in enumerate(BODIES)]
    return spark.createDataFrame(rows, "offset long, body binary").cache()


def test_every_row_is_decoded_or_rejected_with_a_reason(frame: DataFrame) -> None:
    good, bad = decode(frame, SCHEMA)
    assert good.columns == ["offset", "body", "id", "amount", "tags"]
    assert [tuple(row)[2:] for row in good.orderBy("offset").collect()] == [
        (1, 2.5, ["a", "b"]),
        (2, None, None),
    ]
    assert bad.columns == ["offset", "body", "reason"]
    reasons = {row.offset: row.reason for row in bad.collect()}
    assert reasons == {
        2: "field 'id' is missing",
        3: "field 'id' is not bigint",
        4: "the body is not JSON",
        5: "the body is not UTF-8",
        6: "the body is null",
        7: "field 'amount' is not double",
        8: "the body is not a JSON object",
    }


def test_fields_may_go_into_one_column_and_any_json_into_a_variant(frame: DataFrame) -> None:
    good, _ = decode(frame, SCHEMA, into="order")
    assert good.selectExpr("order.id").orderBy("id").collect()[1][0] == 2
    good, bad = decode(frame, "json")
    ids = good.selectExpr("try_variant_get(value, '$.id', 'string') AS id").collect()
    assert sorted(row.id for row in ids if row.id) == ["1", "2", "4", "three"]
    assert {row.offset: row.reason for row in bad.collect()} == {
        4: "the body is not JSON",
        5: "the body is not UTF-8",
        6: "the body is null",
    }


def test_names_that_are_taken_and_schemas_that_are_none_are_refused(frame: DataFrame) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'offset' is there already.*into="):
        decode(frame, "offset int")
    with pytest.raises(InvalidArgument, match="schema 'id nonsense' cannot be read"):
        decode(frame, "id nonsense")
    for schema, kind in (
        ("avro", "avro"),
        ('{"type": "record", "name": "Order", "fields": []}', "avro"),
        ("protobuf", "protobuf"),
    ):
        with pytest.raises(MissingPackage, match=f"needs Spark's module spark-{kind}"):
            decode(frame, schema)
    with pytest.raises(InvalidArgument, match="no column 'text'"):
        decode(frame, "json", column="text")


def test_a_stream_is_decoded_too(spark: SparkSession, mq: Embedded, tmp_path: Path) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("p", namesrv=mq.namesrv) as producer:
        for body in (b'{"id": 1}', b"oops"):
            producer.send(Message("orders", body))
    stream = spark.readStream.format("penstock").option("namesrv", mq.namesrv)
    orders = stream.option("topic", "orders").option("startingOffsets", "earliest").load()
    for name, part in decode(orders, "id bigint")._asdict().items():
        query = part.writeStream.format("memory").queryName(f"decoded_{name}")
        query.option("checkpointLocation", str(tmp_path / name)).trigger(
            availableNow=True
        ).start().awaitTermination()
    assert [row.id for row in spark.table("decoded_rows").collect()] == [1]
    assert [row.reason for row in spark.table("decoded_rejected").collect()] == [
        "the body is not JSON"
    ]
