"""``decode``: bodies as typed columns; those that do not parse are in a second frame.

Spark's own functions read JSON, in the JVM. Its functions for Avro and Protobuf are in jars that
PySpark does not have, so a function in Python reads those (decision 35). Both also run in streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.columnar.bodies.avro import Avro, is_avro_schema
from penstock.columnar.bodies.body_schema import BodySchema
from penstock.columnar.bodies.protobuf import Protobuf
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

REASON: Final = "reason"
"""The column of the rejected rows that says why."""
_JSON: Final = "json"
_VALUE: Final = "value"
_NO_JSON: Final = "the body is not JSON"
_WHITESPACE: Final = " \t\r\n"
"""What may be around a JSON value."""
_PARSED, _TEXT, _CORRUPT = "__penstock_parsed", "__penstock_text", "__penstock_corrupt"


class Decoded(NamedTuple):
    """The result of `decode`."""

    rows: DataFrame
    """The rows that parse, with the typed columns."""
    rejected: DataFrame
    """The others as they were, with the column ``reason``."""


def decode(
    df: DataFrame,
    schema: StructType | str | Avro | Protobuf | type[Message],
    *,
    column: str = "body",
    into: str | None = None,
) -> Decoded:
    """Parse the bodies in a column, by default ``body``; nothing is dropped in silence.

    For JSON, ``schema`` is a `StructType` or its text (``"id bigint NOT NULL, amount double"``):
    its fields become columns of ``rows``, or with ``into`` the fields of one struct column of that
    name. A field that is NOT NULL must be there. With the schema ``"json"`` the whole value becomes
    one column of Spark's type variant, called ``value`` or as ``into`` says.

    For Avro it is `Avro` or the text of the record's schema, for Protobuf it is `Protobuf` or the
    generated class of a message. These need the extras ``[avro]`` and ``[protobuf]`` on the driver
    and the executors.

    A body that is null, does not parse, or has a field of another type, is a row of ``rejected``,
    with the columns of ``df`` and ``reason``. The two frames of a stream are two streams: start a
    query for each, or Spark reads one of them only.

    Example:
        good, bad = decode(orders, "id bigint NOT NULL, amount double")
    """
    if column not in df.columns:
        raise InvalidArgument(f"no column {column!r} among {', '.join(df.columns)}")
    marked = _marked(df, schema, column, into)
    added = [name for name in marked.columns if name not in (*df.columns, REASON)]
    return Decoded(
        marked.where(f"{REASON} IS NULL").select(*df.columns, *added),
        marked.where(f"{REASON} IS NOT NULL").select(*df.columns, REASON),
    )


def _marked(
    df: DataFrame,
    schema: StructType | str | Avro | Protobuf | type[Message],
    column: str,
    into: str | None,
) -> DataFrame:
    """The frame with the typed columns and ``reason``."""
    if isinstance(schema, Avro | Protobuf):
        return _binary(df, schema, column, into)
    if isinstance(schema, str):
        if schema.strip().lower() == _JSON:
            return _as_variant(df, column, into)
        if is_avro_schema(schema):
            return _binary(df, Avro(schema), column, into)
    elif isinstance(schema, type):
        return _binary(df, Protobuf(schema), column, into)
    return _typed(df, schema, column, into)


def _binary(df: DataFrame, schema: BodySchema, column: str, into: str | None) -> DataFrame:
    from pyspark.sql import functions as F

    from penstock.spark.pipelines.binary_bodies import REASON as WHY
    from penstock.spark.pipelines.binary_bodies import VALUE, body_function, field_names

    names = field_names(schema)
    _refuse_conflict(df, [into] if into else names)
    parsed = df.withColumn(_PARSED, body_function(schema)(F.col(column).cast("binary")))
    value = F.col(_PARSED)[VALUE]
    added = [value.alias(into)] if into else [value[name].alias(name) for name in names]
    return parsed.select(*df.columns, *added, F.col(_PARSED)[WHY].alias(REASON))


def _as_variant(df: DataFrame, column: str, into: str | None) -> DataFrame:
    from pyspark.sql import functions as F

    name = into or _VALUE
    _refuse_conflict(df, [name])
    parsed = _with_text(df, column).withColumn(name, F.try_parse_json(_TEXT))
    why = F.coalesce(_unreadable(column), *_no_json())
    return parsed.withColumn(REASON, why).drop(_TEXT)


def _no_json() -> list[Column]:
    """Why a text is not one JSON value; null if it is.

    Spark's parsers stop after the first value and ignore what follows. So the text is also parsed
    as the first of two in a list; the second is a digest of it, which no text has in it by chance.
    """
    from pyspark.sql import functions as F

    digest = F.md5(F.col(_TEXT).cast("binary"))
    in_list = F.try_parse_json(F.concat(F.lit("["), _TEXT, F.lit(',"'), digest, F.lit('"]')))
    is_whole = F.coalesce(F.try_variant_get(in_list, "$[1]", "string") == digest, F.lit(False))
    return [
        F.when(F.try_parse_json(_TEXT).isNull(), F.lit(_NO_JSON)),
        F.when(~is_whole, F.lit("the body has more after its JSON value")),
    ]


def _typed(df: DataFrame, schema: StructType | str, column: str, into: str | None) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    fields = _fields(schema)
    names = [field.name for field in fields.fields]
    _refuse_conflict(df, [into] if into else names)
    shape = type(fields)([*fields.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = _with_text(df, column).withColumn(_PARSED, F.from_json(_TEXT, shape, options))
    text = F.ltrim(_TEXT, F.lit(_WHITESPACE))
    why = [
        _unreadable(column),
        *_no_json(),
        F.when(
            ~text.startswith("{"),
            F.lit("the body is not a JSON object"),
        ),
        *(_wrong(field) for field in fields.fields),
    ]
    is_corrupt = F.col(_PARSED)[_CORRUPT].isNotNull() | F.col(_PARSED).isNull()
    why.append(F.when(is_corrupt, F.lit("the body is not JSON of the schema")))
    marked = parsed.withColumn(REASON, F.coalesce(*why))
    values = [F.col(_PARSED)[name].alias(name) for name in names]
    added = [F.struct(*values).alias(into)] if into else values
    return marked.select(*df.columns, *added, REASON)


def _fields(schema: StructType | str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    try:
        found = StructType.fromDDL(schema)
    except PySparkException as error:
        raise InvalidArgument(
            f"schema {schema!r} cannot be read: {str(error).splitlines()[0]}",
            expected="fields such as 'id bigint NOT NULL, amount double', a StructType, 'json', "
            "Avro(...) or Protobuf(...)",
        ) from error
    assert isinstance(found, StructType), "that is what a list of fields is"
    return found


def _with_text(df: DataFrame, column: str) -> DataFrame:
    from pyspark.sql import functions as F

    # Null for bytes that are no UTF-8; a column of text stays as it is.
    return df.withColumn(_TEXT, F.try_validate_utf8(F.col(column).cast("string")))


def _unreadable(column: str) -> Column:
    from pyspark.sql import functions as F

    is_null = F.when(F.col(column).isNull(), F.lit("the body is null"))
    return F.coalesce(is_null, F.when(F.col(_TEXT).isNull(), F.lit("the body is not UTF-8")))


def _wrong(field: StructField) -> Column:
    """Why a field is not what the schema says; null if it is."""
    from pyspark.sql import functions as F

    found = F.get_json_object(_TEXT, "$['" + field.name.replace("'", "\\'") + "']")
    value = F.col(_PARSED)[field.name]
    kind = field.dataType.simpleString()
    why = F.when(found.isNotNull() & value.isNull(), F.lit(f"field {field.name!r} is not {kind}"))
    if field.nullable:
        return why
    is_there = F.col(_PARSED).isNotNull() & value.isNull()
    return F.coalesce(why, F.when(is_there, F.lit(f"field {field.name!r} is missing")))


def _refuse_conflict(df: DataFrame, names: list[str]) -> None:
    taken = [name for name in (*names, REASON) if name in df.columns]
    if taken:
        raise InvalidArgument(
            f"column {taken[0]!r} is there already",
            expected="new names for what is decoded",
            hint="into='value' puts all fields into one column",
        )
