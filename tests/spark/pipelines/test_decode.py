"""Bodies as typed columns; what does not parse is in a second frame, with the reason."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.source_context_pb2 import SourceContext
from pyspark.sql import DataFrame, SparkSession

from penstock import Message, Producer
from penstock.errors import InvalidArgument
from penstock.spark import Avro, Protobuf
from penstock.spark.pipelines.decode import decode
from penstock.testing.embedded import Embedded

SCHEMA = "id bigint NOT NULL, amount double, tags array<string>"
OFFSET = {"name": "offset", "type": "long"}
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
    b'{"id": 5}garbage',
    b'{"id": 6}, {"id": 7}',
    b'{"id": 8}], [',
    b'\t\r\n {"id": 9}\n',
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
        (9, None, None),
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
        9: "the body has more after its JSON value",
        10: "the body has more after its JSON value",
        11: "the body has more after its JSON value",
    }


def test_fields_may_go_into_one_column_and_any_json_into_a_variant(frame: DataFrame) -> None:
    good, _ = decode(frame, SCHEMA, into="order")
    assert good.selectExpr("order.id").orderBy("id").collect()[1][0] == 2
    good, bad = decode(frame, "json")
    ids = good.selectExpr("try_variant_get(value, '$.id', 'string') AS id").collect()
    assert sorted(row.id for row in ids if row.id) == ["1", "2", "4", "9", "three"]
    assert {row.offset: row.reason for row in bad.collect()} == {
        4: "the body is not JSON",
        5: "the body is not UTF-8",
        6: "the body is null",
        **dict.fromkeys((9, 10, 11), "the body has more after its JSON value"),
    }


def test_names_that_are_taken_and_schemas_that_are_none_are_refused(frame: DataFrame) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'offset' is there already.*into="):
        decode(frame, "offset int")
    with pytest.raises(InvalidArgument, match="schema 'id nonsense' cannot be read"):
        decode(frame, "id nonsense")
    with pytest.raises(InvalidArgument, match="column 'offset' is there already"):
        decode(frame, Avro({"type": "record", "name": "R", "fields": [OFFSET]}))
    with pytest.raises(InvalidArgument, match="no column 'text'"):
        decode(frame, "json", column="text")


def test_avro_and_protobuf_are_read_in_any_python(spark: SparkSession) -> None:
    avro = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "prices", "type": {"type": "map", "values": "double"}},
        ],
    }
    written = io.BytesIO()
    order = {"id": 1, "at": 1500, "lines": ["a", None], "prices": {"a": 2.5}}
    schemaless_writer(written, parse_schema(avro), order)
    bodies = [(0, written.getvalue()), (1, b"\xff"), (2, None)]
    frame = spark.createDataFrame(bodies, "offset long, body binary")
    good, bad = decode(frame, json.dumps(avro))
    columns = ["id", "CAST(at AS double)", "lines", "prices"]
    assert [tuple(row) for row in good.selectExpr(*columns).collect()] == [
        (1, 1.5, ["a", None], {"a": 2.5})
    ]
    # One call of the function for each row, not one for the filter and one for the columns.
    assert plan_of(good).count("ArrowEvalPython") == 1
    assert bad.columns == ["offset", "body", "reason"]
    reasons = {row.offset: row.reason for row in bad.collect()}
    assert reasons.keys() == {1, 2}
    assert reasons[1].startswith("the body is not Avro of the schema: ")
    assert reasons[2] == "the body is null"

    files = FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="a.proto", package="a", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    event = file.message_type.add(name="Event")
    event.field.add(
        name="at",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type_name=".google.protobuf.Timestamp",
    )
    body = b"\x0a\x02\x08\x05"  # one time of five seconds
    frame = spark.createDataFrame([(0, body), (1, b"\xff")], "offset long, payload binary")
    schema = Protobuf("a.Event", files.SerializeToString())
    good, bad = decode(frame, schema, column="payload", into="event")
    assert good.selectExpr("CAST(event.at[0] AS double)").collect()[0][0] == 5.0
    assert [row.reason.partition(":")[0] for row in bad.collect()] == ["the body is not a a.Event"]
    good, _ = decode(frame, SourceContext, column="payload")
    assert good.columns == ["offset", "payload", "file_name"]


def plan_of(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        frame.explain()
    return shown.getvalue()


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
