"""Batches of any content: the fast path finds the records, keys and tags that the plain path finds.

It works on the bytes alone, without a store, so that a run of minutes sees millions of messages.
`make soak` runs it for long.
"""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.model.hosts import pack_host
from penstock.model.properties import TAGS, value_of
from penstock.protocol.records.batches import BatchItem, decode_batch, encode_batch
from penstock.protocol.records.codec import encode_record
from penstock.store.bulk.batch_encoding import FEW, BatchHeader, EncodedBatch, encode_batch_records
from penstock.store.bulk.columnar_batch import read_batch_keys
from penstock.store.index_builder import message_keys
from penstock.store.key_hashes import TopicHash

HOST = pack_host("127.0.0.1", 10911)
HEADER = BatchHeader(b"orders", 2, 0, 77, HOST, HOST, 0, 0)
TOPIC = TopicHash(b"orders")
NOW = 1_700_000_000_000
NAMES = (b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"XKEYS", b"KEYS2", b"", b"K")
PIECES = (b"a", b"7F00", b" ", b"   ", b"\x01", b"\x02", "\u00e9".encode(), b"KEYS\x01", b"true")


def some_value(chance: random.Random) -> bytes:
    kind = chance.randrange(6)
    if kind == 0:
        return b" " * chance.randrange(1, 12)
    if kind == 1:
        return b"".join(chance.choice(PIECES) for _ in range(chance.randrange(4)))
    words = [b"#" * chance.randrange(1, 14) for _ in range(chance.randrange(1, 4))]
    return chance.choice((b" ", b"  ", b"-")).join(words)


def fill(template: bytes, chance: random.Random) -> bytes:
    """Each # becomes another character; mostly a harmless one."""
    letters = b"0123456789ABCDEF" if chance.randrange(8) else b"01 AB\x01\x02"
    return bytes(chance.choice(letters) if one == 0x23 else one for one in template)


def some_batch(chance: random.Random) -> list[BatchItem]:
    pairs = [(chance.choice(NAMES), some_value(chance)) for _ in range(chance.randrange(5))]
    template = b"\x02".join(name + b"\x01" + value for name, value in pairs)
    if chance.randrange(4):
        template += b"\x02"
    has_one_length = chance.randrange(4) > 0
    items = [
        BatchItem(
            b"b" * (6 if has_one_length else chance.randrange(9)),
            fill(template, chance),
            chance.choice((0, 3)) if not chance.randrange(8) else 0,
        )
        for _ in range(chance.choice((1, FEW - 1, FEW, FEW + 3, 20, 63, 64, 65)))
    ]
    if not chance.randrange(3):
        # One string of the same length that means something else.
        at = chance.randrange(len(items))
        properties = bytearray(items[at].properties)
        for _ in range(chance.randrange(1, 4)):
            if properties:
                properties[chance.randrange(len(properties))] = chance.choice(b"\x01\x02 aK")
        hidden = chance.choice((b"\x02KEYS\x01k", b"\x02TAGS\x01t", b"\x02UNIQ_KEY\x01u"))
        if len(properties) > len(hidden):
            start = chance.randrange(len(properties) - len(hidden))
            properties[start : start + len(hidden)] = hidden
        items[at] = items[at]._replace(properties=bytes(properties))
    if not chance.randrange(3):
        # As Spark's sink names a batch: by an id at the end of the first message's properties.
        pair = b"UNIQ_KEY\x01%b\x02" % fill(b"#" * chance.randrange(1, 33), chance)
        items[0] = items[0]._replace(properties=items[0].properties + pair)
    return items


def check(body: bytes) -> None:
    """Compare both paths for the body of a batch."""
    made = encode_batch_records(body, HEADER, 5, 1000, NOW)
    try:
        items = decode_batch(body)
    except ProtocolError:
        assert made is None
        return
    if made is None:
        return  # left to the plain path
    records, batch = made
    expected, position = [], 1000
    for offset, item in enumerate(items, 5):
        record = encode_record(
            b"orders", item.body, item.properties, 2, offset, position, NOW, 77, HOST, HOST,
            item.flag, 0, 0, 0,
        )  # fmt: skip
        expected.append(record)
        position += len(record)
    assert records == b"".join(expected)
    assert list(batch.properties) == [item.properties for item in items]
    assert list(batch.sizes) == [len(record) for record in expected]
    check_keys(batch, items)


