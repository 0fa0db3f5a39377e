"""The fast path of delivery: many parked messages that are due, made into records by columns.

Messages that one program parks are alike: one topic, bodies and properties of one length. Written
below each other their records form a table, which ``struct`` cuts into columns. What must be the
same in all rows is compared a column at a time, and the records to store are put together the same
way; only their places are missing. The plain path (`read_parked` and `due`, message by message) is
the specification: a portion that has anything else in it is left to that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple
from zlib import crc32

from penstock.broker.timers.parked_records import (
    DELETE_MARK,
    DEQUEUE_MARK,
    ENQUEUE_MARK,
    USUAL_END,
    starts_as_parked,
)
from penstock.model.properties import MAX_PROPERTIES_BYTES
from penstock.model.record_layout import (
    BODY_POSITION,
    CRC_MASK,
    HEADS,
    HOST_BITS,
    MAGIC_V1,
    MAX_V1_TOPIC_BYTES,
    PROPERTIES_LENGTH,
)
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store.bulk.record_rows import MIDDLE_BYTES, START_BYTES, RecordRows

FEW: Final = 16
"""Fewer are done sooner one by one."""
_unpack_head: Final = HEADS[0].unpack_from
_pack_start: Final = struct.Struct(">iIIi").pack
_HEAD_ROW: Final = f"4s4s4x4x4s8xq4s{MIDDLE_BYTES - 4}s8x20s4s"


class DueQueue(NamedTuple):
    """Messages of one queue that are due."""

    topic: str
    queue_id: int
    rows: RecordRows


class DueColumns(NamedTuple):
    """Messages of one topic that are due."""

    topic: str
    messages: int
    queues: list[DueQueue]


def due_columns(
    records: Sequence[memoryview],
    size: int,
    positions: Sequence[int],
    enqueued_ms: Sequence[int],
    now_ms: int,
    precision_ms: int,
    max_body: int,
) -> DueColumns | None:
    """What to store for parked records at log positions; None: something is unusual.

    The records are of this size, each a view of its own or several side by side in one.
    """
    first = records[0][:size]
    count = len(positions)
    if count < FEW or not BODY_POSITION <= size <= len(first):
        return None
    head = _unpack_head(first)
    sys_flag, length = head[7], head[14]
    topic_at = BODY_POSITION + length
    if (
        head[0] != size
        or head[1] != MAGIC_V1
        or sys_flag & (HOST_BITS | SysFlag.TRANSACTION_MASK)
        or not 0 <= length <= max_body
        or topic_at >= size
    ):
        return None
    tail = bytes(first[topic_at:])
    properties_at = starts_as_parked(tail)
    found = USUAL_END.match(tail, tail.rfind(b"\x02TIMER_OUT_MS\x01"))
    if not properties_at or found is None or found.start() < properties_at:
        return None
    data = b"".join(records)
    if len(data) != count * size:
        return None
    queue_at, queue_end = found.span(3)
    topic = found[2]
    slot_ms = int(found[1])
    if slot_ms + precision_ms > now_ms or not topic.isascii() or len(topic) > MAX_V1_TOPIC_BYTES:
        return None
    row = struct.Struct(
        f">{_HEAD_ROW}{length}s{properties_at}s{found.start() - properties_at}s"
        f"{queue_at - found.start()}s{queue_end - queue_at}s{len(tail) - queue_end}s"
    )
    (
        sizes, magics, flags, stated, sys_flags, middles, ends, lengths,
        bodies, named, heads, fixed, queue_ids, last,
    ) = zip(*row.iter_unpack(data), strict=True)  # fmt: skip
    digits, before = b"".join(queue_ids), b"".join(heads)
    for column in (sizes, magics, sys_flags, lengths, named, fixed, last):
        if column.count(column[0]) != count:
            return None
    if (
        list(stated) != list(positions)
        or not digits.isdigit()
        or 0 in before
        or 0 in fixed[0]
        or any(mark in before for mark in (DELETE_MARK, ENQUEUE_MARK, DEQUEUE_MARK))
    ):
        return None
    written = {one: b"%b%d\x02%b%d\x02" % (ENQUEUE_MARK, one, DEQUEUE_MARK, now_ms)
               for one in set(enqueued_ms)}  # fmt: skip
    added = [written[one] for one in enqueued_ms]
    width = len(tail) - properties_at + len(added[0]) + (not last[0])
    if any(len(one) != len(added[0]) for one in written.values()) or width > MAX_PROPERTIES_BYTES:
        return None
    properties = list(map(b"".join, zip(heads, fixed, queue_ids, repeat(b"\x02"), added)))
    new_size = BODY_POSITION + length + 1 + len(topic) + PROPERTIES_LENGTH.size + width
    name = b"%c%b%b" % (len(topic), topic, PROPERTIES_LENGTH.pack(width))
    new_ends = list(map(b"".join, zip(ends, lengths, bodies, repeat(name), properties)))
    new_middles = list(map(bytes.__add__, sys_flags, middles))
    sums = [crc32(body) & CRC_MASK for body in bodies]
    queues: list[DueQueue] = []
    text = topic.decode()
    for digits_of_queue in dict.fromkeys(queue_ids):
        queue_id = int(digits_of_queue)
        if queue_ids.count(digits_of_queue) == count:
            chosen: Sequence[int] = range(count)
        else:
            chosen = [at for at, one in enumerate(queue_ids) if one == digits_of_queue]
        starts = [_pack_start(new_size, MAGIC_V1, sums[at], queue_id) + flags[at] for at in chosen]
        assert len(starts[0]) == START_BYTES
        rows = RecordRows(
            new_size,
            sys_flag,
            starts,
            [new_middles[at] for at in chosen],
            [new_ends[at] for at in chosen],
            [properties[at] for at in chosen],
        )
        queues.append(DueQueue(text, queue_id, rows))
    return DueColumns(text, count, queues)
