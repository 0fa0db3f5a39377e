"""Encoding and decoding of stored records, the content of a commit log and of a pull answer.

`model.record_layout` draws the layout.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from penstock.errors import IllegalMessage, ProtocolError
from penstock.model.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from penstock.model.properties import MAX_PROPERTIES_BYTES
from penstock.model.record_layout import (
    BLANK_MAGIC,
    BORN_HOST_V6,
    CRC_MASK,
    HEADS,
    HOST_BITS,
    HOST_SHIFT,
    MAGIC_V1,
    MAGIC_V2,
    MAX_TOPIC_BYTES,
    MAX_V1_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    PREFIX,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
    TOPIC_LENGTH_V2,
    head_struct,
)

Buffer = bytes | bytearray | memoryview

_SYS_FLAG = head_struct("sys_flag")
_pack_ipv4_head = HEADS[0].pack
_pack_properties_length = PROPERTIES_LENGTH.pack
_crc32 = zlib.crc32
_ONE_BYTE = [bytes((length,)) for length in range(MAX_V1_TOPIC_BYTES + 1)]


class Record(NamedTuple):
    """The fields of a record as they are stored, hosts packed and properties unparsed."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_position: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes


def body_crc(body: Buffer) -> int:
    """The checksum a record carries of its body."""
    return _crc32(body) & CRC_MASK


def record_size(
    topic_bytes: int,
    body_bytes: int,
    properties_bytes: int,
    *,
    born_host_bytes: int = IPV4_HOST_BYTES,
    store_host_bytes: int = IPV4_HOST_BYTES,
) -> int:
    """The size of the record that ``encode_record`` makes of parts of these lengths."""
    hosts = born_host_bytes + store_host_bytes - 2 * IPV4_HOST_BYTES
    wide = topic_bytes > MAX_V1_TOPIC_BYTES
    return MIN_RECORD_BYTES + hosts + wide + topic_bytes + body_bytes + properties_bytes


def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    log_position: int,
    store_timestamp: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """One whole record. Positional arguments on hot paths: this is called for every append.

    The version follows from the length of the topic, and the IPv6 bits of ``sys_flag`` are set
    from the lengths of the hosts.
    """
    topic_length = len(topic)
    body_length = len(body)
    properties_length = len(properties)
    if (
        topic_length > MAX_V1_TOPIC_BYTES
        or properties_length > MAX_PROPERTIES_BYTES
        or len(born_host) != IPV4_HOST_BYTES
        or len(store_host) != IPV4_HOST_BYTES
        or sys_flag & HOST_BITS
    ):
        return _encode_unusual_record(
            topic,
            body,
            properties,
            (queue_id, flag, queue_offset, log_position),
            sys_flag,
            (born_timestamp, born_host, store_timestamp, store_host),
            (reconsume_times, prepared_transaction_offset),
        )
    try:
        return b"".join(
            (
                _pack_ipv4_head(
                    MIN_RECORD_BYTES + body_length + topic_length + properties_length,
                    MAGIC_V1,
                    _crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    log_position,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_length,
                ),
                body,
                _ONE_BYTE[topic_length],
                topic,
                _pack_properties_length(properties_length),
                properties,
            )
        )
    except struct.error as error:
        raise _out_of_range(error) from error


def _encode_unusual_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    place: tuple[int, int, int, int],
    sys_flag: int,
    origin: tuple[int, bytes, int, bytes],
    counts: tuple[int, int],
) -> bytes:
    """A record with a long topic or IPv6 hosts; raises what is wrong with other parts."""
    if len(topic) > MAX_TOPIC_BYTES:
        raise IllegalMessage(
            f"topic of {len(topic)} bytes", expected=f"at most {MAX_TOPIC_BYTES} in a record"
        )
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"message properties take {len(properties)} bytes",
            expected=f"at most {MAX_PROPERTIES_BYTES}, all keys and values together",
        )
    sys_flag &= ~HOST_BITS
    _, born_host, _, store_host = origin
    for host, bit in (
        (born_host, BORN_HOST_V6),
        (store_host, STORE_HOST_V6),
    ):
        if len(host) == IPV6_HOST_BYTES:
            sys_flag |= bit
        elif len(host) != IPV4_HOST_BYTES:
            raise IllegalMessage(
                f"packed host {host.hex()!r} of {len(host)} bytes",
                expected=f"{IPV4_HOST_BYTES} (IPv4) or {IPV6_HOST_BYTES} (IPv6)",
                hint="pack_host(ip, port)",
            )
    head = HEADS[(sys_flag & HOST_BITS) >> HOST_SHIFT]
    if len(topic) > MAX_V1_TOPIC_BYTES:
        magic, topic_length = MAGIC_V2, TOPIC_LENGTH_V2.pack(len(topic))
    else:
        magic, topic_length = MAGIC_V1, _ONE_BYTE[len(topic)]
    tail = b"".join(
        (body, topic_length, topic, _pack_properties_length(len(properties)), properties)
    )
    size = head.size + len(tail)
    fixed = (size, magic, _crc32(body) & CRC_MASK, *place, sys_flag, *origin, *counts)
    try:
        return head.pack(*fixed, len(body)) + tail
    except struct.error as error:
        raise _out_of_range(error) from error


