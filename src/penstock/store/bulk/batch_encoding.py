"""The fast path of batches: from the body of a batch send to records, in one pass.

A batch of thousands of small messages is what bulk writers send. Decoding it into messages, making
a record of each and staging them one by one costs several times what is needed when they are all
alike: they go to one queue, side by side, and most have neither key nor tag. So here the body is
cut and every record put together in one loop, or without any where all are of one size, and the
whole batch is staged as one entry.

A batch of which only the first message has a unique id, at the end of its properties, is encoded as
if it had none, and the id added: Spark's sink sends such batches, to find each again by its first.

What is unusual (hosts of IPv6, a long topic, properties of more than 32,767 bytes, a body that does
not add up) is left to the plain path, `Appender.append_batch`, which also raises the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

from penstock.model.hosts import IPV4_HOST_BYTES
from penstock.model.properties import KEYS, MAX_PROPERTIES_BYTES, TAGS, UNIQUE_KEY
from penstock.model.record_layout import (
    CRC_MASK,
    ITEM_HEAD,
    MAGIC_V1,
    MAX_V1_TOPIC_BYTES,
    MIN_ITEM_BYTES,
    MIN_RECORD_BYTES,
    PREFIX,
    PROPERTIES_LENGTH,
    head_part,
)
from penstock.store.bulk.rows import cut_rows, pack_rows

_ITEM_HEAD_BYTES: Final = ITEM_HEAD.size
_unpack_item = ITEM_HEAD.unpack_from
_new_tuple: Final = tuple.__new__
_pack_short = PROPERTIES_LENGTH.pack

_FIRST = head_part("size", "log_position").pack
"""The part of a record's head that differs: all before the system flag."""
_pack_start = PREFIX.pack
_IDS = head_part("queue_id", "flag")
_pack_ids = _IDS.pack
_COMMON = head_part("sys_flag", "prepared_transaction_offset")
"""The part that all records of a batch share: up to the length of the body."""
_BODY_LENGTH = head_part("body_length", "body_length")
_pack_length = _BODY_LENGTH.pack
_MAX_SHAPES: Final = 64
_USUAL_BYTES: Final = frozenset(b"UNIQ_KEY\x01WAIT\x01true\x02TAGS\x01KEYS\x010123456789ABCDEF")
"""What can be expected among properties of any message."""
_PARTS_OF_ITEM: Final = 4
_END: Final = 2
_MAX_ID_PAIR: Final = 300
"""Bytes at the end of properties in which a unique id of a first message is looked for."""
FEW: Final = 8
"""Fewer messages are done sooner one by one: work by columns has its price, too."""


class EncodedBatch(NamedTuple):
    """Messages that lie side by side in the log and follow one another in a queue."""

    positions: Sequence[int]
    sizes: Sequence[int]
    properties: Sequence[bytes]
    properties_blob: bytes
    """All properties, one behind the other."""
    width: int
    """How long the properties of each are, if all are of one length, and 0 if not."""
    is_plain: bool
    """Whether none of them has a key or a tag."""
    first_id: bytes = b""
    """A unique id that only the first has; it is not in ``properties_blob``."""


class BatchHeader(NamedTuple):
    """What the records of a batch have in common."""

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


def encode_batch_records(
    body: bytes,
    header: BatchHeader,
    queue_offset: int,
    position: int,
    now: int,
    unless: Sequence[bytes] = (),
) -> tuple[bytes, EncodedBatch] | None:
    """The records of the messages in ``body``, from these offsets on.

    None: take the plain path, because something is unusual or one of ``unless`` may be among the
    properties.
    """
    if not header.is_usual or len(body) < MIN_ITEM_BYTES:
        return None
    made = (
        _encode_uniform(body, header, queue_offset, position, now)
        or _encode_with_first_id(body, header, queue_offset, position, now)
        or _encode_mixed(body, header, queue_offset, position, now)
    )
    if made is None or (unless and _has_one(made[1].properties_blob, tuple(unless))):
        return None
    return made


