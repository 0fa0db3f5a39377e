"""Stored records: the published vectors, round trips, and bytes that are no record."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalMessage, InvalidArgument, ProtocolError
from penstock.model.hosts import pack_host, parse_host, unpack_host
from penstock.model.record_layout import BLANK_MAGIC, HEAD_FIELDS, MAGIC_V1, MAGIC_V2
from penstock.protocol.records.codec import (
    Record,
    body_crc,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    peek_record,
    record_size,
)
from penstock.protocol.records.sys_flags import SysFlag

V6 = bytes.fromhex(
    "0000009ddaa320a777d189820000000100000000000000000000002a0000000000000400000000000000018bcfe5"
    "68007f0000010000d4310000018bcfe5687b0a00000500002a9f0000000000000000000000000000000548656c6c"
    "6f09546f70696354657374003454414753015461674102554e49515f4b4559013746303030303031303030313030"
    "3030303030303030303030303041303030"
    "3002"
)
V7 = bytes.fromhex(
    "00000086daa320a74bf43926000000000000000000000000000000000000000000000000000000300000018bcfe5"
    "680000000000000000000000000000000001000000010000018bcfe5680120010db8000000000000000000000001"
    "00002a9f0000000000000000000000000000000931323334353637383902543600084b455953016b3102"
)
V8 = bytes.fromhex(
    "000000e1daa320ab0cdc1683000000000000000000000000000000050000000000001000000000000000018bcfe5"
    "68007f000001000000010000018bcfe568017f00000100002a9f00000001000000000000000000000001780080"
    "25524554525925" + "61" * 121 + "000441016202"
)
TIME = 1700000000000
HOST_4 = pack_host("127.0.0.1", 54321)
HOST_6 = pack_host("2001:db8::1", 10911)


def encode(record: Record) -> bytes:
    """The record written again from its fields."""
    return encode_record(
        record.topic.encode(),
        record.body,
        record.properties,
        record.queue_id,
        record.queue_offset,
        record.log_position,
        record.store_timestamp,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


@dataclasses.dataclass(frozen=True)
class Draft:
    """Everything ``encode_record`` takes, in its order."""

    topic: bytes
    body: bytes
    properties: bytes
    queue_id: int
    queue_offset: int
    log_position: int
    store_timestamp: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_transaction_offset: int

    def encode(self) -> bytes:
        return encode_record(*(getattr(self, f.name) for f in dataclasses.fields(self)))


drafts = st.builds(
    Draft,
    topic=st.text(max_size=80).map(str.encode),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=200),
    queue_id=int32,
    queue_offset=int64,
    log_position=int64,
    store_timestamp=int64,
    born_timestamp=int64,
    born_host=hosts,
    store_host=hosts,
    flag=int32,
    sys_flag=int32,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


def test_a_record_has_the_fields_of_the_layout() -> None:
    head = [name for name in HEAD_FIELDS if name != "body_length"]
    assert Record._fields == (*head, "body", "topic", "properties")


def test_the_version_1_vector_decodes_to_its_fields() -> None:
    record = decode_record(V6, check_crc=True)
    assert record == Record(
        size=157,
        magic=MAGIC_V1,
        body_crc=0x77D18982,
        queue_id=1,
        flag=0,
        queue_offset=42,
        log_position=1024,
        sys_flag=0,
        born_timestamp=TIME,
        born_host=HOST_4,
        store_timestamp=TIME + 123,
        store_host=pack_host("10.0.0.5", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"Hello",
        topic="TopicTest",
        properties=b"TAGS\x01TagA\x02UNIQ_KEY\x017F0000010001000000000000000A0000\x02",
    )


def test_the_ipv6_vector_has_long_hosts_and_a_masked_checksum() -> None:
    record = decode_record(V7, check_crc=True)
    assert (record.topic, record.body, record.properties) == ("T6", b"123456789", b"KEYS\x01k1\x02")
    assert record.body_crc == 0x4BF43926 == zlib.crc32(record.body) & 0x7FFF_FFFF
    assert unpack_host(record.born_host) == "[::1]:1"
    assert unpack_host(record.store_host) == "[2001:db8::1]:10911"


def test_the_version_2_vector_has_a_topic_of_128_bytes() -> None:
    record = decode_record(V8, check_crc=True)
    assert record.magic == MAGIC_V2
    assert record.topic == "%RETRY%" + "a" * 121
    assert (record.queue_offset, record.log_position, record.reconsume_times) == (5, 4096, 1)
    assert record.properties == b"A\x01b\x02"


@pytest.mark.parametrize("vector", [V6, V7, V8])
def test_vectors_are_written_byte_for_byte(vector: bytes) -> None:
    assert encode(decode_record(vector)) == vector


@given(drafts)
def test_what_is_written_is_read(draft: Draft) -> None:
    data = draft.encode()
    record = decode_record(data, check_crc=True)
    bits = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    expected = dataclasses.asdict(draft)
    expected.pop("sys_flag")
    assert {name: getattr(record, name) for name in expected} == {
        **expected,
        "topic": draft.topic.decode(),
    }
    assert record.sys_flag & ~bits == draft.sys_flag & ~bits
    assert bool(record.sys_flag & SysFlag.BORN_HOST_V6) is (len(draft.born_host) == 20)
    assert bool(record.sys_flag & SysFlag.STORE_HOST_V6) is (len(draft.store_host) == 20)
    assert record.magic == (MAGIC_V2 if len(draft.topic) > 127 else MAGIC_V1)
    assert encode(record) == data
    assert len(data) == record_size(
        len(draft.topic),
        len(draft.body),
        len(draft.properties),
        born_host_bytes=len(draft.born_host),
        store_host_bytes=len(draft.store_host),
    )


@given(st.lists(drafts, max_size=5), st.sampled_from([bytes, bytearray, memoryview]))
def test_records_that_follow_each_other_are_all_read(
    several: list[Draft], view: type[bytes] | type[bytearray] | type[memoryview]
) -> None:
    encoded = [draft.encode() for draft in several]
    records = decode_records(view(b"".join(encoded)), check_crc=True)
    assert [encode(record) for record in records] == encoded
    assert all(type(record.body) is bytes for record in records)


@given(drafts, st.integers(1, 40))
def test_a_record_is_read_in_the_middle_of_a_buffer(draft: Draft, before: int) -> None:
    data = draft.encode()
    assert decode_record(b"\xff" * before + data + b"\xff" * 9, before) == decode_record(data)


@given(st.data(), drafts)
def test_mutated_records_raise_protocol_errors_and_nothing_else(
    data: st.DataObject, draft: Draft
) -> None:
    encoded = bytearray(draft.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    for buffer in (bytes(encoded), cut):
        try:
            records = decode_records(buffer, check_crc=True)
        except ProtocolError:
            continue
        assert sum(record.size for record in records) == len(buffer)


@given(st.binary(max_size=400))
def test_random_bytes_raise_protocol_errors_and_nothing_else(data: bytes) -> None:
    for prefix in (b"", struct.pack(">iI", len(data) + 8, MAGIC_V1)):
        with contextlib.suppress(ProtocolError):
            decode_records(prefix + data)


@pytest.mark.parametrize("position", range(0, 157))
def test_a_record_cut_anywhere_is_refused(position: int) -> None:
    with pytest.raises(ProtocolError):
        decode_record(V6[:position])


# Offset of each length field in V6, its format, and what the field holds.
WRONG = [-(1 << 31), -1, 0, 1, 90, (1 << 31) - 1]
LENGTHS = [(0, ">i", 157), (84, ">i", 5), (93, ">b", 9), (103, ">h", 52)]


@pytest.mark.parametrize(("field", "wrong"), list(itertools.product(LENGTHS, WRONG)))
def test_a_wrong_length_is_refused_before_anything_is_copied(
    field: tuple[int, str, int], wrong: int
) -> None:
    offset, form, right = field
    bits = 8 * struct.calcsize(form)
    wrong = (wrong + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    if wrong == right:
        return
    damaged = bytearray(V6)
    struct.pack_into(form, damaged, offset, wrong)
    with pytest.raises(ProtocolError, match="expected"):
        decode_record(damaged)


def test_lengths_that_only_add_up_together_are_still_refused() -> None:
    damaged = bytearray(V6)
    struct.pack_into(">i", damaged, 84, 6)  # a byte of the topic's length becomes body
    with pytest.raises(ProtocolError, match="at 0"):
        decode_record(damaged)


def test_a_version_1_topic_longer_than_a_signed_byte_is_refused() -> None:
    long = encode_record(b"t" * 127, b"", b"p" * 9, 0, 0, 0, 0, 0, HOST_4, HOST_4)
    damaged = bytearray(long)
    damaged[88] = 128
    with pytest.raises(ProtocolError, match="version 1 topic of 128 bytes"):
        decode_record(damaged)


def test_a_version_2_record_with_a_negative_topic_length_is_refused() -> None:
    damaged = bytearray(V8)
    struct.pack_into(">h", damaged, 89, -1)
    with pytest.raises(ProtocolError, match="topic of -1 bytes"):
        decode_record(damaged)


def test_a_claimed_ipv6_host_without_room_for_it_is_refused() -> None:
    short = bytearray(encode_record(b"", b"", b"", 0, 0, 0, 0, 0, HOST_4, HOST_4))
    struct.pack_into(">i", short, 36, SysFlag.BORN_HOST_V6)
    with pytest.raises(ProtocolError, match="a head of 100 bytes"):
        decode_record(short)


def test_a_topic_that_is_not_utf8_is_refused() -> None:
    damaged = V6.replace(b"TopicTest", b"Topic\xffest")
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_record(damaged)


def test_a_changed_body_is_noticed_only_when_asked_for() -> None:
    damaged = V6.replace(b"Hello", b"Hullo")
    assert decode_record(damaged).body == b"Hullo"
    with pytest.raises(ProtocolError, match="0x77d18982, which the record states"):
        decode_record(damaged, check_crc=True)


def test_a_foreign_magic_is_named() -> None:
    damaged = bytearray(V6)
    struct.pack_into(">I", damaged, 4, 0xDEADBEEF)
    with pytest.raises(ProtocolError, match="magic 0xdeadbeef"):
        decode_record(damaged)


def test_blank_records_are_recognised_and_are_no_messages() -> None:
    blank = encode_blank(4000)
    assert peek_record(b"??" + blank, 2) == (4000, BLANK_MAGIC)
    with pytest.raises(ProtocolError, match="blank record"):
        decode_record(blank + bytes(100))


@pytest.mark.parametrize("position", [-1, 150, 1 << 40])
def test_a_position_outside_the_buffer_is_refused(position: int) -> None:
    with pytest.raises(ProtocolError, match="of a buffer of 157 bytes"):
        peek_record(V6, position)


def test_the_first_record_that_is_damaged_is_named_by_position() -> None:
    with pytest.raises(ProtocolError, match="at 157"):
        decode_records(V6 + b"garbage that is no record, and long enough to have a head")


def test_topics_up_to_127_bytes_make_version_1_records() -> None:
    for length, magic in ((127, MAGIC_V1), (128, MAGIC_V2)):
        data = encode_record(b"t" * length, b"", b"", 0, 0, 0, 0, 0, HOST_4, HOST_4)
        assert decode_record(data).magic == magic


def test_the_host_bits_follow_from_the_hosts() -> None:
    both = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    data = encode_record(b"t", b"", b"", 0, 0, 0, 0, 0, HOST_4, HOST_4, 0, both | 1)
    assert decode_record(data).sys_flag == 1
    data = encode_record(b"t", b"", b"", 0, 0, 0, 0, 0, HOST_4, HOST_6)
    assert decode_record(data).sys_flag == SysFlag.STORE_HOST_V6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"topic": b"t" * 32768}, "topic of 32768 bytes"),
        ({"properties": b"p" * 32768}, "properties take 32768 bytes"),
        ({"born_host": b"\x7f\0\0\1"}, "packed host '7f000001' of 4 bytes"),
        ({"store_host": b""}, "packed host"),
        ({"queue_id": 1 << 31}, "does not fit into a record"),
        ({"born_host": HOST_6, "flag": 1 << 40}, "does not fit into a record"),
        ({"queue_offset": 1 << 63}, "does not fit into a record"),
    ],
)
def test_what_no_record_can_hold_is_refused(change: dict[str, object], complaint: str) -> None:
    draft = Draft(b"t", b"", b"", 0, 0, 0, 0, 0, HOST_4, HOST_4, 0, 0, 0, 0)
    with pytest.raises(IllegalMessage, match=complaint):
        dataclasses.replace(draft, **change).encode()  # type: ignore[arg-type]


def test_the_checksum_has_no_top_bit() -> None:
    assert body_crc(b"123456789") == 0x4BF43926


@pytest.mark.parametrize(
    ("ip", "text"),
    [
        ("10.0.0.5", "10.0.0.5:10911"),
        ("2001:db8::1", "[2001:db8::1]:10911"),
        ("[2001:db8::1]", "[2001:db8::1]:10911"),
        ("::ffff:10.0.0.5", "10.0.0.5:10911"),
    ],
)
def test_hosts_are_packed_and_read_back(ip: str, text: str) -> None:
    packed = pack_host(ip, 10911)
    assert unpack_host(packed) == text
    assert parse_host(text) == packed


@pytest.mark.parametrize(("ip", "port"), [("localhost", 1), ("", 1), ("1.2.3.4", 65536)])
def test_hosts_that_are_none_are_refused(ip: str, port: int) -> None:
    with pytest.raises(InvalidArgument):
        pack_host(ip, port)


@pytest.mark.parametrize("text", ["10.0.0.5", "10.0.0.5:", "10.0.0.5:x", "", "10.0.0.5:\u0663"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_host(text)


def test_a_packed_host_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="packed host of 7 bytes"):
        unpack_host(b"1234567")
