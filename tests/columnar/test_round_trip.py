"""The package by its entry points alone: rows to messages, records to rows, and no Spark."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa

from penstock.columnar import (
    ALL,
    MessageColumns,
    Origin,
    Wanted,
    arrow_schema,
    encode_rows,
    to_batches,
)
from penstock.model.hosts import pack_host
from penstock.protocol.records.batches import decode_batch
from penstock.protocol.records.codec import encode_record

HOST = pack_host("10.0.0.5", 10911)


def test_rows_that_were_encoded_and_stored_are_decoded_to_the_same_rows() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"body": b"one", "tags": "new", "keys": ["a", "b"]},
            {"body": b"two", "tags": None, "keys": None},
        ],
        pa.schema([("body", pa.binary()), ("tags", pa.string()), ("keys", pa.list_(pa.string()))]),
    )
    columns = MessageColumns(body=0, tags=1, keys=2)
    encoded = encode_rows(rows, columns, Origin("query", 0, 0), 0, None)
    messages = decode_batch(b"".join(item.as_py() for item in encoded.items))
    records = b"".join(
        encode_record(
            topic=b"orders",
            body=message.body,
            properties=message.properties,
            queue_id=3,
            queue_offset=offset,
            log_position=0,
            born_timestamp=0,
            born_host=HOST,
            store_timestamp=0,
            store_host=HOST,
        )
        for offset, message in enumerate(messages)
    )
    wanted = Wanted(columns=("body", "tags", "keys"))
    assert pa.Table.from_batches(to_batches(records, broker="b", wanted=wanted)).to_pylist() == (
        rows.to_pylist()
    )


def test_batches_have_the_schema_of_all_columns_unless_some_are_chosen() -> None:
    assert arrow_schema(ALL).names == list(ALL)
    assert list(to_batches(b"", broker="b", wanted=Wanted())) == []


def test_the_package_does_not_load_spark() -> None:
    program = "import sys, penstock.columnar; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
