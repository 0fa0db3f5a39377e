"""Where the fields of many stored records are, computed for all of them at once.

``protocol.records`` draws the layout. One view of the buffer per number type, with a stride of one
byte, lets numpy pick a field out of every record without a Python step per record. What it finds is
checked as ``decode_record`` checks it, so that no length from outside leads out of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.model.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from penstock.protocol.records import (
    BODY_POSITION,
    MAGIC_V1,
    MAGIC_V2,
    MAX_V1_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    decode_record,
    peek_record,
)
from penstock.protocol.sys_flags import SysFlag

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SYS_FLAG_POSITION: Final = 36
_HOSTS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_WIDER: Final = IPV6_HOST_BYTES - IPV4_HOST_BYTES
# Fields behind the born host move when it is IPv6, those behind the store host when that one is.
_BORN_HOST: Final = 48
_STORE_HOST: Final = 64


class RecordFields:
    """The fields of the records that start at ``starts`` in ``buffer``.

    Raises ``ProtocolError`` if one of them is not a whole record.
    """

    def __init__(self, buffer: memoryview, starts: Numbers) -> None:
        self._raw = np.frombuffer(buffer, np.uint8)
        self.starts = starts
        self._check_heads(buffer)
        flags = self._int32(_SYS_FLAG_POSITION)
        self.sys_flag = flags
        self.is_wide = bool(np.any(flags & _HOSTS))
        self._shift_born: Numbers | int = 0
        self._shift_store: Numbers | int = 0
        if self.is_wide:
            self._shift_born = np.where(flags & SysFlag.BORN_HOST_V6, _WIDER, 0)
            self._shift_store = np.where(flags & SysFlag.STORE_HOST_V6, _WIDER, 0)
        self.body_start = starts + BODY_POSITION + self._shift_born + self._shift_store
        self._find_parts(buffer)

    def __len__(self) -> int:
        return len(self.starts)

    # Checking

    def _check_heads(self, buffer: memoryview) -> None:
        starts, total = self.starts, len(self._raw)
        is_bad = (starts < 0) | (starts > total - MIN_RECORD_BYTES)
        if is_bad.any():
            self._refuse(buffer, is_bad)
        self.size = self._int32(0)
        magic = self._int32(4, np.uint32)
        self._is_v2 = magic == MAGIC_V2
        is_bad = (magic != MAGIC_V1) & ~self._is_v2
        is_bad |= (self.size < MIN_RECORD_BYTES) | (starts + self.size > total)
        if is_bad.any():
            self._refuse(buffer, is_bad)

    def _find_parts(self, buffer: memoryview) -> None:
        """Cut each record into body, topic and properties, and see that they fill it."""
        self.end = end = self.starts + self.size
        # A claimed length may lead anywhere; clipped indexes are safe to follow, then compared.
        body_length = self._at(self.body_start - 4, ">i4")
        self.body_end = self.body_start + body_length
        v2 = self._is_v2
        topic_length = self._at(self.body_end, np.uint8)
        is_bad = (body_length < 0) | (self.body_end > end)
        if v2.any():
            topic_length = np.where(v2, self._at(self.body_end, ">i2"), topic_length)
            self.topic_start = self.body_end + 1 + v2
            is_bad |= (topic_length < 0) | (~v2 & (topic_length > MAX_V1_TOPIC_BYTES))
        else:
            self.topic_start = self.body_end + 1
            is_bad |= topic_length > MAX_V1_TOPIC_BYTES
        self.topic_end = self.topic_start + topic_length
        self.properties_start = self.topic_end + 2
        is_bad |= self.properties_start > end
        properties_length = self._at(self.topic_end, ">i2")
        is_bad |= self.properties_start + properties_length != end
        if is_bad.any():
            self._refuse(buffer, is_bad)

    def _refuse(self, buffer: memoryview, is_bad: Mask) -> None:
        position = int(self.starts[int(np.argmax(is_bad))])
        decode_record(buffer, position)
        raise AssertionError(f"the record at {position} was refused, yet it is fine")

    # Reading

    def _view(self, kind: Any) -> npt.NDArray[Any]:
        dtype = np.dtype(kind)
        raw = self._raw
        return np.ndarray((len(raw) - dtype.itemsize + 1,), dtype, raw, strides=(1,))

    def _at(self, where: Numbers, kind: Any) -> Numbers:
        numbers: Numbers = self._view(kind).take(where, mode="clip").astype(np.int64)
        return numbers

    def _int32(self, at: int, kind: Any = np.int32) -> Numbers:
        view = self._view(np.dtype(kind).newbyteorder(">"))
        return view[self.starts + at].astype(np.int64)

    def _int64(self, where: Numbers) -> Numbers:
        return self._view(">i8")[where].astype(np.int64)

    @property
    def queue_id(self) -> Numbers:
        return self._int32(12)

    @property
    def queue_offset(self) -> Numbers:
        return self._int64(self.starts + 20)

    @property
    def log_position(self) -> Numbers:
        return self._int64(self.starts + 28)

    @property
    def born_timestamp(self) -> Numbers:
        return self._int64(self.starts + 40)

    @property
    def store_timestamp(self) -> Numbers:
        return self._int64(self.starts + 56 + self._shift_born)

    @property
    def reconsume_times(self) -> Numbers:
        return self._at(self.body_start - 16, ">i4")

    def born_hosts(self) -> npt.NDArray[np.int64]:
        """The packed IPv4 hosts as numbers; only if not ``is_wide``."""
        return self._int64(self.starts + _BORN_HOST)

    def store_hosts(self) -> npt.NDArray[np.int64]:
        """The packed IPv4 hosts as numbers; only if not ``is_wide``."""
        return self._int64(self.starts + _STORE_HOST)

    def packed_hosts(self, *, born: bool) -> Iterator[bytes]:
        """The packed host of each record, of either width."""
        bit = SysFlag.BORN_HOST_V6 if born else SysFlag.STORE_HOST_V6
        at = self.starts + (_BORN_HOST if born else _STORE_HOST + self._shift_born)
        for position, flags in zip(at.tolist(), self.sys_flag.tolist(), strict=True):
            width = IPV6_HOST_BYTES if flags & bit else IPV4_HOST_BYTES
            yield self._raw[position : position + width].tobytes()


def record_sizes(buffer: memoryview, starts: Numbers) -> Numbers:
    """The sizes that the records at ``starts`` claim; each start must be within the buffer."""
    is_bad = (starts < 0) | (starts > len(buffer) - MIN_RECORD_BYTES)
    if is_bad.any():
        decode_record(buffer, int(starts[int(np.argmax(is_bad))]))
    raw = np.frombuffer(buffer, np.uint8)
    return np.ndarray((len(raw) - 3,), ">i4", raw, strides=(1,))[starts].astype(np.int64)


def walk(buffer: memoryview) -> Numbers:
    """Where the records start that follow each other in ``buffer``, as in a pull answer."""
    starts: list[int] = []
    position, total = 0, len(buffer)
    while position < total:
        size, _ = peek_record(buffer, position)
        if size < MIN_RECORD_BYTES:
            decode_record(buffer, position)
        starts.append(position)
        position += size
    return np.array(starts, np.int64)
