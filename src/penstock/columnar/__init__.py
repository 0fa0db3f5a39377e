"""Stored records to and from Arrow, whole batches at a time, without Spark.

    to_batches     stored records (a pull answer, a part of the commit log) to RecordBatches
    encode_rows    the rows of a RecordBatch to the messages of batch sends

`Wanted` selects columns and messages of the first, `MessageColumns` says which columns the second
takes a message from, and `schema` has the names and Arrow types of all columns. Needs numpy and
pyarrow.
"""

from penstock.columnar.decode import Wanted, to_batches
from penstock.columnar.encode import EncodedRows, MessageColumns, encode_rows
from penstock.columnar.row_ids import Origin, RowIds
from penstock.columnar.schema import ALL, arrow_schema

__all__ = [
    "ALL",
    "EncodedRows",
    "MessageColumns",
    "Origin",
    "RowIds",
    "Wanted",
    "arrow_schema",
    "encode_rows",
    "to_batches",
]
