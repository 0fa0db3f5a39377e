"""The op records of several decisions as rows, which differ in one number.

`half_records.closing` is the specification; it makes the same records one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from penstock.model.hosts import IPV4_HOST_BYTES
from penstock.model.names import OP_HALF_TOPIC
from penstock.model.record_layout import (
    CRC_MASK,
    MAGIC_V1,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH,
    head_part,
)
from penstock.protocol.half_messages import HALF_QUEUE, OP_PROPERTIES, op_body
from penstock.store.bulk.record_rows import RecordRows

ENOUGH: Final = 12
"""Fewer are done sooner one by one."""
_TOPIC: Final = OP_HALF_TOPIC.encode()
_SIZE: Final = MIN_RECORD_BYTES + len(_TOPIC) + len(OP_PROPERTIES)
"""That of an op record without a body."""
_BEHIND_BODY: Final = b"%c%b%b%b" % (
    len(_TOPIC),
    _TOPIC,
    PROPERTIES_LENGTH.pack(len(OP_PROPERTIES)),
    OP_PROPERTIES,
)
_pack_start: Final = head_part("size", "flag").pack
_pack_middle: Final = head_part("sys_flag", "born_host").pack
_pack_before_body: Final = head_part("store_host", "body_length").pack
_crc32: Final = zlib.crc32


def closing_rows(offsets: Sequence[int], now_ms: int, store_host: bytes) -> RecordRows | None:
    """The op records that close the halves at these queue offsets; None: one by one."""
    count = len(offsets)
    if count < ENOUGH or len(store_host) != IPV4_HOST_BYTES:
        return None
    bodies = [op_body(offset) for offset in offsets]
    length = len(bodies[0])
    if max(map(len, bodies)) != length or min(map(len, bodies)) != length:
        return None
    size = _SIZE + length
    before = _pack_before_body(store_host, 0, 0, length)
    return RecordRows(
        size,
        0,
        [_pack_start(size, MAGIC_V1, _crc32(body) & CRC_MASK, HALF_QUEUE, 0) for body in bodies],
        [_pack_middle(0, now_ms, store_host)] * count,
        [before + body + _BEHIND_BODY for body in bodies],
        [OP_PROPERTIES] * count,
    )