def _encode_with_first_id(
    body: bytes, header: BatchHeader, queue_offset: int, position: int, now: int
) -> tuple[bytes, EncodedBatch] | None:
    """Messages of which only the first ends with a unique id; None for others."""
    size, *_, length = _unpack_item(body, 0)
    if not MIN_ITEM_BYTES <= size < len(body) - FEW * MIN_ITEM_BYTES or body[size - 1] != _END:
        return None
    pair_at = body.rfind(UNIQUE_KEY, max(0, size - _MAX_ID_PAIR), size)
    properties_at = _ITEM_HEAD_BYTES + length + PROPERTIES_LENGTH.size
    if pair_at < properties_at or (pair_at > properties_at and body[pair_at - 1] != _END):
        return None
    first_id = body[pair_at + len(UNIQUE_KEY) : size - 1]
    if not first_id or _END in first_id or 1 in first_id:
        return None
    second_size, *_, second_length = _unpack_item(body, size)
    second_end = size + second_size
    if UNIQUE_KEY in body[size + _ITEM_HEAD_BYTES + max(0, second_length) : second_end]:
        return None  # all of them have one
    first = _encode_mixed(body[:size], header, queue_offset, position, now)
    if first is None:
        return None
    (before, one), rest = first, memoryview(body)[size:]
    # The others are a batch that begins behind the first; a copy of them would cost half as much
    # as encoding them.
    behind = (header, queue_offset + 1, position + len(before), now, before)
    made = _encode_uniform(rest, *behind) or _encode_mixed(bytes(rest), *behind)
    if made is None:
        return None
    records, batch = made
    first_properties = body[properties_at:pair_at]
    properties_blob = first_properties + batch.properties_blob
    if UNIQUE_KEY in properties_blob:
        return None
    return records, EncodedBatch(
        [position, *batch.positions],
        [*one.sizes, *batch.sizes],
        [*one.properties, *batch.properties],
        properties_blob,
        batch.width if batch.width == len(first_properties) else 0,
        batch.is_plain and _is_plain(first_properties),
        first_id,
    )


def _has_one(properties_blob: bytes, marks: tuple[bytes, ...]) -> bool:
    """Whether one of ``marks`` is in there."""
    # A search for one byte is twenty times as fast, and mostly answers for all of them.
    for rare, mark in _with_rare_bytes(marks):
        if rare in properties_blob and mark in properties_blob:
            return True
    return False


@lru_cache(_MAX_SHAPES)
def _with_rare_bytes(marks: tuple[bytes, ...]) -> list[tuple[int, bytes]]:
    """Each mark behind the byte of it that is most likely to be missing elsewhere."""
    return [(min(mark, key=lambda byte: byte in _USUAL_BYTES), mark) for mark in marks]


def _common(header: BatchHeader, now: int) -> bytes:
    return _COMMON.pack(
        header.sys_flag,
        header.born_timestamp,
        header.born_host,
        now,
        header.store_host,
        header.reconsume_times,
        header.prepared_transaction_offset,
    )


def _is_plain(properties_blob: bytes) -> bool:
    return not (UNIQUE_KEY in properties_blob or KEYS in properties_blob or TAGS in properties_blob)


