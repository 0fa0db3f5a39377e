"""A message of Protobuf with a field of every kind, as protoc would describe it."""

from __future__ import annotations

from typing import Final

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from google.protobuf.descriptor_pb2 import FileDescriptorSet

ORDER: Final = "shop.Order"


def order_files() -> FileDescriptorSet:
    """The file of the message, and before it those that it imports."""
    files = FileDescriptorSet()
    for imported in (timestamp_pb2, duration_pb2, struct_pb2, wrappers_pb2):
        imported.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(one.name for one in files.file[:4])
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_DOUBLE, label=F.LABEL_OPTIONAL)
    one, many = F.LABEL_OPTIONAL, F.LABEL_REPEATED
    fields = [
        ("id", F.TYPE_INT64, one, ""),
        ("total", F.TYPE_UINT64, one, ""),
        ("kind", F.TYPE_ENUM, one, ".shop.Kind"),
        ("items", F.TYPE_STRING, many, ""),
        ("prices", F.TYPE_MESSAGE, many, ".shop.Order.PricesEntry"),
        ("raw", F.TYPE_BYTES, one, ""),
        ("at", F.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("took", F.TYPE_MESSAGE, one, ".google.protobuf.Duration"),
        ("limit", F.TYPE_MESSAGE, one, ".google.protobuf.UInt32Value"),
        ("more", F.TYPE_MESSAGE, one, ".google.protobuf.Struct"),
        ("line", F.TYPE_MESSAGE, one, ".shop.Line"),
    ]
    for number, (name, type_, label, type_name) in enumerate(fields, 1):
        order.field.add(
            name=name, number=number, type=type_, label=label, type_name=type_name or None
        )
    order.oneof_decl.add(name="_note")
    order.field.add(
        name="note",
        number=20,
        type=F.TYPE_STRING,
        label=one,
        proto3_optional=True,
        oneof_index=0,
    )
    return files
