"""The columns of ``format("penstock")``: their types in Spark and Arrow, and which are wanted.

Spark tells a Python source nothing about the columns a query needs. So a reader builds what the
user's ``.schema(...)`` or the option ``columns`` names, and nothing else; without either, all.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidArgument


class Column(NamedTuple):
    """One column in both worlds; the two types must be what Spark thinks the same."""

    spark_type: DataType
    arrow_type: pa.DataType


_TEXT = Column(StringType(), pa.string())
_INT = Column(IntegerType(), pa.int32())
_LONG = Column(LongType(), pa.int64())
_TIME = Column(TimestampType(), pa.timestamp("us", "UTC"))
_TEXTS = Column(ArrayType(StringType()), pa.list_(pa.field("element", pa.string())))
_PAIRS = Column(MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))

COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {
        "topic": _TEXT,
        "broker": _TEXT,
        "queue_id": _INT,
        "offset": _LONG,
        "msg_id": _TEXT,
        "keys": _TEXTS,
        "tags": _TEXT,
        "body": Column(BinaryType(), pa.binary()),
        "properties": _PAIRS,
        "born_timestamp": _TIME,
        "store_timestamp": _TIME,
        "reconsume_times": _INT,
        "born_host": _TEXT,
        "store_host": _TEXT,
        "sys_flag": _INT,
    }
)
"""Every column by name, in the order of the default schema."""

ALL: Final = tuple(COLUMNS)


def spark_schema(names: Sequence[str] | None = None) -> StructType:
    """The Spark schema of these columns, of all without ``names``."""
    return StructType([StructField(name, COLUMNS[name].spark_type) for name in names or ALL])


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema Spark expects of batches with these columns."""
    return pa.schema([pa.field(name, COLUMNS[name].arrow_type) for name in names])


def asked_columns(schema: StructType | None, columns_option: str | None) -> tuple[str, ...]:
    """The columns a user's schema or the option ``columns`` (a comma list) asks for, in order.

    Unknown names, other types and a schema that disagrees with the option are refused.
    """
    named = None if columns_option is None else _named(columns_option)
    if schema is None:
        return named or ALL
    names = tuple(_checked(field) for field in schema.fields)
    if not names:
        raise InvalidArgument("an empty schema", expected=f"some of {', '.join(ALL)}")
    _refuse_repeats(names, "schema")
    if named is not None and named != names:
        raise InvalidArgument(
            f"option columns {columns_option!r} and a schema of {', '.join(names)}",
            expected="one of the two, or both with the same columns in the same order",
        )
    return names


def _named(option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in option.split(",") if part.strip())
    if not names:
        raise InvalidArgument(
            f"option columns {option!r}", expected="names with commas, such as 'offset, body'"
        )
    for name in names:
        if name not in COLUMNS:
            raise _unknown(name)
    _refuse_repeats(names, "option columns")
    return names


def _refuse_repeats(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} twice in the {where}", expected="once")


def _checked(field: StructField) -> str:
    column = COLUMNS.get(field.name)
    if column is None:
        raise _unknown(field.name)
    given, expected = field.dataType.simpleString(), column.spark_type.simpleString()
    if given != expected:
        raise InvalidArgument(
            f"column {field.name!r} of type {given} in the schema",
            expected=expected,
            hint=f"read it as {expected} and cast it after load()",
        )
    if not field.nullable or field.dataType != column.spark_type:
        # Spark would refuse our batches, task by task and in other words.
        raise InvalidArgument(
            f"column {field.name!r} is never null by the schema",
            expected=f"{expected} that may be null, as everything from a Python source",
            hint="leave NOT NULL out, or nullable=False and containsNull=False",
        )
    return field.name


def _unknown(name: str) -> InvalidArgument:
    near = difflib.get_close_matches(name.lower(), ALL, n=1)
    return InvalidArgument(
        f"no column {name!r}",
        expected=f"some of {', '.join(ALL)}",
        hint=near[0] if near else None,
    )
