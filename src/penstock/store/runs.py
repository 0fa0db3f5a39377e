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
from functools import lru_cache
from itertools import accumulate, repeat
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
_pack_tail_head = Struct(">h").pack
_CRC_MASK: Final = 0x7FFF_FFFF
_INDEXED: Final = (b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01")


_FIRST = Struct(">iIIiiqq").pack
"""The part of a record's head that differs: all before the system flag."""
_pack_start = Struct(">iI").pack
_pack_ids = Struct(">ii").pack
_COMMON = Struct(">iq8sq8siq")
"""The part that a run shares: up to the length of the body."""
_pack_length = Struct(">i").pack
_MAX_SHAPES: Final = 256
TAIL_HEAD_BYTES: Final = 2
FEW: Final = 8
"""Fewer messages are done sooner one by one: work by columns has its price, too."""


class Run(NamedTuple):
    """Messages that lie side by side in the log and follow one another in a queue."""

    positions: Sequence[int]
    sizes: Sequence[int]
    tails: Sequence[bytes]
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
    return _COMMON.pack(
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

    Each step is one call for all of them: cut the body, sum, put the records together.
    """
    size, _, _, flag, length = _unpack_item(body, 0)
    rest = size - MIN_ITEM_BYTES - length
    total = len(body)
    if length < 0 or not 0 <= rest <= MAX_PROPERTIES_BYTES or total % size or total < FEW * size:
        return None
    count = total // size
    tail_bytes = TAIL_HEAD_BYTES + rest
    topic_bytes = len(parts.topic)
    item, record = _shapes(length, 1 + topic_bytes, tail_bytes)
    heads, contents, tails = zip(*item.iter_unpack(body), strict=True)
    said = b"".join(tails)
    rest_bytes = _pack_tail_head(rest)
    if (
        heads.count(heads[0]) != count
        or said[::tail_bytes].count(rest_bytes[0]) != count
        or said[1::tail_bytes].count(rest_bytes[1]) != count
        or said.count(0) != rest_bytes.count(0) * count
    ):
        return None
    record_size = record.size
    positions = range(position, position + count * record_size, record_size)
    records = map(
        record.pack,
        repeat(_pack_start(record_size, MAGIC_V1)),
        [crc & _CRC_MASK for crc in map(crc32, contents)],
        repeat(_pack_ids(parts.queue_id, flag)),
        range(queue_offset, queue_offset + count),
        positions,
        repeat(_common(parts, now) + _pack_length(length)),
        contents,
        repeat(bytes((topic_bytes,)) + parts.topic),
        tails,
    )
    run = Run(positions, [record_size] * count, tails, said, tail_bytes, _is_plain(said))
    return b"".join(records), run


@lru_cache(_MAX_SHAPES)
def _shapes(body_bytes: int, topic_bytes: int, tail_bytes: int) -> tuple[Struct, Struct]:
    """A message in a batch, and its record; lengths are those of all parts with their heads."""
    item = Struct(f">{_ITEM_HEAD_BYTES}s{body_bytes}s{tail_bytes}s")
    record = Struct(f">8sI8sqq{_COMMON.size + 4}s{body_bytes}s{topic_bytes}s{tail_bytes}s")
    return item, record


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
