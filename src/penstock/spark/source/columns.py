"""The columns of ``format("penstock")``: their types in Spark, and which ones a query reads.

Spark does not say which columns a query needs. So a reader builds the columns that the user's
``.schema(...)`` or the option ``columns`` names; without either, all.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import InvalidArgument

SPARK_TYPES: Final[Mapping[str, DataType]] = MappingProxyType(
    {field.name: field.dataType for field in from_arrow_schema(arrow_schema(ALL)).fields}
)
"""The Spark type of every column."""


def spark_schema(names: Sequence[str] | None = None) -> StructType:
    """The Spark schema of these columns, of all without ``names``."""
    return StructType([StructField(name, SPARK_TYPES[name]) for name in names or ALL])


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
        if name not in SPARK_TYPES:
            raise _unknown(name)
    _refuse_repeats(names, "option columns")
    return names


def _refuse_repeats(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} twice in the {where}", expected="once")


def _checked(field: StructField) -> str:
    expected_type = SPARK_TYPES.get(field.name)
    if expected_type is None:
        raise _unknown(field.name)
    given, expected = field.dataType.simpleString(), expected_type.simpleString()
    if given != expected:
        raise InvalidArgument(
            f"column {field.name!r} of type {given} in the schema",
            expected=expected,
            hint=f"read it as {expected} and cast it after load()",
        )
    if not field.nullable or field.dataType != expected_type:
        # Otherwise Spark would refuse our batches in every task, with a less clear error.
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
