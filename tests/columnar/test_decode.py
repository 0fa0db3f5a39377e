"""Record batches against ``messages_from_pull``, which decodes the same records one by one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.decode import BATCH_BYTES, BATCH_ROWS, UnusualRecords, Wanted, to_batches
from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import ProtocolError
from penstock.model.hosts import pack_host
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import encode_record
from penstock.protocol.records.compression import Compression, compress
from penstock.protocol.records.pulled import messages_from_pull
from penstock.protocol.records.sys_flags import SysFlag

_HOST = pack_host("10.0.0.5", 10911)
_HOST_V6 = pack_host("2001:db8::1", 10911)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(
    offset: int,
    body: bytes = b"body",
    properties: bytes = b"TAGS\x01a\x02",
    *,
    topic: bytes = b"orders",
    sys_flag: int = 0,
    born_host: bytes = _HOST,
    store_host: bytes = _HOST,
    born_timestamp: int = 1_794_793_031_525,
) -> bytes:
    return encode_record(
        topic,
        body,
        properties,
        queue_id=3,
        queue_offset=offset,
        log_position=offset * 1000,
        store_timestamp=1_794_793_031_530 + offset,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_host=store_host,
        sys_flag=sys_flag,
        reconsume_times=offset % 3,
    )


def rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    found = [row for batch in batches for row in batch.to_pylist()]
    for row in found:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return found


def moment(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(max(millis, -62135596800000), 253402300799999))


def expected(records: bytes) -> list[dict[str, object]]:
    """What the client's decoder makes of the same bytes."""
    return [
        {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue_id": message.queue.queue_id,
            "offset": message.queue_offset,
            "msg_id": message.msg_id,
            "keys": list(message.keys) if "KEYS" in message.properties else None,
            "tags": message.tag,
            "body": message.body,
            "properties": message.properties,
            "born_timestamp": moment(message.born_timestamp),
            "store_timestamp": moment(message.store_timestamp),
            "reconsume_times": message.reconsume_times,
            "born_host": message.born_host,
            "store_host": message.store_host,
        }
        for message in messages_from_pull(records, "broker-a", check_crc=True)
    ]


def decode(records: bytes, **wanted: object) -> list[dict[str, object]]:
    batches = to_batches(records, broker="broker-a", wanted=Wanted(**wanted))  # type: ignore[arg-type]
    return rows(list(batches))


def check(records: bytes) -> None:
    """All columns are what the client would get; the flags are as they are stored."""
    found = decode(records)
    for row in found:
        del row["sys_flag"]
    assert found == expected(records)


def test_every_kind_of_record_gives_what_the_client_gets() -> None:
    large = random.Random(1).randbytes(5000)
    check(
        b"".join(
            [
                record(0),
                record(1, b"", b""),
                record(2, properties=b"UNIQ_KEY\x017F00\x02KEYS\x01a b\x02TAGS\x01t\x02"),
                record(3, compress(large), sys_flag=Compression.ZLIB.sys_flag),
                record(4, born_host=_HOST_V6),
                record(5, store_host=_HOST_V6, properties="KEYS\x01schlüssel\x02".encode()),
                record(6, born_host=_HOST_V6, store_host=_HOST_V6, topic=b"t" * 200),
                record(7, topic="straße".encode(), properties=b"TAGS\x01last\x01wins"),
                record(8, large, topic=b"%RETRY%billing"),
                record(9, born_host=pack_host("10.0.0.6", 1), store_host=pack_host("1.2.3.4", 2)),
            ]
        )
    )


def test_each_record_has_its_own_hosts() -> None:
    hosts = [pack_host(f"10.0.{number % 3}.5", 10911 + number % 2) for number in range(10)]
    check(b"".join(record(number, born_host=host) for number, host in enumerate(hosts)))
    check(b"".join(record(number, store_host=host) for number, host in enumerate(hosts)))
    check(b"".join(map(record, range(10))))


@given(
    st.lists(
        st.binary(max_size=40)
        | st.text("ab\x01\x02 KEYS", max_size=20).map(str.encode)
        | st.lists(
            st.tuples(
                st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "customer-id", "customer-no"]),
                st.text("x \u00e4\u3000", max_size=4),
            ),
            max_size=4,
        ).map(lambda pairs: "".join(f"{k}\x01{v}\x02" for k, v in pairs).encode()),
        max_size=8,
    )
)
def test_any_properties_parse_as_the_client_parses_them(properties: list[bytes]) -> None:
    check(b"".join(record(offset, properties=text) for offset, text in enumerate(properties)))


