"""The fast path of batches leaves the same store as the plain path."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.model.hosts import pack_host
from penstock.protocol.records.batches import BatchItem, decode_batch, encode_batch
from penstock.protocol.records.codec import decode_record
from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.bulk.batch_encoding import FEW, BatchHeader, encode_batch_records
from penstock.store.bulk.rows import cut_rows, pack_rows

HOST = pack_host("127.0.0.1", 10911)
DRAFT = Draft("orders", 2, b"", b"", 0, 0, 77, HOST, HOST, 0, 0)
PARTS = BatchHeader(b"orders", 2, 0, 77, HOST, HOST, 0, 0)
NOW = 1_700_000_000_000
PROPERTIES = st.sampled_from(
    [b"", b"a\x01b\x02", b"TAGS\x01t\x02", b"UNIQ_KEY\x01ID\x02", b"a\x01b\x02KEYS\x01k1 k2"]
)
ITEMS = st.lists(
    st.builds(BatchItem, st.binary(max_size=50), PROPERTIES, st.integers(-5, 5)),
    min_size=1,
    max_size=40,
)


def opened(path: Path, **config: object) -> MessageStore:
    store = MessageStore(path, StoreConfig(**config), time_ms=lambda: NOW)  # type: ignore[arg-type]
    store.open()
    return store


def everything(store: MessageStore) -> tuple[bytes, list[tuple[int, ...]]]:
    """The log, and what the queue says of it."""
    found = store.read("orders", 2, 0, max_count=10_000, max_bytes=1 << 30)
    return b"".join(map(bytes, found.slices)), [(found.count, found.next_offset)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ITEMS, min_size=1, max_size=4))
def test_a_batch_leaves_the_same_store_as_its_messages_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[BatchItem]]
) -> None:
    path = tmp_path_factory.mktemp("runs")
    short, long = opened(path / "short"), opened(path / "long")
    for items in batches:
        run = short.append_batch_body(DRAFT, encode_batch(items))
        appended = [
            long.append(DRAFT._replace(body=body, properties=properties, flag=flag))
            for body, properties, flag in items
        ]
        assert run is not None
        assert list(run.log_positions) == [one.log_position for one in appended]
        assert run.queue_offset == appended[0].queue_offset
        assert run.size == sum(one.size for one in appended)
        assert run.last == appended[-1]
        short.write()
        long.write()
    assert everything(short) == everything(long)
    assert short.max_position == long.max_position
    for key in ("ID", "k1", "k2"):
        found = [
            store.query("orders", key, begin_ms=0, end_ms=2 * NOW).slices for store in (short, long)
        ]
        assert list(map(bytes, found[0])) == list(map(bytes, found[1]))
    for store in (short, long):
        store.close()
    files = [
        {
            file.relative_to(path / name): file.read_bytes()
            for file in sorted((path / name / "consumequeue").rglob("*"))
            if file.is_file()
        }
        for name in ("short", "long")
    ]
    assert files[0] == files[1]


NAMES = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"row", b"XTAGS", b""])
VALUES = st.sampled_from(
    [
        b"",
        b"id-####",
        b"a-## b-##",
        b" #  ##",
        "\u00e9##".encode(),
        b"t",
        b"x" * 70 + b"##",
        b"##" + b"x" * 70,
        b"7F0000013A2218B4AAC20000000000##",
        b"FD00000000000000000000000000000253535FFD2B##532F2F20####",
        b"##-A29F40FE-76EB-4B1C-9C1F-D2A0E1B0C3",
        b"\x01#",
    ]
)
TEMPLATES = st.lists(st.tuples(NAMES, VALUES), max_size=4)


def filled(template: list[tuple[bytes, bytes]], number: int, *, ended: bool) -> bytes:
    """Properties in which runs of # are digits of ``number``, so that all have one length."""
    parts = [
        name + b"\x01" + re.sub(b"#+", lambda found: b"%0*d" % (len(found[0]), number), value)
        for name, value in template
    ]
    return b"\x02".join(parts) + (b"\x02" if ended else b"")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    TEMPLATES,
    st.booleans(),
    st.booleans(),
    # Up to 64 are cut and packed by one call, more are not.
    st.integers(FEW - 1, FEW + 20) | st.integers(63, 66),
    st.binary(max_size=3),
)
def test_batches_that_are_alike_leave_the_same_files_as_the_plain_path(
    tmp_path_factory: pytest.TempPathFactory,
    template: list[tuple[bytes, bytes]],
    ended: bool,
    has_one_length: bool,
    count: int,
    odd: bytes,
) -> None:
    path = tmp_path_factory.mktemp("runs")
    short, long = (
        opened(
            path / name,
            max_hash_slot_num=11,
            max_index_num=800,
            mapped_file_size_commit_log=1 << 16,
            mapped_file_size_consume_queue=2000,
        )
        for name in ("short", "long")
    )
    for start in (100, 200):
        items = [
            BatchItem(
                b"body" if has_one_length else b"b" * (number % 5),
                filled(template, number, ended=ended),
                3,
            )
            for number in range(start, start + count)
        ]
        if odd and b"\0" not in odd:
            # One property string of the same length that means something else.
            said = items[5].properties
            items[5] = items[5]._replace(properties=odd[: len(said)] + said[len(odd) :])
        assert short.append_batch_body(DRAFT, encode_batch(items)) is not None
        long.append_batch(DRAFT, items)
        # Without a publish in between, so that a run may be staged while another is left over.
        short.write_log()
        long.write()
    assert everything(short) == everything(long)
    short.close()
    long.close()
    for part in ("consumequeue", "index", "commitlog"):
        contents = [
            [
                file.read_bytes()
                for file in sorted((path / name / part).rglob("*"))
                if file.is_file()
            ]
            for name in ("short", "long")
        ]
        assert contents[0] == contents[1], part


