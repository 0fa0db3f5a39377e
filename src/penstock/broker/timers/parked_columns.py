"""The fast path of reading parked messages: many records of one size, read by columns.

Messages that one program parks are alike: one topic, bodies and properties of one length. Written
below each other their records form a table, which ``struct`` cuts into columns. The plain path
(`read_parked`, record by record) is the specification: a read that has anything else in it, delete
marks say, is left to that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.timers.parked_records import DELETE_MARK, USUAL_END, starts_as_parked
from penstock.model.record_layout import BODY_POSITION, HEADS, HOST_BITS, MAGIC_V1

FEW: Final = 16
"""Fewer are read sooner one by one."""
_unpack_head: Final = HEADS[0].unpack_from
_BEFORE_BODY: Final = struct.Struct(">4s4s4x4x4xqq4s")
_HEAD_ROW: Final = f"4s4s4x4x4xqq4s{BODY_POSITION - 4 - _BEFORE_BODY.size}x4s"


class ParkedColumns(NamedTuple):
    """Parked messages of one topic."""

    topic: str
    record_size: int
    slots_ms: Sequence[int]
    queue_offsets: Sequence[int]
    log_positions: Sequence[int]


def parked_columns(slices: Sequence[memoryview]) -> ParkedColumns | None:
    """The parked records of a read; None: something is unusual about them."""
    if not slices or len(slices[0]) < BODY_POSITION:
        return None
    head = _unpack_head(slices[0])
    size, length = head[0], head[14]
    topic_at = BODY_POSITION + length
    if (
        head[1] != MAGIC_V1
        or head[7] & HOST_BITS
        or not BODY_POSITION <= topic_at < size <= len(slices[0])
        or any(len(one) % size for one in slices)
    ):
        return None
    count = sum(map(len, slices)) // size
    tail = bytes(slices[0][topic_at:size])
    properties_at = starts_as_parked(tail)
    found = USUAL_END.match(tail, tail.rfind(b"\x02TIMER_OUT_MS\x01"))
    if count < FEW or not properties_at or found is None or found.start() < properties_at:
        return None
    (slot_at, slot_end), (queue_at, queue_end) = found.span(1), found.span(3)
    row = struct.Struct(
        f">{_HEAD_ROW}{length}x{properties_at}s{found.start() - properties_at}s"
        f"{slot_at - found.start()}s{slot_end - slot_at}s{queue_at - slot_end}s"
        f"{queue_end - queue_at}s{len(tail) - queue_end}s"
    )
    (
        sizes, magics, offsets, positions, flags, lengths,
        named, heads, marks, slots, fixed, queue_ids, last,
    ) = zip(*row.iter_unpack(b"".join(slices)), strict=True)  # fmt: skip
    for column in (sizes, magics, flags, lengths, named, marks, fixed, last):
        if column.count(column[0]) != count:
            return None
    if (
        not b"".join(slots).isdigit()
        or not b"".join(queue_ids).isdigit()
        or DELETE_MARK in b"".join(heads)
    ):
        return None
    numbers = {digits: int(digits) for digits in set(slots)}
    return ParkedColumns(
        found[2].decode("utf-8", "replace"),
        size,
        [numbers[digits] for digits in slots],
        offsets,
        positions,
    )
