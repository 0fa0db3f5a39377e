"""The positions and values of the fields of many stored records, for all of them at once.

A view of the buffer with a stride of one byte lets numpy copy the headers of all records at once,
and take one field of every header, without a Python step per record. Lengths are checked as in
``decode_record``, so that no invalid length leads out of the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError
from penstock.model.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from penstock.model.record_layout import (
    BODY_POSITION,
    HEAD_FIELDS,
    MAGIC_V1,
    MAGIC_V2,
    MAX_V1_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    head_offset,
)
from penstock.protocol.records.codec import decode_record
from penstock.protocol.records.sys_flags import SysFlag

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# The dtypes of struct's codes; packed IPv4 hosts are handled as numbers.
_DTYPES: Final = {"i": ">i4", "I": ">u4", "q": ">i8", "8s": ">i8"}
# With IPv4 hosts; the fields behind an IPv6 host are further on. The magic is only compared, so
# its bytes need no swap.
_HEAD: Final = np.dtype(
    [(name, "<u4" if name == "magic" else _DTYPES[code]) for name, code in HEAD_FIELDS.items()]
)
_HOSTS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_WIDER: Final = IPV6_HOST_BYTES - IPV4_HOST_BYTES
_BORN_HOST: Final = head_offset("born_host")
_STORE_TIMESTAMP: Final = head_offset("store_timestamp")
_STORE_HOST: Final = head_offset("store_host")
# Fields behind the hosts are found from the start of the body.
_BODY_LENGTH: Final = head_offset("body_length") - BODY_POSITION
_RECONSUME_TIMES: Final = head_offset("reconsume_times") - BODY_POSITION
_SIZE: Final = struct.Struct(">i")
_LONG_RUN: Final = 64
"""For fewer records of one size, numpy takes longer than a loop."""
_V1, _V2 = (int.from_bytes(magic.to_bytes(4, "big"), "little") for magic in (MAGIC_V1, MAGIC_V2))


class Tail(NamedTuple):
    """Where in each record topic and properties are; the properties go to its end."""

    topic_start: Numbers
    topic_end: Numbers
    properties_start: Numbers


class RecordFields:
    """The fields of the records that start at ``starts`` in ``buffer``.

    Raises ``ProtocolError`` if one of them is not a whole record.
    """

    def __init__(self, buffer: memoryview, starts: Numbers) -> None:
        self._raw = raw = np.frombuffer(buffer, np.uint8)
        self.starts = starts
        self._tail: Tail | None = None
        self._known: dict[str, Numbers] = {}
        total = len(raw)
        # Usually all are valid; the extremes show that at half the cost of a mask.
        if len(starts) and (starts.min() < 0 or starts.max() > total - MIN_RECORD_BYTES):
            self._accept(buffer, (starts >= 0) & (starts <= total - MIN_RECORD_BYTES))
        # Copied as plain bytes, which is much faster than field by field.
        whole = np.ndarray((total - BODY_POSITION + 1,), f"V{BODY_POSITION}", raw, strides=(1,))
        self._head = whole[starts].view(_HEAD)
        self.size = size = self._field("size")
        self.sys_flag = flags = self._field("sys_flag")
        self.all_flags = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
        """The bits that any of the records has."""
        self.end = end = starts + size
        magic = self._head["magic"]
        is_v1 = magic == _V1
        self._is_v2: Mask | None = None
        if not is_v1.all():
            self._is_v2 = magic == _V2
            self._accept(buffer, is_v1 | self._is_v2)
        if len(size) and (size.min() < MIN_RECORD_BYTES or end.max() > total):
            self._accept(buffer, (size >= MIN_RECORD_BYTES) & (end <= total))
        self.is_wide = bool(self.all_flags & _HOSTS)
        self._shift_born: Numbers | int = 0
        self._shift_store: Numbers | int = 0
        if self.is_wide:
            self._shift_born = np.where(flags & SysFlag.BORN_HOST_V6, _WIDER, 0)
            self._shift_store = np.where(flags & SysFlag.STORE_HOST_V6, _WIDER, 0)
        self.body_start = starts + (BODY_POSITION + self._shift_born + self._shift_store)
        self.body_length = body_length = (
            self._at(self.body_start + _BODY_LENGTH, ">i4")
            if self.is_wide
            else self._field("body_length")
        )
        self.body_end = self.body_start + body_length
        # What follows the body has at least its two length fields.
        if len(size) and (body_length.min() < 0 or (end - self.body_end).min() < 3):
            self._accept(buffer, (body_length >= 0) & (self.body_end + 3 <= end))

    def __len__(self) -> int:
        return len(self.starts)

    def find_tail(self, buffer: memoryview) -> Tail:
        """Find topic and properties after the body, and check that they fill the record.

        Called only if one of them is needed, because it reads another part of memory.
        """
        if self._tail is not None:
            return self._tail
        v2 = self._is_v2
        topic_length = self._at(self.body_end, np.uint8)
        if v2 is not None:
            topic_length = np.where(v2, self._at(self.body_end, ">i2"), topic_length)
            topic_start = self.body_end + 1 + v2
            fits = (topic_length >= 0) & (v2 | (topic_length <= MAX_V1_TOPIC_BYTES))
        else:
            topic_start = self.body_end + 1
            fits = topic_length <= MAX_V1_TOPIC_BYTES
        topic_end = topic_start + topic_length
        properties_start = topic_end + 2
        fits &= properties_start <= self.end
        fits &= properties_start + self._at(topic_end, ">i2") == self.end
        self._accept(buffer, fits)
        self._tail = Tail(topic_start, topic_end, properties_start)
        return self._tail

    def check_offsets(self, listed: Numbers) -> None:
        """Refuse records with other queue offsets than these."""
        is_wrong = self.queue_offset != listed
        if is_wrong.any():
            index = int(np.argmax(is_wrong))
            raise ProtocolError(
                f"a message with queue offset {self.queue_offset[index]}",
                expected=f"the one with {listed[index]}",
            )

    def _accept(self, buffer: memoryview, is_good: Mask) -> None:
        if is_good.all():
            return
        position = int(self.starts[int(np.argmin(is_good))])
        decode_record(buffer, position)
        raise AssertionError(f"the record at {position} was refused, yet it is fine")

    def _field(self, name: str) -> Numbers:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._head[name].astype(np.int64)
        return known

    def _at(self, where: Numbers, kind: Any) -> Numbers:
        """Numbers at positions that are not checked yet and may be outside of the buffer."""
        dtype = np.dtype(kind)
        count = len(self._raw) - dtype.itemsize + 1
        view: npt.NDArray[Any] = np.ndarray((count,), dtype, self._raw, strides=(1,))
        return view[np.clip(where, 0, count - 1)].astype(np.int64)

    @property
    def body_crc(self) -> Numbers:
        return self._field("body_crc")

    @property
    def queue_id(self) -> Numbers:
        return self._field("queue_id")

    @property
    def queue_offset(self) -> Numbers:
        return self._field("queue_offset")

    @property
    def log_position(self) -> Numbers:
        return self._field("log_position")

    @property
    def born_timestamp(self) -> Numbers:
        return self._field("born_timestamp")

    @property
    def store_timestamp(self) -> Numbers:
        if self.is_wide:
            return self._at(self.starts + _STORE_TIMESTAMP + self._shift_born, ">i8")
        return self._field("store_timestamp")

    @property
    def reconsume_times(self) -> Numbers:
        if self.is_wide:
            return self._at(self.body_start + _RECONSUME_TIMES, ">i4")
        return self._field("reconsume_times")

    def hosts(self, *, born: bool) -> Numbers:
        """The packed hosts as numbers; only if not ``is_wide``."""
        return self._field("born_host" if born else "store_host")

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
    runs: list[Numbers] = []
    append = starts.append
    unpack = _SIZE.unpack_from
    position, total, last = 0, len(buffer), 0
    next_attempt, pause = 0, _LONG_RUN
    try:
        while position < total:
            (size,) = unpack(buffer, position)
            if size < MIN_RECORD_BYTES:
                decode_record(buffer, position)
            if size == last and position >= next_attempt:
                # Two of one size: often all are. Where not, attempts must not cost more and more.
                count = _run_length(buffer, position, size)
                if count > _LONG_RUN:
                    runs += (np.array(starts, np.int64), position + size * np.arange(count))
                    starts.clear()
                    position += size * count
                    continue
                next_attempt = position + size * pause
                pause *= 2
            append(position)
            position += size
            last = size
    except struct.error:
        decode_record(buffer, position)
    return np.concatenate([*runs, np.array(starts, np.int64)])


def _run_length(buffer: memoryview, position: int, size: int) -> int:
    """The number of records from ``position`` on that have this size; at least the first."""
    # The last one may be cut off: its size is there, and whether it is whole is checked later.
    most = (len(buffer) - position - _SIZE.size) // size + 1
    for count in (min(most, _LONG_RUN + 1), most):
        sizes = np.ndarray((count,), ">i4", buffer, position, strides=(size,))
        differs = sizes != size
        found = int(differs.argmax())
        if differs[found]:
            return found
    return most
