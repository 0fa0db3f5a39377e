"""Builds the API into a descriptor pool of its own, from the tables of `definitions`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from penstock.proxy.wire.definitions import (
    DEFINITIONS,
    ENUMS,
    NESTED_ENUMS,
    PACKAGE,
    SERVICE_MESSAGES,
)

_SHORT: Final = {"R": "Resource", "St": "Status"}
_WELL_KNOWN: Final = {"D": ".google.protobuf.Duration", "T": ".google.protobuf.Timestamp"}
_SCALARS: Final = {
    "string": "TYPE_STRING",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
    "float": "TYPE_FLOAT",
    "bytes": "TYPE_BYTES",
}
_TOKEN: Final = re.compile(r"oneof (\w+)\{|(\})|(\d+) (\w+)(?::([\w.]+))?([?*])?")
_DEFINITION_FILE: Final = "apache/rocketmq/v2/definition.proto"
_SERVICE_FILE: Final = "apache/rocketmq/v2/service.proto"


class Field(NamedTuple):
    """A field of a message as a table states it."""

    number: int
    name: str
    type: str
    mark: str
    oneof: str | None


def fields_of(text: str) -> Iterator[Field]:
    """The fields of one line of `definitions`."""
    oneof = None
    for match in _TOKEN.finditer(text):
        opened, closed, number, name, type_, mark = match.groups()
        if opened:
            oneof = opened
        elif closed:
            oneof = None
        else:
            yield Field(int(number), name, type_ or "string", mark or "", oneof)


def values_of(name: str, text: str) -> dict[str, int]:
    """The values of an enum, with the one for zero."""
    words = text.split()
    values = {word: int(number) for word, number in zip(words[::2], words[1::2], strict=True)}
    if 0 in values.values():
        return values
    return {f"{re.sub('(?<=[a-z])(?=[A-Z])', '_', name).upper()}_UNSPECIFIED": 0, **values}


def make_pool() -> DescriptorPool:
    """A pool with the whole API."""
    pool = DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    definition = _new_file(_DEFINITION_FILE, [])
    for name, text in ENUMS.items():
        _fill_enum(definition.enum_type.add(), name, text)
    for name, text in DEFINITIONS.items():
        _fill_message(definition.message_type.add(), name, text)
    service = _new_file(_SERVICE_FILE, [_DEFINITION_FILE])
    for name, text in SERVICE_MESSAGES.items():
        _fill_message(service.message_type.add(), name, text)
    for file in (definition, service):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _new_file(name: str, needed: list[str]) -> Any:
    known = ["google/protobuf/duration.proto", "google/protobuf/timestamp.proto"]
    return descriptor_pb2.FileDescriptorProto(
        name=name, package=PACKAGE, syntax="proto3", dependency=[*known, *needed]
    )


def _fill_enum(enum: Any, name: str, text: str) -> None:
    enum.name = name
    for value, number in values_of(name, text).items():
        enum.value.add(name=value, number=number)


def _fill_message(message: Any, name: str, text: str) -> None:
    message.name = name
    for nested, values in NESTED_ENUMS.get(name, {}).items():
        _fill_enum(message.enum_type.add(), nested, values)
    fields = list(fields_of(text))
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof is not None))
    for oneof in oneofs:
        message.oneof_decl.add(name=oneof)
    for field in fields:
        added = message.field.add(name=field.name, number=field.number)
        repeated = field.mark == "*" or field.type == "map"
        added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
        _set_type(message, added, field)
        if field.oneof is not None:
            added.oneof_index = oneofs.index(field.oneof)
    # Those of optional fields have to follow all others.
    for index, field in enumerate(fields):
        if field.mark == "?":
            message.field[index].proto3_optional = True
            message.field[index].oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _set_type(message: Any, added: Any, field: Field) -> None:
    type_ = _SHORT.get(field.type, field.type)
    if type_ in _SCALARS:
        added.type = getattr(added, _SCALARS[type_])
    elif type_ == "map":
        entry = message.nested_type.add(name=_entry_name(field.name))
        entry.options.map_entry = True
        for number, part in ((1, "key"), (2, "value")):
            entry.field.add(
                name=part, number=number, type=added.TYPE_STRING, label=added.LABEL_OPTIONAL
            )
        added.type = added.TYPE_MESSAGE
        added.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    else:
        is_enum = type_ in ENUMS or "." in type_
        added.type = added.TYPE_ENUM if is_enum else added.TYPE_MESSAGE
        added.type_name = _WELL_KNOWN.get(type_, f".{PACKAGE}.{type_}")


def _entry_name(field: str) -> str:
    return "".join(part.capitalize() for part in field.split("_")) + "Entry"


MESSAGES: Final[Mapping[str, str]] = {**DEFINITIONS, **SERVICE_MESSAGES}