def test_strings_of_one_length_that_mean_something_else_are_read_anew(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kinds = [b"KEYS\x01k%d\x02", b"WAIT\x01k%d\x02", b"KEYS\x01%d \x02", b"KEYS\x01k%d\x02"]
    for body, said in enumerate(kinds):
        items = [BatchItem(b"%d" % body, said % number) for number in range(FEW)]
        assert store.append_batch_body(DRAFT, encode_batch(items)) is not None
        store.write()
    found = {
        key: store.query("orders", key, begin_ms=0, end_ms=2 * NOW) for key in ("k3", "3", "k9")
    }
    bodies = {
        key: sorted(decode_record(bytes(one)).body for one in query.slices)
        for key, query in found.items()
    }
    assert bodies == {"k3": [b"0", b"3"], "3": [b"2"], "k9": []}
    store.close()


def test_waiters_are_notified_until_they_wait_no_longer(tmp_path: Path) -> None:
    store = opened(tmp_path)
    waiting = {("orders", 2)}
    arrived: list[tuple[int, int, bytes]] = []

    def listener(
        topic: str, queue: int, offset: int, code: int, time: int, properties: bytes
    ) -> None:
        arrived.append((offset, code, properties))
        if len(arrived) == 2:
            waiting.clear()

    store.on_arrival(listener, waiting)
    properties = [b"UNIQ_KEY\x01id-%03d\x02TAGS\x01t\x02" % number for number in range(FEW)]
    store.append_batch_body(DRAFT, encode_batch([BatchItem(b"b", said) for said in properties]))
    store.write()
    assert arrived == [(1, ord("t"), properties[0]), (2, ord("t"), properties[1])]
    store.close()


def test_a_batch_longer_than_a_queue_file_and_a_log_segment_is_read_back(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    items = [BatchItem(b"%d" % number, b"n\x01%d\x02" % number) for number in range(3000)]
    for start in range(0, 60_000, 3000):
        run = store.append_batch_body(DRAFT, encode_batch(items))
        assert run is not None
        assert run.queue_offset == start
        store.write()
    store.close()
    again = opened(tmp_path, mapped_file_size_commit_log=1 << 20)
    assert again.max_offset("orders", 2) == 60_000
    again.close()


def test_a_batch_is_seen_by_waiters_for_its_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    arrived: list[tuple[str, int, int]] = []
    store.on_arrival(
        lambda topic, queue, offset, code, time, properties: arrived.append((topic, queue, offset)),
        {("orders", 2)},
    )
    store.append_batch_body(DRAFT, encode_batch([BatchItem(b"a"), BatchItem(b"b")]))
    store.write()
    assert arrived == [("orders", 2, 1), ("orders", 2, 2)]
    store.close()


def test_a_batch_waits_for_the_disk_with_sync_flush(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    run = store.append_batch_body(DRAFT, encode_batch([BatchItem(b"a"), BatchItem(b"b")]))
    store.write()
    assert store.max_offset("orders", 2) == 0
    store.mark_flushed(store.flush())
    assert run is not None
    assert store.max_offset("orders", 2) == 2
    store.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 21,
        encode_batch([BatchItem(b"a")])[:-1],
        encode_batch([BatchItem(b"a")]) + b"x",
        encode_batch([BatchItem(b"abc", b"k\x01v\x02")]).replace(b"\x00\x04k", b"\x00\x03k"),
        encode_batch([BatchItem(b"a", b"k\x01\x00\x02")]),
    ],
)
def test_what_does_not_add_up_takes_the_plain_path(body: bytes) -> None:
    assert encode_batch_records(body, PARTS, 0, 0, NOW) is None


@pytest.mark.parametrize("width", [4, 5, 256])
@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 20])
@pytest.mark.parametrize("is_uniform", [True, False])
def test_one_wrong_bit_in_a_length_of_properties_is_refused_by_both_paths(
    width: int, count: int, is_uniform: bool
) -> None:
    properties = b"k\x01" + b"v" * (width - 3) + b"\x02"
    items = [BatchItem(b"b" * (3 if is_uniform else number), properties) for number in range(count)]
    body = encode_batch(items)
    assert encode_batch_records(body, PARTS, 0, 0, NOW) is not None
    for number in {0, count // 2, count - 1}:
        last = len(encode_batch(items[: number + 1])) - width - 1
        for bit in range(16):
            wrong = bytearray(body)
            wrong[last - bit // 8] ^= 1 << bit % 8
            assert encode_batch_records(bytes(wrong), PARTS, 0, 0, NOW) is None, (number, bit)
            with pytest.raises(ProtocolError, match=f"properties of .* for message {number} "):
                decode_batch(bytes(wrong))


@given(st.binary(max_size=200))
def test_no_bytes_break_it(body: bytes) -> None:
    made = encode_batch_records(body, PARTS, 0, 0, NOW)
    if made is not None:
        assert len(decode_batch(body)) == len(made[1].sizes)


def test_unusual_hosts_and_topics_take_the_plain_path() -> None:
    body = encode_batch([BatchItem(b"a")])
    assert encode_batch_records(body, PARTS, 0, 0, NOW) is not None
    assert encode_batch_records(body, PARTS._replace(born_host=bytes(20)), 0, 0, NOW) is None
    assert encode_batch_records(body, PARTS._replace(topic=b"t" * 200), 0, 0, NOW) is None


@pytest.mark.parametrize("count", [FEW - 1, FEW, 64, 65])
def test_a_property_that_batches_must_not_have_sends_them_to_the_plain_path(count: int) -> None:
    unless = (b"DELAY\x01", b"TIMER_DEL", b"TRAN_MSG\x01")
    usual = [b"UNIQ_KEY\x01%032X\x02LEVEL\x01MR\x02" % number for number in range(count)]
    assert encode_batch_records(batch_of(usual), PARTS, 0, 0, NOW, unless) is not None
    for mark in (b"DELAY\x013", b"TIMER_DELIVER_MS\x015", b"TRAN_MSG\x01true"):
        marked = [*usual[:-1], usual[-1][: -len(mark)] + mark]
        assert encode_batch_records(batch_of(marked), PARTS, 0, 0, NOW, unless) is None
        assert encode_batch_records(batch_of(marked), PARTS, 0, 0, NOW) is not None


def batch_of(properties: list[bytes]) -> bytes:
    return encode_batch([BatchItem(b"body", said) for said in properties])


@pytest.mark.parametrize("count", [1, 2, 64, 65, 600])
def test_rows_are_packed_and_cut_as_they_are_one_by_one(count: int) -> None:
    numbers, texts = range(count), [b"%04d" % number for number in range(count)]
    packed = pack_rows("i4sq", count, [0, b"", -7], {0: numbers, 1: texts})
    one_by_one = Struct(">i4sq")
    assert packed == b"".join(
        one_by_one.pack(number, text, -7) for number, text in zip(numbers, texts, strict=True)
    )
    assert cut_rows("2s2s", count, 2, b"".join(texts)) == [
        tuple(text[:2] for text in texts),
        tuple(text[2:] for text in texts),
    ]


def test_the_only_id_of_a_batch_is_indexed_if_all_messages_are_of_one_size(tmp_path: Path) -> None:
    store = opened(tmp_path)
    rest = BatchItem(b"body", b"other\x01value-0123\x02", 0)
    properties = b"UNIQ_KEY\x01" + b"A" * (len(rest.properties) - 10) + b"\x02"
    items = [BatchItem(b"body", properties, 0), *[rest] * (FEW * 2)]
    assert len({len(item.properties) for item in items}) == 1
    assert store.append_batch_body(DRAFT, encode_batch(items)) is not None
    store.write()
    key = properties[9:-1]
    assert len(store.query("orders", key.decode()).slices) == 1
    store.close()
