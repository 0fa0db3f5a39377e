"""Batches on the short way: from the body of a batch send to records, in one pass.

A batch of thousands of small messages is what bulk writers send. Decoding it into messages, making
a record of each and staging them one by one costs several times what is needed when they are all
alike: they go to one queue, side by side, and most have neither key nor tag. So here the body is
cut and every record put together in one loop, or without any where all are of one size, and the
whole run is staged as one entry.

What is unusual (hosts of IPv6, a long topic, properties of more than 32,767 bytes, a body that does
not add up) is left to the long way, `Appender.append_batch`, which also knows how to complain.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from penstock.model.hosts import IPV4_HOST_BYTES
from penstock.model.properties import MAX_PROPERTIES_BYTES
from penstock.protocol.batches import MIN_ITEM_BYTES
from penstock.protocol.records import (
    MAGIC_V1,
    MAX_V1_TOPIC_BYTES,
    MIN_RECORD_BYTES,
)
from penstock.store.rows import put_column

# size, magic, checksum, flag, length of the body: what `protocol.batches` packs
_ITEM_HEAD: Final = Struct(">iIIii")
_ITEM_HEAD_BYTES: Final = _ITEM_HEAD.size
_unpack_item = _ITEM_HEAD.unpack_from
_FLAG_AT: Final = 12
_pack_tail_head = Struct(">h").pack
_CRC_MASK: Final = 0x7FFF_FFFF
_INDEXED: Final = (b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01")


_FIRST = Struct(">iIIiiqq").pack
"""The part of a record's head that differs: all before the system flag."""
_CRC_AT: Final = 8
_QUEUE_OFFSET_AT: Final = 20
_POSITION_AT: Final = 28
_COMMON = Struct(">iq8sq8siq").pack
"""The part that a run shares: up to the length of the body."""
_pack_length = Struct(">i").pack
TAIL_HEAD_BYTES: Final = 2
FEW: Final = 64
"""Fewer messages are done sooner one by one: work by columns has its price, too."""


class Run(NamedTuple):
    """Messages that lie side by side in the log and follow one another in a queue."""

    positions: list[int]
    sizes: list[int]
    tails: list[bytes]
    """Their properties, each with its length in front."""
    said: bytes
    """All tails, one behind the other."""
    tail_bytes: int
    """How long each tail is, if all are of one length, and 0 if not."""
    is_plain: bool
    """Whether none of them has a key or a tag."""


class RunParts(NamedTuple):
    """What the records of a run have in common."""

    topic: bytes
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int

    @property
    def is_usual(self) -> bool:
        return (
            len(self.topic) <= MAX_V1_TOPIC_BYTES
            and len(self.born_host) == IPV4_HOST_BYTES
            and len(self.store_host) == IPV4_HOST_BYTES
        )


def encode_run(
    body: bytes,
    parts: RunParts,
    queue_offset: int,
    position: int,
    now: int,
    unless: Sequence[bytes] = (),
) -> tuple[bytes, Run] | None:
    """The records of the messages in ``body``, from these offsets on.

    None: take the long way, because something is unusual or one of ``unless`` may be among the
    properties.
    """
    if not parts.is_usual or len(body) < MIN_ITEM_BYTES:
        return None
    made = _encode_even(body, parts, queue_offset, position, now)
    if made is None:
        made = _encode_any(body, parts, queue_offset, position, now)
    if made is None or any(mark in made[1].said for mark in unless):
        return None
    return made


def _common(parts: RunParts, now: int) -> bytes:
    return _COMMON(
        parts.sys_flag,
        parts.born_timestamp,
        parts.born_host,
        now,
        parts.store_host,
        parts.reconsume_times,
        parts.prepared_transaction_offset,
    )


def _is_plain(said: bytes) -> bool:
    return not any(mark in said for mark in _INDEXED)


