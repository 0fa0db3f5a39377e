"""Rows become the very bytes that the codec for single messages makes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.encode import (
    EncodedRows,
    MessageColumns,
    cut,
    encode_rows,
    halves,
    with_first_id,
)
from penstock.columnar.row_ids import Origin, RowIds
from penstock.errors import IllegalMessage
from penstock.model.properties import parse_properties
from penstock.protocol.records.batches import decode_batch, encode_batch

ORIGIN = Origin("query-1", 7, 3)
ARROW = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("sharding_key", pa.string()),
        ("delay", pa.string()),
        ("offset", pa.int32()),
    ]
)


COLUMNS = MessageColumns(body=0, keys=2, tags=3, properties=4, sharding_key=5, delay=6)


def ids() -> RowIds:
    return RowIds("0A000001002A00C0FFEE", 0x1234)


def encoded(rows: list[dict[str, object]], first_row: int = 0) -> EncodedRows:
    full = [{"topic": None, **{name: row.get(name) for name in ARROW.names}} for row in rows]
    return encode_rows(pa.RecordBatch.from_pylist(full, ARROW), COLUMNS, ORIGIN, first_row, ids())


def properties(row: EncodedRows, index: int) -> dict[str, str]:
    return parse_properties(row.properties[index].as_py())


def test_the_id_of_a_row_is_that_of_its_batch() -> None:
    rows = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "id": ["a", "b"]})
    columns = MessageColumns(body=0, id=1)
    named = encode_rows(rows, columns, ORIGIN, 0, None)
    other = encode_rows(rows, columns, Origin("query-1", 7, 4), 0, None)
    later = encode_rows(rows, columns, Origin("query-1", 8, 3), 0, None)
    assert properties(named, 1)["UNIQ_KEY"] == named.given_id(1)
    assert named.given_id(1).endswith("-b")
    assert properties(named, 1)["PENSTOCK_ROW"] == "query-1/7/id/b"
    assert other.given_id(1) == named.given_id(1), "it may be in any partition"
    assert later.given_id(1) != named.given_id(1)
    assert encode_rows(rows, columns, None, 0, None).given_id(1) == "b"


PRINTABLE = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), max_size=12)
FILLED = PRINTABLE.filter(bool)
OWN_KEYS = st.text("abcxyz-", min_size=1, max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=80),
            "keys": st.none() | st.lists(st.text("abc123", min_size=1, max_size=5), max_size=3),
            "tags": st.none() | PRINTABLE,
            "properties": st.none()
            | st.dictionaries(OWN_KEYS, FILLED, max_size=3).map(lambda d: list(d.items())),
            "sharding_key": st.none() | PRINTABLE,
        }
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(0, 10**9))
def test_every_row_is_the_message_it_says(rows: list[dict[str, object]], first: int) -> None:
    out = encoded(rows, first)
    body = b"".join(item.as_py() for item in out.items)
    items = decode_batch(body)
    assert encode_batch(items) == body
    assert [item.body for item in items] == [row["body"] for row in rows]
    for number, (row, item) in enumerate(zip(rows, items, strict=True)):
        found = parse_properties(item.properties)
        own = dict(row["properties"] or ())  # type: ignore[call-overload]
        expected = {
            **own,
            "PENSTOCK_ROW": f"query-1/7/3/{first + number}",
            "UNIQ_KEY": found["UNIQ_KEY"],
        }
        if row["tags"]:
            expected["TAGS"] = row["tags"]
        if row["keys"]:
            expected["KEYS"] = " ".join(row["keys"])  # type: ignore[arg-type]
        if row["sharding_key"]:
            expected["__SHARDINGKEY"] = row["sharding_key"]
        assert found == expected
        assert len(found["UNIQ_KEY"]) == 32


def test_the_runs_of_a_batch_lie_side_by_side_and_miss_no_row() -> None:
    out = encoded([{"body": b"x" * size} for size in (10, 500, 3, 3, 3, 900, 1)])
    runs = list(cut(out.items, 400))
    assert runs[0][0] == 0
    assert runs[-1][1] == 7
    assert [end for _, end, _ in runs[:-1]] == [start for start, _, _ in runs[1:]]
    assert any(len(data) > 400 for _, _, data in runs), "a row longer than that goes alone"
    bodies = [item.body for _, _, data in runs for item in decode_batch(bytes(data))]
    assert [len(body) for body in bodies] == [10, 500, 3, 3, 3, 900, 1]
    assert all(end - start == 1 or len(data) <= 400 for start, end, data in runs)


def test_rows_taken_out_of_order_and_slices_are_still_messages() -> None:
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"bb", b"ccc", b"dddd"]})
    out = encode_rows(rows.slice(1), MessageColumns(body=0), ORIGIN, 1, ids())
    taken = out.take(pa.array([2, 0]).to_numpy())
    (_, _, data), *rest = cut(taken.items, 10_000)
    assert not rest
    assert [item.body for item in decode_batch(bytes(data))] == [b"dddd", b"bb"]


def test_ids_are_unique_and_go_on_past_sixteen_bits() -> None:
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 70_000, pa.binary())})
    counter = ids()
    first = encode_rows(rows, MessageColumns(body=0), ORIGIN, 0, counter)
    second = encode_rows(rows, MessageColumns(body=0), ORIGIN, 70_000, counter)
    seen = {properties(part, row)["UNIQ_KEY"] for part in (first, second) for row in range(70_000)}
    assert len(seen) == 140_000


def test_without_ids_a_message_has_its_brokers_only() -> None:
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b"]})
    out = encode_rows(rows, MessageColumns(body=0), ORIGIN, 0, None)
    assert all("UNIQ_KEY" not in properties(out, row) for row in range(2))
    assert properties(out, 1)["PENSTOCK_ROW"] == "query-1/7/3/1"


def test_a_delay_keeps_a_row_out_of_batches() -> None:
    out = encoded([{"body": b"a"}, {"body": b"b", "delay": "10s"}, {"body": b"c", "delay": ""}])
    assert out.delayed is not None
    assert out.delayed.tolist() == [False, True, False]
    assert [properties(out, row).get("DELAY") for row in range(3)] == [None, "3", None]


def test_a_timer_among_the_properties_keeps_a_row_out_of_batches() -> None:
    out = encoded([{"body": b"a", "properties": [("TIMER_DELAY_SEC", "5")]}, {"body": b"b"}])
    assert out.delayed is not None
    assert out.delayed.tolist() == [True, False]


def test_the_systems_own_properties_of_a_map_are_not_sent_on() -> None:
    out = encoded(
        [
            {
                "body": b"a",
                "tags": "new",
                "properties": [
                    ("UNIQ_KEY", "OLD"),
                    ("TAGS", "old"),
                    ("MIN_OFFSET", "1"),
                    ("PENSTOCK_ROW", "99"),
                    ("colour", "red"),
                ],
            },
            {"body": b"b", "properties": [("WAIT", "false")]},
            {"body": b"c", "properties": [("a", "1"), ("DELAY", "3"), ("b", "2")]},
        ]
    )
    first, second, third = (properties(out, row) for row in range(3))
    assert first["TAGS"] == "new"
    assert first["UNIQ_KEY"] != "OLD"
    assert first["PENSTOCK_ROW"] == "query-1/7/3/0"
    assert first["colour"] == "red"
    assert "MIN_OFFSET" not in first
    assert "WAIT" not in second
    assert (third["a"], third["b"], third.get("DELAY")) == ("1", "2", None)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_keys_may_be_lists_that_can_hold_no_null(
    list_of: Callable[[pa.Field], pa.DataType], text: pa.DataType
) -> None:
    # What Spark makes of array('a', 'b'), and with large types.
    kind = list_of(pa.field("element", text, nullable=False))
    rows = pa.RecordBatch.from_pylist(
        [{"body": b"a", "keys": ["k1", "k2"]}, {"body": b"b", "keys": None}],
        pa.schema([("body", pa.binary()), ("keys", kind)]),
    )
    out = encode_rows(rows, MessageColumns(body=0, keys=1), ORIGIN, 0, ids())
    assert [properties(out, row).get("KEYS") for row in range(2)] == ["k1 k2", None]


def test_tags_and_keys_of_a_map_count_where_no_column_says_them() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"body": b"a", "properties": [("TAGS", "t"), ("KEYS", "k1 k2")]}],
        pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))]),
    )
    out = encode_rows(rows, MessageColumns(body=0, properties=1), ORIGIN, 0, ids())
    assert properties(out, 0)["TAGS"] == "t"
    assert properties(out, 0)["KEYS"] == "k1 k2"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"body": None}, "null"),
        ({"body": b""}, "empty"),
        ({"body": b"x" * (4 * 1024 * 1024 + 1)}, "4194305 bytes"),
        ({"body": b"x", "tags": "a\x02b"}, "TAGS"),
        ({"body": b"x", "keys": ["a", "b\x00"]}, "KEYS"),
        ({"body": b"x", "properties": [("k", "")]}, "'k'"),
        ({"body": b"x", "properties": [("k", None)]}, "'k'"),
        ({"body": b"x", "properties": [("k\x01", "v")]}, "k\\x01"),
        ({"body": b"x", "properties": [("k", "v" * 40_000)]}, "bytes"),
        ({"body": b"x", "delay": "7s"}, "7s"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(row: dict[str, object], words: str) -> None:
    with pytest.raises(IllegalMessage) as caught:
        encoded([{"body": b"fine"}, row], first_row=100)
    assert words in str(caught.value)
    assert "row 101 of partition 3" in str(caught.value)


def test_more_bytes_than_arrow_can_join_are_encoded_in_halves() -> None:
    # Zeros that are never read take no memory.
    ends = pa.py_buffer(np.arange(0, 301 << 20, 3 << 20, dtype=np.int32))
    bodies = pa.Array.from_buffers(pa.binary(), 100, [None, ends, pa.py_buffer(bytes(300 << 20))])
    parts = list(halves(pa.RecordBatch.from_pydict({"body": bodies})))
    assert len(parts) == 2
    assert sum(part.num_rows for part in parts) == 100


@settings(max_examples=50, deadline=None)
@given(
    bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20),
    tag=st.none() | st.text("abc", min_size=1, max_size=5),
)
def test_a_first_id_is_the_last_property_of_the_first_message_alone(
    bodies: list[bytes], tag: str | None
) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"body": bodies, "tags": pa.array([tag] * len(bodies), pa.string())}
    )
    items = encode_rows(rows, MessageColumns(body=0, tags=1), ORIGIN, 0, None).items
    ((_, _, body),) = cut(items, 1 << 20)
    plain = decode_batch(bytes(body))
    first = plain[0]._replace(properties=plain[0].properties + b"UNIQ_KEY\x01A1\x02")
    assert b"".join(with_first_id(body, "A1")) == encode_batch([first, *plain[1:]])