def test_many_different_keys_do_not_confuse_each_other() -> None:
    texts = ["".join(f"key-{n % 97}-{n}\x01{n}\x02" for n in range(i, i + 5)) for i in range(200)]
    texts.append("twice\x011\x02twice\x012\x02")
    check(b"".join(record(i, properties=text.encode()) for i, text in enumerate(texts)))


@pytest.mark.parametrize(
    "text",
    [
        "KEYS\x01a{n}\x02TAGS\x01t{n}\x02UNIQ_KEY\x01id{n}\x02",
        "TAGS\x01first\x02x\x011\x02TAGS\x01t{n}\x02",
        "customer-{n}0\x01a\x02customer-{n}1\x01b\x02",
        "customer-1{n}-name\x01a\x02customer-1{n}-name\x01b\x02KEYS\x01k{n}\x02",
        "x\x01{n}\x02",
        "PENSTOCK_QUERY\x01q\x02PENSTOCK_ROW\x01{n}\x02schlüssel\x01{n}\x02",
        "customer-{n}-name\x01a\x02",
        "customer-number-{n}-of-all\x01a\x02",
    ],
)
def test_rows_with_the_same_keys_in_the_same_order(text: str) -> None:
    texts = [text.format(n=number).encode() for number in range(6)]
    check(b"".join(record(offset, properties=text) for offset, text in enumerate(texts)))
    # One that has others, or none, among them.
    texts[3:3] = [b"", b"TAGS\x01other\x02KEYS\x01other\x02"]
    check(b"".join(record(offset, properties=text) for offset, text in enumerate(texts)))


def test_a_batch_has_the_documented_schema() -> None:
    (batch,) = to_batches(record(0), broker="b", wanted=Wanted())
    assert batch.schema == arrow_schema(ALL)
    batch.validate(full=True)


def test_only_wanted_columns_are_there_in_the_wanted_order() -> None:
    (batch,) = to_batches(record(7), broker="b", wanted=Wanted(columns=("body", "offset")))
    assert batch.to_pydict() == {"body": [b"body"], "offset": [7]}


def test_offsets_outside_of_the_range_are_left_out() -> None:
    records = b"".join(record(offset) for offset in range(10))
    wanted = Wanted(columns=("offset",))
    batches = to_batches(records, broker="b", wanted=wanted, lo=3, hi=6)
    assert [row["offset"] for row in rows(list(batches))] == [3, 4, 5]


def test_records_are_taken_from_their_positions_and_the_rest_is_not_looked_at() -> None:
    parts = [b"rubbish", record(0), b"more rubbish", record(1, b"second"), b"end"]
    ends = np.cumsum([len(part) for part in parts])
    batches = to_batches(
        b"".join(parts),
        broker="b",
        wanted=Wanted(columns=("offset", "body")),
        positions=np.array([ends[0], ends[2]]),
    )
    assert rows(list(batches)) == [{"offset": 0, "body": b"body"}, {"offset": 1, "body": b"second"}]


@pytest.mark.parametrize("lengths", [(7,), (0, 300, 7)])
def test_records_may_be_taken_in_any_order(lengths: tuple[int, ...]) -> None:
    made = [
        record(n, bytes([65 + n]) * lengths[n % len(lengths)], b"KEYS\x01k%d\x02" % n)
        for n in range(20)
    ]
    starts = np.cumsum([0, *map(len, made[:-1])])
    order = np.array(random.Random(5).sample(range(20), 20))
    batches = to_batches(
        b"".join(made), broker="broker-a", wanted=Wanted(), positions=starts[order], offsets=order
    )
    found = rows(list(batches))
    in_order = decode(b"".join(made))
    assert found == [in_order[n] for n in order]


def test_records_with_a_refused_flag_are_not_decoded() -> None:
    made = record(0) + record(1, b"?", sys_flag=SysFlag.COMPRESSED)
    with pytest.raises(UnusualRecords):
        list(to_batches(made, broker="broker-a", wanted=Wanted(), refused_flags=SysFlag.COMPRESSED))


def test_tags_are_compared_as_text() -> None:
    # Aa and BB have the same hash in Java.
    texts = [b"TAGS\x01Aa\x02", b"TAGS\x01BB\x02", b"", b"TAGS\x01Aa\x02"]
    records = b"".join(record(offset, properties=text) for offset, text in enumerate(texts))
    found = decode(records, columns=("offset",), tags=frozenset({"Aa", "other"}))
    assert [row["offset"] for row in found] == [0, 3]


