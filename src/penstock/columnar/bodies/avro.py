"""Bodies that are single Avro records, without the header of a file: fastavro reads them.

Types follow what Spark does for Avro: a union with null is a column that may be null, a union of
several types is a struct with the fields ``member0``, ``member1`` and so on, of which one is set.
Times of day and UUIDs stay the numbers and texts that Avro stores.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.columnar.bodies.body_schema import BodyPlan, first_line, missing
from penstock.errors import InvalidArgument

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "null": pa.null(),
}
_TIMES: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
"""Arrow takes the stored numbers of these as they are."""
_IN_UNIONS: Final = {
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}
"""The unnamed type of a union that a value of Python belongs to."""
Convert = Callable[[Any], Any]


class Avro:
    """Bodies that are Avro records of one schema, for `decode`.

    ``schema`` is the JSON text of the schema, the same as a dictionary, or a path to its file
    (``.avsc``). Each body is one record as Avro's binary encoding has it, with no header and
    nothing after it.
    """

    def __init__(self, schema: str | Mapping[str, Any] | os.PathLike[str]) -> None:
        self._text = _text(schema)
        self.plan()  # an error in the schema shows here, and not in the tasks

    def __repr__(self) -> str:
        return f"Avro({self._text!r})"

    def plan(self) -> BodyPlan:
        """How the bodies become structs."""
        try:
            from fastavro import schemaless_reader
            from fastavro.schema import SchemaParseException, parse_schema
        except ModuleNotFoundError as error:
            raise missing("fastavro", "avro", "decode of Avro") from error
        try:
            document = _without_logical_types(json.loads(self._text))
            parsed: Any = parse_schema(document, expand=True)
        except (SchemaParseException, ValueError, TypeError, KeyError) as error:
            raise _no_schema(first_line(error)) from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise _no_schema("its type is not record")
        built, convert = _Types().of(parsed)

        def parse(body: bytes) -> dict[str, Any]:
            stream = io.BytesIO(body)
            try:
                found: Any = schemaless_reader(stream, parsed, None, return_named_type=True)
            except Exception as error:  # fastavro raises what its decoding meets, of any kind
                raise ValueError(
                    f"the body is not Avro of the schema: {first_line(error)}"
                ) from error
            if left := len(body) - stream.tell():
                raise ValueError(f"the body has {left} bytes after the Avro record")
            record: dict[str, Any] = found if convert is None else convert(found)
            return record

        return BodyPlan(built, _in_microseconds(built), parse)


def is_avro_schema(text: str) -> bool:
    """Whether a text looks like an Avro schema in JSON."""
    return text.lstrip().startswith("{") and '"type"' in text


def _text(schema: str | Mapping[str, Any] | os.PathLike[str]) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, Mapping):
        return json.dumps(schema)
    return Path(schema).read_text(encoding="utf-8")


def _no_schema(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the Avro schema cannot be used: {why}",
        expected="the schema of a record, as JSON, such as "
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}',
    )


def _without_logical_types(schema: Any) -> Any:
    """The schema with the numbers that are stored; of a time the unit stays in ``penstockType``.

    fastavro would make an object of Python for each, which Arrow then takes apart.
    """
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without_logical_types(value) for key, value in schema.items()}
    logical = schema.get("logicalType")
    if isinstance(logical, str) and logical != "decimal":
        del found["logicalType"]
        if logical in _TIMES:
            found["penstockType"] = logical
    return found


class _Types:
    """The Arrow types of a schema; refuses records that contain themselves."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def of(self, schema: Any) -> tuple[pa.DataType, Convert | None]:
        """The type, and how a value of fastavro becomes one of Arrow; None: it is one."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in self._open:
                raise InvalidArgument(
                    f"the Avro record {schema!r} contains itself",
                    expected="records of a fixed depth, as columns have",
                )
            return _PLAIN[schema], None
        kind = schema["type"]
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            item, each = self.of(schema["items"])
            if each is None:
                return pa.list_(item), None
            return pa.list_(item), lambda found: [each(one) for one in found]
        if kind == "map":
            item, convert = self.of(schema["values"])
            return pa.map_(pa.string(), item), lambda found: [
                (key, value if convert is None else convert(value)) for key, value in found.items()
            ]
        if schema.get("logicalType") == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0)), None
        if "penstockType" in schema:
            return _TIMES[schema["penstockType"]], None
        return self.of(kind) if isinstance(kind, (dict, list)) else (_PLAIN[kind], None)

    def _record(self, schema: Any) -> tuple[pa.DataType, Convert | None]:
        name = schema["name"]
        self._open.append(name)
        fields, converts = [], {}
        for field in schema["fields"]:
            kind, convert = self.of(field["type"])
            fields.append(pa.field(field["name"], kind))
            if convert is not None:
                converts[field["name"]] = convert
        self._open.pop()
        if not converts:
            return pa.struct(fields), None

        def converted(found: dict[str, Any]) -> dict[str, Any]:
            return found | {key: convert(found[key]) for key, convert in converts.items()}

        return pa.struct(fields), converted

    def _union(self, branches: list[Any]) -> tuple[pa.DataType, Convert | None]:
        real = [branch for branch in branches if branch != "null"]
        if not real:
            return pa.null(), None
        if len(real) == 1:
            kind, convert = self.of(real[0])
            return kind, _of_optional(convert, is_named=_is_named(real[0]))
        if sorted(map(str, real)) == ["int", "long"]:
            return pa.int64(), None
        if sorted(map(str, real)) == ["double", "float"]:
            return pa.float64(), None
        members = {f"member{number}": self.of(branch) for number, branch in enumerate(real)}
        by_name = {_branch_name(branch): key for key, branch in zip(members, real, strict=True)}

        def chosen(found: Any) -> Any:
            if found is None:
                return None
            if isinstance(found, tuple):  # a named type: its name and the value
                key, value = by_name[found[0]], found[1]
            else:
                names = _IN_UNIONS.get(type(found), ("bytes",))
                key, value = next(by_name[name] for name in names if name in by_name), found
            convert = members[key][1]
            return {key: value if convert is None else convert(value)}

        return pa.struct([pa.field(key, kind) for key, (kind, _) in members.items()]), chosen


def _is_named(branch: Any) -> bool:
    return isinstance(branch, dict) and "name" in branch


def _of_optional(convert: Convert | None, *, is_named: bool) -> Convert | None:
    """The value of a union of one type and null; fastavro pairs named ones with their name."""
    if convert is None and not is_named:
        return None

    def value(found: Any) -> Any:
        if found is None:
            return None
        inner = found[1] if is_named else found
        return inner if convert is None else convert(inner)

    return value


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    name = branch.get("name", branch["type"])
    return str(name)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with times in microseconds, as Spark has them."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_microseconds(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    return kind
