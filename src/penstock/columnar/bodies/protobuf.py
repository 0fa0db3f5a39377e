"""Bodies that are Protobuf messages.

Columns have the names of the fields. A field that tracks whether it is set is null if it is not;
others have their default, as in every language. Enums are the names of their values. Timestamps,
durations and the wrappers of single values become columns of that kind; ``Struct``, ``Value`` and
``ListValue``, which may contain themselves, become JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.columnar.bodies.body_schema import BodyPlan, first_line, missing
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.message import Message

_WELL_KNOWN: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_WELL_KNOWN}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FREE: Final = frozenset(f"{_WELL_KNOWN}{kind}" for kind in ("Struct", "Value", "ListValue"))
Convert = Callable[[Any], Any]


class Protobuf:
    """Bodies that are Protobuf messages of one type, for `decode`.

    ``message`` is a generated class or its descriptor; or the full name of a message
    (``"shop.Order"``) in ``descriptors``, the bytes or the path of what
    ``protoc --include_imports --descriptor_set_out`` writes.
    """

    def __init__(
        self,
        message: type[Message] | Descriptor | str,
        descriptors: bytes | os.PathLike[str] | str | None = None,
    ) -> None:
        if isinstance(message, str):
            if descriptors is None:
                raise InvalidArgument(
                    f"the name of a message, {message!r}, without descriptors",
                    expected="descriptors: a file that protoc --descriptor_set_out wrote",
                    hint="or the generated class instead of a name",
                )
            self._name = message
            self._files = (
                descriptors if isinstance(descriptors, bytes) else Path(descriptors).read_bytes()
            )
        else:
            descriptor: Descriptor = getattr(message, "DESCRIPTOR", message)
            if not hasattr(descriptor, "full_name"):
                raise InvalidArgument(
                    f"{message!r} is no message of Protobuf",
                    expected="a generated class, its descriptor, or the full name of a message",
                )
            self._name = descriptor.full_name
            self._files = _with_imports(descriptor.file)
        self.plan()  # an error shows here, and not in the tasks

    def __repr__(self) -> str:
        return f"Protobuf({self._name!r})"

    def plan(self) -> BodyPlan:
        """How the bodies become structs."""
        try:
            from google.protobuf.message import DecodeError
            from google.protobuf.message_factory import GetMessageClass
        except ModuleNotFoundError as error:
            raise missing("protobuf", "protobuf", "decode of Protobuf") from error
        descriptor = self._descriptor()
        new = GetMessageClass(descriptor)
        built, convert = _Types().message(descriptor)
        if not pa.types.is_struct(built):
            raise InvalidArgument(
                f"bodies of type {descriptor.full_name}, which is a single value",
                expected="a message with fields",
            )

        def parse(body: bytes) -> dict[str, Any]:
            found = new()
            try:
                found.ParseFromString(body)
            except DecodeError as error:
                raise ValueError(
                    f"the body is not a {descriptor.full_name}: {first_line(error)}"
                ) from error
            if not found.IsInitialized():
                lacks = ", ".join(found.FindInitializationErrors())
                raise ValueError(f"the body is a {descriptor.full_name} without {lacks}")
            value: dict[str, Any] = convert(found)
            return value

        return BodyPlan(built, built, parse)

    def _descriptor(self) -> Descriptor:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        pool = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(self._files).file:
                pool.Add(file)
            return pool.FindMessageTypeByName(self._name)
        except (DecodeError, TypeError, KeyError) as error:
            raise InvalidArgument(
                f"message {self._name!r} cannot be found in the descriptors: {first_line(error)}",
                expected="the full name of a message, and the file of protoc --include_imports "
                "--descriptor_set_out",
            ) from error


def _with_imports(file: FileDescriptor) -> bytes:
    """A file and all that it imports, those first, as a descriptor set."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    found: dict[str, FileDescriptorProto] = {}

    def add(one: FileDescriptor) -> None:
        if one.name not in found:
            for imported in one.dependencies:
                add(imported)
            one.CopyToProto(found.setdefault(one.name, FileDescriptorProto()))

    add(file)
    data: bytes = FileDescriptorSet(file=found.values()).SerializeToString()
    return data


class _Types:
    """The Arrow types of messages; refuses those that contain themselves."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def message(self, descriptor: Descriptor) -> tuple[pa.DataType, Convert]:
        """The type of a message, and how one becomes a value of Arrow."""
        name = descriptor.full_name
        if name == f"{_WELL_KNOWN}Timestamp":
            return pa.timestamp("us", "UTC"), _microseconds
        if name == f"{_WELL_KNOWN}Duration":
            return pa.duration("us"), _microseconds
        if name in _WRAPPERS:
            kind, convert = self._single(descriptor.fields_by_name["value"])
            return kind, lambda found: convert(found.value)
        if name in _FREE:
            return pa.string(), _as_json
        if name in self._open:
            raise InvalidArgument(
                f"the Protobuf message {name!r} contains itself",
                expected="messages of a fixed depth, as columns have",
            )
        self._open.append(name)
        fields = [(field.name, *self._field(field)) for field in descriptor.fields]
        self._open.pop()
        getters = [(key, get) for key, _, get in fields]
        return (
            pa.struct([pa.field(key, kind) for key, kind, _ in fields]),
            lambda found: {key: get(found) for key, get in getters},
        )

    def _field(self, field: FieldDescriptor) -> tuple[pa.DataType, Convert]:
        """The type of a field, and its value in a message."""
        name = field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            key_type, key_of = self._single(entry["key"])
            kind, value_of = self._single(entry["value"])
            return pa.map_(key_type, kind), lambda found: [
                (key_of(key), value_of(value)) for key, value in getattr(found, name).items()
            ]
        kind, convert = self._single(field)
        if field.is_repeated:
            return pa.list_(kind), lambda found: [convert(one) for one in getattr(found, name)]
        if field.has_presence:
            return (
                kind,
                lambda found: convert(getattr(found, name)) if found.HasField(name) else None,
            )
        return kind, lambda found: convert(getattr(found, name))

    def _single(self, field: FieldDescriptor) -> tuple[pa.DataType, Convert]:
        """The type of one value of a field."""
        if field.message_type is not None:
            return self.message(field.message_type)
        if field.enum_type is not None:
            names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
            return pa.string(), partial(_enum_name, names)
        kind = {
            field.CPPTYPE_BOOL: pa.bool_(),
            field.CPPTYPE_INT32: pa.int32(),
            field.CPPTYPE_INT64: pa.int64(),
            field.CPPTYPE_UINT32: pa.int64(),
            field.CPPTYPE_UINT64: pa.decimal128(20, 0),
            field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_DOUBLE: pa.float64(),
            field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
        }[field.cpp_type]
        return kind, Decimal if field.cpp_type == field.CPPTYPE_UINT64 else _same


def _same(value: Any) -> Any:
    return value


def _enum_name(names: Mapping[int, str], number: int) -> str:
    # Of a newer schema there may be numbers without a name here.
    return names.get(number) or str(number)


def _microseconds(found: Any) -> int:
    return int(found.seconds) * 1_000_000 + int(found.nanos) // 1000


def _as_json(found: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(found, indent=None))
