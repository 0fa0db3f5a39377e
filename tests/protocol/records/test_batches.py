"""Batch bodies."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalMessage, ProtocolError
from penstock.model.properties import UNIQUE_KEY, value_of
from penstock.model.record_layout import MIN_ITEM_BYTES
from penstock.protocol.records.batches import BatchItem, batch_values, decode_batch, encode_batch

V9 = bytes.fromhex(
    "0000001f0000000000000000000000000000000161000854414753015431020000001c00000000000000000000"
    "000100000002626200044b015602"
)
TWO = [BatchItem(b"a", b"TAGS\x01T1\x02", 0), BatchItem(b"bb", b"K\x01V\x02", 1)]

items = st.builds(
    BatchItem,
    body=st.binary(max_size=60),
    properties=st.binary(max_size=60),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
)


def test_the_published_batch_is_read_and_written() -> None:
    assert decode_batch(V9) == TWO
    assert encode_batch(TWO) == V9


@given(st.lists(items, max_size=6))
def test_what_is_written_is_read(several: list[BatchItem]) -> None:
    data = encode_batch(several)
    assert decode_batch(data) == several
    assert len(data) == sum(MIN_ITEM_BYTES + len(i.body) + len(i.properties) for i in several)


def test_magic_and_checksum_are_ignored() -> None:
    other = bytearray(V9)
    struct.pack_into(">II", other, 4, 0xDAA320A7, 0x12345678)
    assert decode_batch(bytes(other)) == TWO


@pytest.mark.parametrize("length", range(1, len(V9)))
def test_a_batch_cut_between_messages_is_shorter_and_elsewhere_refused(length: int) -> None:
    if length == 0x1F:
        assert decode_batch(V9[:length]) == TWO[:1]
    else:
        with pytest.raises(ProtocolError, match="of a batch"):
            decode_batch(V9[:length])


@pytest.mark.parametrize("offset", [0, 16])
@pytest.mark.parametrize("wrong", [-(1 << 31), -1, 0, 9, 21, 1 << 20, (1 << 31) - 1])
def test_wrong_lengths_are_refused(offset: int, wrong: int) -> None:
    damaged = bytearray(V9)
    struct.pack_into(">i", damaged, offset, wrong)
    with pytest.raises(ProtocolError, match="message 0 at 0 of a batch"):
        decode_batch(bytes(damaged))


@pytest.mark.parametrize("wrong", [-1, 0, 7, 9, 32767])
def test_wrong_property_lengths_are_refused(wrong: int) -> None:
    damaged = bytearray(V9)
    struct.pack_into(">h", damaged, 21, wrong)
    with pytest.raises(ProtocolError, match="expected 8, to the end of the message"):
        decode_batch(bytes(damaged))


@given(st.data(), st.lists(items, min_size=1, max_size=3))
def test_mutated_batches_raise_protocol_errors_and_nothing_else(
    data: st.DataObject, several: list[BatchItem]
) -> None:
    body = bytearray(encode_batch(several))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_batch(bytes(body))
    except ProtocolError:
        return
    assert len(encode_batch(found)) == len(body)


@given(st.binary(max_size=200))
def test_random_bytes_raise_protocol_errors_and_nothing_else(data: bytes) -> None:
    try:
        assert len(decode_batch(data)) <= len(data) // MIN_ITEM_BYTES
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        (BatchItem(b"", b"p" * 32768), "32768 bytes in message 1 of a batch"),
        (BatchItem(b"", b"", 1 << 31), "flag 2147483648"),
    ],
)
def test_what_no_batch_can_hold_is_refused(item: BatchItem, complaint: str) -> None:
    with pytest.raises(IllegalMessage, match=complaint):
        encode_batch([BatchItem(b"fine"), item])


@given(
    st.lists(
        st.tuples(items, st.sampled_from([b"", b"UNIQ_KEY\x01A", b"UNIQ_KEY\x01BC\x02", b"\x02"])),
        max_size=6,
    )
)
def test_values_of_a_batch_are_those_of_its_messages(
    several: list[tuple[BatchItem, bytes]],
) -> None:
    made = [item._replace(properties=item.properties + more) for item, more in several]
    expected = [value_of(item.properties, UNIQUE_KEY) for item in made]
    assert batch_values(encode_batch(made), UNIQUE_KEY) == expected


@given(st.lists(items, min_size=1, max_size=4), st.data())
def test_values_of_a_damaged_batch_are_refused_or_within_it(
    several: list[BatchItem], data: st.DataObject
) -> None:
    body = bytearray(encode_batch(several))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = batch_values(cut, UNIQUE_KEY)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode_batch(cut)
        return
    # Only the length of properties is left to the readers after it.
    with contextlib.suppress(ProtocolError):
        assert found == [value_of(item.properties, UNIQUE_KEY) for item in decode_batch(cut)]