def _out_of_range(error: struct.error) -> IllegalMessage:
    return IllegalMessage(
        f"a number that does not fit into a record: {error}",
        expected="32 bits for queue, flags and counts, 64 for offsets and times",
    )


def encode_blank(size: int) -> bytes:
    """The eight bytes that mark the next ``size`` bytes, themselves included, as unused."""
    return PREFIX.pack(size, BLANK_MAGIC)


def peek_record(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Size and magic at ``position``, unchecked; a blank record has its own magic.

    A store walks its log with this: past blanks, up to the zeros nothing was written to.
    """
    if not 0 <= position <= len(buffer) - PREFIX.size:
        raise _cut_off(buffer, position, f"the {PREFIX.size} bytes of size and magic")
    size, magic = PREFIX.unpack_from(buffer, position)
    return size, magic


def decode_record(buffer: Buffer, position: int = 0, *, check_crc: bool = False) -> Record:
    """The record that starts at ``position``.

    Every length is checked against the record's size, and that against the buffer, before
    anything is copied; a record that does not add up is a ``ProtocolError``.
    """
    size, magic = peek_record(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise _no_record(magic, position)
    if not MIN_RECORD_BYTES <= size <= len(buffer) - position:
        raise _cut_off(buffer, position, f"a record of {size} bytes")
    end = position + size
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position)
    head = HEADS[(sys_flag & HOST_BITS) >> HOST_SHIFT]
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    body_start = position + head.size
    # What follows the body has at least its two length fields.
    room = end - body_start - topic_length_bytes - PROPERTIES_LENGTH.size
    if room < 0:
        raise _disagrees(position, size, f"a head of {head.size} bytes")
    fields = head.unpack_from(buffer, position)
    body_length = fields[14]
    if not 0 <= body_length <= room:
        raise _disagrees(position, size, f"a body of {body_length} bytes")
    topic_start = body_start + body_length + topic_length_bytes
    if magic == MAGIC_V1:
        topic_length = buffer[topic_start - 1]
        if topic_length > MAX_V1_TOPIC_BYTES:
            raise _disagrees(position, size, f"a version 1 topic of {topic_length} bytes")
    else:
        (topic_length,) = TOPIC_LENGTH_V2.unpack_from(buffer, topic_start - 2)
    if not 0 <= topic_length <= room - body_length:
        raise _disagrees(position, size, f"a topic of {topic_length} bytes")
    topic_end = topic_start + topic_length
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(buffer, topic_end)
    properties_start = topic_end + PROPERTIES_LENGTH.size
    if properties_length != end - properties_start:
        raise _disagrees(position, size, f"properties of {properties_length} bytes")
    body = bytes(buffer[body_start : body_start + body_length])
    if check_crc and _crc32(body) & CRC_MASK != fields[2]:
        raise ProtocolError(
            f"body checksum {_crc32(body) & CRC_MASK:#010x} in the record at {position}",
            expected=f"{fields[2]:#010x}, which the record states",
        )
    try:
        topic = str(buffer[topic_start:topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(
            f"topic {bytes(buffer[topic_start:topic_end])[:64]!r} in the record at {position}",
            expected="UTF-8",
        ) from error
    properties = bytes(buffer[properties_start:end])
    return Record._make((*fields[:14], body, topic, properties))


def decode_records(buffer: Buffer, *, check_crc: bool = False) -> list[Record]:
    """The records that follow each other in ``buffer``, which they must fill."""
    records: list[Record] = []
    position = 0
    while position < len(buffer):
        record = decode_record(buffer, position, check_crc=check_crc)
        records.append(record)
        position += record.size
    return records


def _no_record(magic: int, position: int) -> ProtocolError:
    if magic == BLANK_MAGIC:
        return ProtocolError(
            f"a blank record at {position}, which fills the end of a commit-log file",
            expected="a message",
        )
    return ProtocolError(
        f"magic {magic:#010x} at {position}",
        expected=f"{MAGIC_V1:#010x} or {MAGIC_V2:#010x}, which start a record",
    )


def _cut_off(buffer: Buffer, position: int, what: str) -> ProtocolError:
    left = max(0, len(buffer) - position)
    return ProtocolError(
        f"{what} at {position} of a buffer of {len(buffer)} bytes",
        expected=f"{MIN_RECORD_BYTES} bytes or more, within the {left} left",
    )


def _disagrees(position: int, size: int, what: str) -> ProtocolError:
    return ProtocolError(
        f"{what} in the record of {size} bytes at {position}",
        expected="lengths that add up to the size of the record",
    )