def check_keys(batch: EncodedBatch, items: list[BatchItem]) -> None:
    found = read_batch_keys(batch, TOPIC)
    if found is None:
        return
    for number, item in enumerate(items):
        keys = message_keys(item.properties)
        if batch.first_id and not number:
            assert keys.pop(0) == batch.first_id
        assert found.keys_each == len(keys), (item.properties, keys)
        start = number * found.keys_each
        hashes = list(found.hashes[start : start + found.keys_each])
        assert hashes == [TOPIC.hash(key) for key in keys], item.properties
        assert found.tag == value_of(item.properties, TAGS)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_batch_is_read_as_its_messages_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        items = some_batch(chance)
        check(encode_batch(items))
        # The layout of one batch is tried first on the next of the same length.
        check(encode_batch([item._replace(body=b"other") for item in items]))
        body = bytearray(encode_batch(items))
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        check(bytes(body))


def test_blanks_instead_of_keys_do_not_hide_the_keys_of_the_next_batch() -> None:
    for value in (b" " * 9, b"key-00001", b" " * 9, b"key 00001", b"    key  "):
        items = [BatchItem(b"x", b"KEYS\x01%b\x02" % value) for _ in range(10)]
        made = encode_batch_records(encode_batch(items), HEADER, 5, 1000, NOW)
        assert made is not None
        check_keys(made[1], items)
        found = read_batch_keys(made[1], TOPIC)
        assert found is not None
        assert found.keys_each == len(value.split())


@pytest.mark.parametrize("common", [b"", b"K\x01v\x02", b"TAGS\x01t\x02KEYS\x01a b\x02"])
@pytest.mark.parametrize("lengths", [(4, 4), (4, 9)])
def test_an_id_of_the_first_message_alone_keeps_a_batch_on_the_fast_path(
    common: bytes, lengths: tuple[int, int]
) -> None:
    items = [BatchItem(b"x" * lengths[n % 2], common) for n in range(20)]
    items[0] = items[0]._replace(properties=common + b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02")
    made = encode_batch_records(encode_batch(items), HEADER, 5, 1000, NOW)
    assert made is not None
    assert made[1].first_id == b"A" * 32
    assert read_batch_keys(made[1], TOPIC) is not None
    check(encode_batch(items))


@pytest.mark.parametrize("wrong", [b"\0\x0a", b"\0\x0c", b"\1\x0b", b"\xff\xff"])
@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_message_with_another_length_of_properties_is_left_to_the_plain_path(
    wrong: bytes, at: int
) -> None:
    items = [BatchItem(b"body", b"KEYS\x01key-1\x02") for _ in range(10)]
    body = bytearray(encode_batch(items))
    size = len(body) // 10
    place = at * size + 20 + 4
    assert struct.unpack_from(">h", body, place) == (11,)
    body[place : place + 2] = wrong
    assert encode_batch_records(bytes(body), HEADER, 5, 1000, NOW) is None


def test_a_property_inside_the_column_of_a_value_is_noticed() -> None:
    plain = [BatchItem(b"x", b"UNIQ_KEY\x01id-%d\x02row\x01aaaaaaaa\x02" % n) for n in range(10)]
    odd = plain[3]._replace(properties=b"UNIQ_KEY\x01id-3\x02row\x01a\x02KEYS\x01b\x02")
    items = [*plain[:3], odd, *plain[4:]]
    for batch in (plain, items):
        made = encode_batch_records(encode_batch(batch), HEADER, 5, 1000, NOW)
        assert made is not None
        assert made[1].width == len(odd.properties)
        check_keys(made[1], batch)
    assert made is not None
    assert read_batch_keys(made[1], TOPIC) is None