def test_a_message_passes_with_any_of_the_keys() -> None:
    texts = [b"KEYS\x01a b\x02", b"KEYS\x01c\x02", b"", b"KEYS\x01 \x02", b"KEYS\x01b c\x02"]
    records = b"".join(record(offset, properties=text) for offset, text in enumerate(texts))
    found = decode(records, columns=("offset",), keys=frozenset({"b", "z"}))
    assert [row["offset"] for row in found] == [0, 4]


def test_both_filters_must_let_a_message_through() -> None:
    texts = [b"KEYS\x01a\x02TAGS\x01t\x02", b"KEYS\x01a\x02", b"TAGS\x01t\x02"]
    records = b"".join(record(offset, properties=text) for offset, text in enumerate(texts))
    found = decode(records, columns=("offset",), keys=frozenset({"a"}), tags=frozenset({"t"}))
    assert [row["offset"] for row in found] == [0]


def test_without_properties_the_column_is_null_but_tags_are_not() -> None:
    found = decode(record(0), columns=("properties", "tags"), include_properties=False)
    assert found == [{"properties": None, "tags": "a"}]


def test_a_body_that_does_not_inflate_is_null_and_its_flag_tells() -> None:
    flag = Compression.ZLIB.sys_flag
    records = record(0, b"no zlib", sys_flag=flag) + record(1)
    found = decode(records, columns=("body", "sys_flag"))
    assert found == [{"body": None, "sys_flag": flag}, {"body": b"body", "sys_flag": 0}]


def test_bodies_that_grow_when_inflated_are_spread_over_batches() -> None:
    body = bytes(BATCH_BYTES // 4)
    stored = compress(body)
    flag = Compression.ZLIB.sys_flag
    records = b"".join(record(offset, stored, sys_flag=flag) for offset in range(9)) + record(9)
    batches = list(to_batches(records, broker="b", wanted=Wanted(columns=("offset", "body"))))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert [row["offset"] for row in rows(batches)] == list(range(10))
    assert [row["body"] == body for row in rows(batches)] == [True] * 9 + [False]


def test_long_runs_are_cut_by_rows_and_by_bytes() -> None:
    small = b"".join(record(offset) for offset in range(BATCH_ROWS + 1))
    sizes = [b.num_rows for b in to_batches(small, broker="b", wanted=Wanted(columns=("offset",)))]
    assert sizes == [BATCH_ROWS, 1]
    large = b"".join(record(offset, bytes(BATCH_BYTES // 2)) for offset in range(3))
    sizes = [b.num_rows for b in to_batches(large, broker="b", wanted=Wanted(columns=("offset",)))]
    assert sizes == [1, 1, 1]


def test_an_inner_batch_is_as_many_rows_as_it_has_messages() -> None:
    inner = encode_batch([BatchItem(b"one", b"TAGS\x01x\x02"), BatchItem(b"two", b"TAGS\x01y\x02")])
    flag = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    records = record(0) + record(1, inner, sys_flag=flag) + record(3)
    check(records)
    found = decode(records, columns=("offset",), tags=frozenset({"y"}))
    assert [row["offset"] for row in found] == [2]


def test_times_out_of_range_become_the_last_in_range() -> None:
    found = decode(record(0, born_timestamp=(1 << 63) - 1), columns=("born_timestamp",))
    assert found[0]["born_timestamp"] == datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)


def test_a_body_that_looks_like_a_record_is_a_body() -> None:
    inner = record(7)
    check(record(0, inner) + record(1) + record(2, inner[4:8] * 3))


def test_no_records_are_no_batches() -> None:
    assert decode(b"") == []


@given(st.data())
def test_damaged_records_are_refused_and_never_read_beyond(data: st.DataObject) -> None:
    records = bytearray(record(0) + record(1, b"x" * 30) + record(2, topic=b"t" * 130))
    for _ in range(data.draw(st.integers(1, 4))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(records[: data.draw(st.integers(0, len(records)))])
    try:
        messages_from_pull(cut, "broker-a", check_crc=True)
    except ProtocolError:
        # Not everything wrong concerns a batch (a body that does not inflate is null there), but
        # nothing else than this error may come of it.
        with contextlib.suppress(ProtocolError):
            decode(cut)
    else:
        check(cut)
