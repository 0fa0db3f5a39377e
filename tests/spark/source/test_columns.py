"""Which columns are asked for, and what is said about those that do not exist."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import InvalidArgument
from penstock.spark.source.columns import asked_columns, spark_schema


def schema(text: str) -> StructType:
    """A schema of simple types; Spark's own parser would need a JVM."""
    found = StructType()
    for field in text.split(", "):
        name, kind = field.split()
        found = found.add(name, kind)
    return found


def test_without_a_wish_all_columns_come_in_their_order() -> None:
    assert asked_columns(None, None) == ALL
    assert spark_schema().fieldNames() == list(ALL)


def test_the_types_are_those_of_the_documentation() -> None:
    assert spark_schema().simpleString() == (
        "struct<topic:string,broker:string,queue_id:int,offset:bigint,msg_id:string,"
        "keys:array<string>,tags:string,body:binary,properties:map<string,string>,"
        "born_timestamp:timestamp,store_timestamp:timestamp,reconsume_times:int,"
        "born_host:string,store_host:string,sys_flag:int>"
    )


def test_the_types_are_those_of_the_batches() -> None:
    assert to_arrow_schema(spark_schema(), timezone="UTC") == arrow_schema(ALL)


def test_columns_come_as_they_are_asked_for() -> None:
    assert asked_columns(None, " body, offset ") == ("body", "offset")
    assert asked_columns(schema("body binary, offset long"), None) == ("body", "offset")
    assert asked_columns(schema("body binary, offset long"), "body,offset") == ("body", "offset")


@pytest.mark.parametrize(
    ("ddl", "option", "message"),
    [
        (None, "boddy", r"no column 'boddy'; expected some of topic, .*; try: body"),
        (None, " , ", r"option columns ' , '; expected names"),
        (None, "body,body", r"column 'body' twice"),
        ("value binary", None, r"no column 'value'; expected some of"),
        ("body string", None, r"column 'body' of type string in the schema; expected binary; try:"),
        ("offset integer", None, r"column 'offset' of type int in the schema; expected bigint"),
        ("keys string", None, r"expected array<string>"),
        ("body binary", "offset", r"option columns 'offset' and a schema of body"),
    ],
)
def test_what_cannot_be_given_is_named(ddl: str | None, option: str | None, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        asked_columns(None if ddl is None else schema(ddl), option)


@pytest.mark.parametrize(
    ("name", "kind", "nullable"),
    [
        ("offset", LongType(), False),
        ("keys", ArrayType(StringType(), containsNull=False), True),
        ("properties", MapType(StringType(), StringType(), valueContainsNull=False), True),
    ],
)
def test_a_column_that_may_not_be_null_is_refused_before_a_task_runs(
    name: str, kind: DataType, nullable: bool
) -> None:
    with pytest.raises(InvalidArgument, match=f"{name!r} is never null.*leave NOT NULL out"):
        asked_columns(StructType().add(name, kind, nullable), None)
