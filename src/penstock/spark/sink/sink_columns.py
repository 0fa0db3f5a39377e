"""Finds the columns of a DataFrame that the sink uses, and checks their types. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from penstock.columnar.encode import MessageColumns
from penstock.errors import InvalidArgument

_TEXT: Final = (StringType, VarcharType, CharType, NullType)
_NUMBER: Final = (ByteType, ShortType, IntegerType, LongType, NullType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, _TEXT)


def _is_body(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_text(kind)


def _is_keys(kind: DataType) -> bool:
    return _is_text(kind) or (isinstance(kind, ArrayType) and _is_text(kind.elementType))


def _is_map(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return _is_text(kind.keyType) and _is_text(kind.valueType)
    return isinstance(kind, NullType)


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, _NUMBER)


def _is_delay(kind: DataType) -> bool:
    return _is_number(kind) or _is_text(kind)


_ACCEPTED: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "body": (_is_body, "binary or string"),
    "topic": (_is_text, "string"),
    "keys": (_is_keys, "string or array<string>"),
    "tags": (_is_text, "string"),
    "properties": (_is_map, "map<string,string>"),
    "sharding_key": (_is_text, "string"),
    "delay": (_is_delay, "a level as int, or the text of one as string"),
    "broker": (_is_text, "string"),
    "queue_id": (_is_number, "int"),
}


def message_columns(
    schema: StructType, *, topic: str | None, keep_queue: bool, id_column: str | None = None
) -> MessageColumns:
    """The columns to use; refuses a frame that cannot be sent, by column and type."""
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _ACCEPTED:
            continue  # Other columns of the source, such as offset, have no meaning here.
        if name in places:
            raise InvalidArgument(f"two columns {name!r}", expected="one", hint="drop or rename it")
        is_accepted, expected = _ACCEPTED[name]
        if not is_accepted(field.dataType):
            raise InvalidArgument(
                f"column {field.name!r} is {field.dataType.simpleString()}",
                expected=expected,
                hint=f"cast it, as in df.withColumn({field.name!r}, ...)",
            )
        places[name] = place
    if "body" not in places:
        raise InvalidArgument(
            f"no column 'body' among {', '.join(schema.names) or 'no columns at all'}",
            expected="a column body, binary or string",
            hint='df.selectExpr("to_json(struct(*)) AS body")',
        )
    if id_column is not None:
        places["id"] = _id_place(schema, id_column)
    if topic is not None:
        places.pop("topic", None)
    elif "topic" not in places:
        raise InvalidArgument(
            "rows without a topic", expected='option("topic", ...) or a column topic'
        )
    if not keep_queue:
        places.pop("broker", None)
        places.pop("queue_id", None)
    elif missing := {"broker", "queue_id"} - places.keys():
        raise InvalidArgument(
            f"keepQueue without column {' and '.join(sorted(missing))}",
            expected="columns broker and queue_id, as the source gives them",
        )
    return MessageColumns(**places)


def _id_place(schema: StructType, name: str) -> int:
    found = [place for place, field in enumerate(schema.fields) if field.name == name]
    if len(found) != 1 or not _is_text(schema.fields[found[0]].dataType):
        what = schema.fields[found[0]].dataType.simpleString() if len(found) == 1 else len(found)
        raise InvalidArgument(
            f"option idColumn {name!r}, and in the frame it is {what}",
            expected="one column of that name, of type string",
            hint=f"df.withColumn({name!r}, ...), as in concat_ws('-', broker, queue_id, offset)",
        )
    return found[0]
