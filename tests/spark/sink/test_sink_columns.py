"""Which columns of a DataFrame the sink uses, and the errors for those it cannot use."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.columnar import MessageColumns
from penstock.errors import InvalidArgument
from penstock.spark.sink.sink_columns import message_columns

STRING, BINARY = StringType(), BinaryType()


def frame(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (frame(key=STRING), "no column 'body'"),
        (frame(), "no column 'body'"),
        (frame(body=IntegerType()), "'body' is int"),
        (frame(body=BINARY, tags=ArrayType(STRING)), "'tags' is array<string>"),
        (
            frame(body=BINARY, properties=MapType(STRING, IntegerType())),
            "'properties' is map<string,int>",
        ),
        (frame(body=BINARY, keys=ArrayType(IntegerType())), "'keys' is array<int>"),
        (frame(body=BINARY, delay=DoubleType()), "'delay' is double"),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_both_types(
    schema: StructType, words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        message_columns(schema, topic="t", keep_queue=False)
    assert words in str(caught.value)
    assert "expected" in str(caught.value)


def test_rows_need_a_topic_from_somewhere() -> None:
    with pytest.raises(InvalidArgument, match="topic"):
        message_columns(frame(body=BINARY), topic=None, keep_queue=False)
    with pytest.raises(InvalidArgument, match="broker and queue_id"):
        message_columns(frame(body=BINARY), topic="t", keep_queue=True)
    both = frame(topic=STRING, body=BINARY)
    assert message_columns(both, topic="t", keep_queue=False).topic is None, "the option wins"
    assert message_columns(both, topic=None, keep_queue=False).topic == 0


def test_columns_of_other_names_are_not_used() -> None:
    schema = frame(offset=IntegerType(), Body=BINARY, tags=STRING, broker=STRING)
    found = message_columns(schema, topic="t", keep_queue=False)
    assert found == MessageColumns(body=1, tags=2)