def _encode_even(
    body: bytes, parts: RunParts, queue_offset: int, position: int, now: int
) -> tuple[bytes, Run] | None:
    """The run of messages with bodies of one length and properties of one length, or None.

    What they share is repeated, and what differs put in place for all of them, field by field.
    """
    size, _, _, flag, length = _unpack_item(body, 0)
    rest = size - MIN_ITEM_BYTES - length
    total = len(body)
    if length < 0 or not 0 <= rest <= MAX_PROPERTIES_BYTES or total % size:
        return None
    count = total // size
    middle = _ITEM_HEAD_BYTES + length
    rest_bytes = _pack_tail_head(rest)
    if (
        count < FEW
        or not _all_have(body, size, 0, _pack_length(size))
        or not _all_have(body, size, _FLAG_AT, body[_FLAG_AT:_ITEM_HEAD_BYTES])
        or not _all_have(body, size, middle, rest_bytes)
    ):
        return None
    tails = [body[start : start + size - middle] for start in range(middle, total, size)]
    said = b"".join(tails)
    if said.count(0) != rest_bytes.count(0) * count:
        return None
    contents = [body[start : start + length] for start in range(_ITEM_HEAD_BYTES, total, size)]
    record_size = MIN_RECORD_BYTES + len(parts.topic) + length + rest
    head = _FIRST(record_size, MAGIC_V1, 0, parts.queue_id, flag, 0, 0)
    head += _common(parts, now) + _pack_length(length)
    width = len(head)
    heads = bytearray(head * count)
    crcs = [crc & _CRC_MASK for crc in map(crc32, contents)]
    positions = list(range(position, position + count * record_size, record_size))
    put_column(heads, _CRC_AT, width, "i", crcs)
    put_column(heads, _QUEUE_OFFSET_AT, width, "q", range(queue_offset, queue_offset + count))
    put_column(heads, _POSITION_AT, width, "q", positions)
    together = bytes(heads)
    pieces = [bytes((len(parts.topic),)) + parts.topic] * (4 * count)
    pieces[0::4] = [together[start : start + width] for start in range(0, len(heads), width)]
    pieces[1::4] = contents
    pieces[3::4] = tails
    run = Run(positions, [record_size] * count, tails, said, len(tails[0]), _is_plain(said))
    return b"".join(pieces), run


def _all_have(body: bytes, size: int, at: int, value: bytes) -> bool:
    """Whether all items of ``size`` bytes have these bytes in this place."""
    count = len(body) // size
    return all(body[place::size].count(byte) == count for place, byte in enumerate(value, at))


def _encode_any(
    body: bytes, parts: RunParts, queue_offset: int, position: int, now: int
) -> tuple[bytes, Run] | None:
    """The run of any messages, one by one."""
    queue_id = parts.queue_id
    common = _common(parts, now)
    named = bytes((len(parts.topic),)) + parts.topic
    overhead = MIN_RECORD_BYTES + len(parts.topic)
    total = len(body)
    first_position = position
    pieces: list[bytes] = []
    sizes: list[int] = []
    tails: list[bytes] = []
    add_size, add_tail = sizes.append, tails.append
    last_length = -1
    shared = common
    start = 0
    while start < total:
        if total - start < MIN_ITEM_BYTES:
            return None
        size, _, _, flag, length = _unpack_item(body, start)
        end = start + size
        rest = size - MIN_ITEM_BYTES - length
        if not 0 <= rest <= MAX_PROPERTIES_BYTES or length < 0 or end > total:
            return None
        start += _ITEM_HEAD_BYTES
        middle = start + length
        content = body[start:middle]
        tail = body[middle:end]
        if (tail[0] << 8 | tail[1]) != rest or tail.find(0, 2) >= 0:
            return None
        if length != last_length:
            # Bodies of one length are the rule among thousands.
            last_length = length
            shared = common + _pack_length(length)
        record_size = overhead + length + rest
        crc = crc32(content) & _CRC_MASK
        head = _FIRST(record_size, MAGIC_V1, crc, queue_id, flag, queue_offset, position)
        pieces += (head, shared, content, named, tail)
        add_size(record_size)
        add_tail(tail)
        position += record_size
        queue_offset += 1
        start = end
    said = b"".join(tails)
    tail_bytes = len(tails[0]) if len(set(map(len, tails))) == 1 else 0
    positions = list(accumulate(sizes[:-1], initial=first_position))
    run = Run(positions, sizes, tails, said, tail_bytes, _is_plain(said))
    return b"".join(pieces), run
