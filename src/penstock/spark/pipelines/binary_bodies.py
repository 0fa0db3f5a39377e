"""Bodies in Avro or Protobuf as a column: a function of Spark on Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.columnar.bodies.body_schema import BodyPlan, BodySchema, decode_bodies

if TYPE_CHECKING:
    from pyspark.sql import Column

VALUE: Final = "value"
REASON: Final = "reason"
"""The fields of a result: one of the two is null."""


def field_names(schema: BodySchema) -> list[str]:
    """The names of the fields that bodies have."""
    return [field.name for field in schema.plan().shown]


def body_function(schema: BodySchema) -> Callable[[Column], Column]:
    """A function from a binary column to structs of `VALUE` and `REASON`."""
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    result = StructType(
        [
            StructField(VALUE, from_arrow_type(schema.plan().shown)),
            StructField(REASON, StringType()),
        ]
    )

    def decoded(bodies: pa.Array) -> pa.Array:
        value, reason = decode_bodies(_plan(schema), bodies)
        return pa.StructArray.from_arrays([value, reason], [VALUE, REASON])

    # Written as data, because annotations are text here, and Spark looks at their types.
    decoded.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    # Spark calls a deterministic function twice for a row: in the filter by reason, and again
    # for the columns. A function that is not deterministic stays where it is, and is called once.
    # Spark documents structs as results, but its annotations leave them out.
    make: Any = arrow_udf
    function: Callable[[Column], Column] = make(decoded, result).asNondeterministic()
    return function


@lru_cache(maxsize=16)
def _plan(schema: BodySchema) -> BodyPlan:
    """The plan, made once for each copy of the schema that a task receives."""
    return schema.plan()
