"""Bodies in Avro and Protobuf as Arrow columns, and what does not parse with its reason."""

from __future__ import annotations

import io
import json
import pickle
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from tests.columnar.proto_files import ORDER, order_files

from penstock.columnar.bodies.avro import Avro
from penstock.columnar.bodies.body_schema import BodySchema, decode_bodies
from penstock.columnar.bodies.protobuf import Protobuf
from penstock.errors import InvalidArgument, MissingPackage

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {
            "name": "any",
            "type": ["null", "int", "string", "Kind", {"type": "map", "values": "int"}],
        },
    ],
}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "attributes", "type": {"type": "map", "values": "double"}},
        {"name": "last", "type": ["null", "Line"]},
        {"name": "size", "type": ["int", "long"]},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
RECORD = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "price": Decimal("12.34"),
    "kind": "B",
    "lines": [
        {"sku": "a", "any": 1},
        {"sku": "b", "any": "text"},
        {"sku": "c", "any": ("shop.Kind", "B")},
        {"sku": "d", "any": {"k": 3}},
    ],
    "attributes": {"weight": 1.5},
    "last": {"sku": "e", "any": None},
    "size": 1 << 40,
    "uuid": "6f1f6f5e-0000-0000-0000-000000000000",
}


def avro_body(record: dict[str, Any], schema: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), record)
    return out.getvalue()


def decoded(schema: BodySchema, *bodies: bytes | None) -> tuple[list[Any], list[str | None]]:
    # As it comes to a worker.
    plan = pickle.loads(pickle.dumps(schema)).plan()
    values, reasons = decode_bodies(plan, pa.array(bodies, pa.binary()))
    assert values.type == plan.shown
    return values.to_pylist(maps_as_pydicts="strict"), reasons.to_pylist()


def test_avro_records_become_typed_columns() -> None:
    (found,), reasons = decoded(Avro(AVRO), avro_body(RECORD, AVRO))
    assert reasons == [None]
    members = [line.pop("any") for line in found["lines"]]
    assert found == RECORD | {"lines": [{"sku": sku} for sku in "abcd"]}
    set_members = [{key: value for key, value in each.items() if value} for each in members]
    assert set_members == [
        {"member0": 1},
        {"member1": "text"},
        {"member2": "B"},
        {"member3": {"k": 3}},
    ]


def test_avro_that_does_not_parse_has_a_reason() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
    good = avro_body({"text": "fine"}, schema)
    values, reasons = decoded(Avro(json.dumps(schema)), good, good + b"x", good[:3], None, b"")
    assert values == [{"text": "fine"}, None, None, None, None]
    assert reasons[0] is None
    assert reasons[1] == "the body has 1 bytes after the Avro record"
    assert (reasons[2] or "").startswith("the body is not Avro of the schema: ")
    assert reasons[3] == "the body is null"
    assert (reasons[4] or "").startswith("the body is not Avro of the schema: ")


def test_a_value_that_its_column_cannot_hold_is_the_reason_of_its_row_alone() -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    stored = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": time}]}
    bodies = [avro_body({"at": at}, stored) for at in (0, 1 << 62, 1000)]
    values, reasons = decoded(Avro(schema), *bodies)
    assert [value and value["at"].second for value in values] == [0, None, 1]
    assert (reasons[1] or "").startswith("a value does not fit its column: ")


def test_avro_schemas_that_cannot_be_columns_are_refused(tmp_path: Path) -> None:
    within = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    with pytest.raises(InvalidArgument, match="the Avro record 'T' contains itself"):
        Avro(within)
    file = tmp_path / "order.avsc"
    file.write_text('"string"')
    with pytest.raises(InvalidArgument, match="its type is not record"):
        Avro(file)
    with pytest.raises(InvalidArgument, match="cannot be used: JSONDecodeError"):
        Avro('{"type":')
    with pytest.raises(InvalidArgument, match="cannot be used: UnknownType: Nope"):
        Avro({"type": "record", "name": "T", "fields": [{"name": "a", "type": "Nope"}]})


@pytest.fixture
def order_class() -> Any:
    pool = DescriptorPool()
    for file in order_files().file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(ORDER))


def test_protobuf_messages_become_typed_columns(order_class: Any, tmp_path: Path) -> None:
    order = order_class(
        id=1, total=(1 << 64) - 1, kind=1, items=["a", "b"], prices={"a": 1.5}, raw=b"\x00\xff"
    )
    order.at.FromMicroseconds(1_500_000)
    order.took.FromMicroseconds(2_500_000)
    order.limit.value = 9
    order.more.update({"deep": [1, {"er": None}]})
    order.line.sku = "x"
    files = tmp_path / "order.desc"
    files.write_bytes(order_files().SerializeToString())
    expected = {
        "id": 1,
        "total": Decimal((1 << 64) - 1),
        "kind": "PAID",
        "items": ["a", "b"],
        "prices": {"a": 1.5},
        "raw": b"\x00\xff",
        "at": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "took": timedelta(seconds=2.5),
        "limit": 9,
        "more": '{"deep": [1.0, {"er": null}]}',
        "line": {"sku": "x"},
        "note": None,
    }
    for schema in (Protobuf(order_class), Protobuf(order_class.DESCRIPTOR), Protobuf(ORDER, files)):
        assert decoded(schema, order.SerializeToString()) == ([expected], [None])


def test_protobuf_without_values_has_defaults_and_nulls(order_class: Any) -> None:
    (found,), _ = decoded(Protobuf(order_class), b"")
    assert (found["id"], found["kind"], found["items"], found["prices"]) == (0, "NEW", [], {})
    for name in ("at", "took", "limit", "more", "line", "note"):
        assert found[name] is None, name
    (found,), _ = decoded(Protobuf(order_class), order_class(kind=5).SerializeToString())
    assert found["kind"] == "5"


def test_protobuf_that_does_not_parse_has_a_reason(order_class: Any) -> None:
    values, reasons = decoded(Protobuf(order_class), b"\xff\xff", None)
    assert values == [None, None]
    assert (reasons[0] or "").startswith("the body is not a shop.Order: DecodeError")
    assert reasons[1] == "the body is null"


def test_a_required_field_that_is_not_there_is_named() -> None:
    files = FileDescriptorSet()
    file = files.file.add(name="old.proto", package="old", syntax="proto2")
    field = file.message_type.add(name="Old").field.add(name="must", number=1)
    field.type, field.label = FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.LABEL_REQUIRED
    schema = Protobuf("old.Old", files.SerializeToString())
    assert decoded(schema, b"\x08\x05") == ([{"must": 5}], [None])
    _, (reason,) = decoded(schema, b"")
    assert "must" in (reason or "")


def test_protobuf_that_cannot_be_columns_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="without descriptors"):
        Protobuf("shop.Order")
    with pytest.raises(InvalidArgument, match=r"message 'shop\.Nope' cannot be found"):
        Protobuf("shop.Nope", order_files().SerializeToString())
    with pytest.raises(InvalidArgument, match="is no message of Protobuf"):
        Protobuf(int)
    with pytest.raises(InvalidArgument, match="which is a single value"):
        Protobuf(struct_pb2.Struct)
    with pytest.raises(InvalidArgument, match="contains itself"):
        Protobuf(FieldDescriptorProto.DESCRIPTOR.file.message_types_by_name["DescriptorProto"])


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("fastavro", lambda: Avro(AVRO), "avro"),
        ("google.protobuf.message", lambda: Protobuf("a", b""), "protobuf"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=rf"penstock\[{extra}\]"):
        make()