def _encode_uniform(
    body: bytes | memoryview,
    header: BatchHeader,
    queue_offset: int,
    position: int,
    now: int,
    before: bytes = b"",
) -> tuple[bytes, EncodedBatch] | None:
    """Messages with bodies of one length and properties of one length; None for others.

    Each step is one call for all of them: cut the body, sum, put the records together, behind
    those that come ``before``.
    """
    size, _, _, flag, length = _unpack_item(body, 0)
    width = size - MIN_ITEM_BYTES - length
    total = len(body)
    if length < 0 or not 0 <= width <= MAX_PROPERTIES_BYTES or total % size or total < FEW * size:
        return None
    count = total // size
    topic = header.topic
    item_row, record_row = _rows(length, len(topic), width)
    heads, contents, lengths, properties = cut_rows(item_row, count, _PARTS_OF_ITEM, body)
    properties_blob = b"".join(properties)
    stated = _pack_short(width)
    if heads.count(heads[0]) != count or lengths.count(stated) != count or 0 in properties_blob:
        return None
    size = MIN_RECORD_BYTES + len(topic) + length + width
    positions = range(position, position + count * size, size)
    before_sum = _pack_start(size, MAGIC_V1)
    ids = _pack_ids(header.queue_id, flag)
    shared = _common(header, now) + _pack_length(length)
    named = b"%c%b%b" % (len(topic), topic, stated)
    records = pack_rows(
        record_row,
        count,
        [before_sum, 0, ids, 0, 0, shared, b"", named, b""],
        {
            1: [crc32(content) & CRC_MASK for content in contents],
            3: range(queue_offset, queue_offset + count),
            4: positions,
            6: contents,
            8: properties,
        },
        before,
    )
    sizes = [size] * count
    is_plain = _is_plain(properties_blob)
    batch = (positions, sizes, properties, properties_blob, width, is_plain, b"")
    # NamedTuple's own constructor costs twice as much as the tuple it makes.
    return records, _new_tuple(EncodedBatch, batch)


@lru_cache(_MAX_SHAPES)
def _rows(body_bytes: int, topic_bytes: int, properties_bytes: int) -> tuple[str, str]:
    """The layouts of a message in a batch and of its record."""
    item = f"{_ITEM_HEAD_BYTES}s{body_bytes}s2s{properties_bytes}s"
    head = f"{PREFIX.size}sI{_IDS.size}sqq{_COMMON.size + _BODY_LENGTH.size}s"
    return item, f"{head}{body_bytes}s{1 + topic_bytes + 2}s{properties_bytes}s"


def _encode_mixed(
    body: bytes,
    header: BatchHeader,
    queue_offset: int,
    position: int,
    now: int,
    before: bytes = b"",
) -> tuple[bytes, EncodedBatch] | None:
    """Messages of any lengths, one by one, behind the records that come ``before``."""
    queue_id = header.queue_id
    common = _common(header, now)
    named = bytes((len(header.topic),)) + header.topic
    overhead = MIN_RECORD_BYTES + len(header.topic)
    total = len(body)
    first_position = position
    pieces: list[bytes] = [before]
    sizes: list[int] = []
    properties: list[bytes] = []
    add_size, add_properties = sizes.append, properties.append
    last_length = -1
    shared = common
    start = 0
    while start < total:
        if total - start < MIN_ITEM_BYTES:
            return None
        size, _, _, flag, length = _unpack_item(body, start)
        end = start + size
        width = size - MIN_ITEM_BYTES - length
        if not 0 <= width <= MAX_PROPERTIES_BYTES or length < 0 or end > total:
            return None
        start += _ITEM_HEAD_BYTES
        middle = start + length
        content = body[start:middle]
        tail = body[middle:end]
        properties_blob = tail[2:]
        if (tail[0] << 8 | tail[1]) != width or 0 in properties_blob:
            return None
        if length != last_length:
            # Bodies of one length are the rule among thousands.
            last_length = length
            shared = common + _pack_length(length)
        record_size = overhead + length + width
        crc = crc32(content) & CRC_MASK
        head = _FIRST(record_size, MAGIC_V1, crc, queue_id, flag, queue_offset, position)
        pieces += (head, shared, content, named, tail)
        add_size(record_size)
        add_properties(properties_blob)
        position += record_size
        queue_offset += 1
        start = end
    properties_blob = b"".join(properties)
    width = len(properties[0]) if len(set(map(len, properties))) == 1 else 0
    positions = list(accumulate(sizes[:-1], initial=first_position))
    batch = EncodedBatch(
        positions, sizes, properties, properties_blob, width, _is_plain(properties_blob)
    )
    return b"".join(pieces), batch
