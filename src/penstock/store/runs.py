"""Batches on the short way: from the body of a batch send to records, in one pass.

A batch of thousands of small messages is what bulk writers send. Decoding it into messages, making
a record of each and staging them one by one costs several times what is needed when they are all
alike: they go to one queue, side by side, and most have neither key nor tag. So here the body is
cut and every record put together in one loop, and the whole run is staged as one entry.

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

# size, magic, checksum, flag, length of the body: what `protocol.batches` packs
_ITEM_HEAD: Final = Struct(">iIIii")
_ITEM_HEAD_BYTES: Final = _ITEM_HEAD.size
_unpack_item = _ITEM_HEAD.unpack_from
_CRC_MASK: Final = 0x7FFF_FFFF
_INDEXED: Final = (b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01")


_FIRST = Struct(">iIIiiqq").pack
"""The part of a record's head that differs: all before the system flag."""
_COMMON = Struct(">iq8sq8siq").pack
"""The part that a run shares: up to the length of the body."""
_pack_length = Struct(">i").pack


class Run(NamedTuple):
    """Messages that lie side by side in the log and follow one another in a queue."""

    positions: list[int]
    sizes: list[int]
    tails: list[bytes]
    """Their properties, each with its length in front."""
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
    if not parts.is_usual:
        return None
    queue_id = parts.queue_id
    common = _COMMON(
        parts.sys_flag,
        parts.born_timestamp,
        parts.born_host,
        now,
        parts.store_host,
        parts.reconsume_times,
        parts.prepared_transaction_offset,
    )
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
    if not sizes:
        return None
    said = b"".join(tails)
    if any(mark in said for mark in unless):
        return None
    is_plain = not any(mark in said for mark in _INDEXED)
    positions = list(accumulate(sizes[:-1], initial=first_position))
    return b"".join(pieces), Run(positions, sizes, tails, is_plain)
