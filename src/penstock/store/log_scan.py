"""Walking the log: record after record, each checked, until it ends or is damaged.

A record is bad if fewer bytes are left than it says it has, its magic is unknown, its lengths do
not add up, it says it is somewhere else, or its body does not have its checksum. A blank leads to
the next segment, zeros are the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from penstock.errors import StoreDamaged
from penstock.model.record_layout import (
    BLANK_HEAD_BYTES,
    BLANK_MAGIC,
    BODY_POSITION,
    CRC_MASK,
    HOST_BITS,
    HOST_SHIFT,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    PREFIX,
    PROPERTIES_LENGTH,
    head_structs,
)
from penstock.store.segments import segment_path

_MAX_CACHED_TOPICS: Final = 65_536
_HEADS = head_structs(
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "log_position",
    "sys_flag",
    "store_timestamp",
    "body_length",
)
_unpack_plain_head = _HEADS[0].unpack_from
_unpack_length = PROPERTIES_LENGTH.unpack_from


class Scanned(NamedTuple):
    """What dispatching needs of a record in the log."""

    log_position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


class Segmented(Protocol):
    """What a scan needs of a log."""

    directory: str
    segment_size: int
    refuses_zeros: bool

    def segment_view(self, base: int) -> memoryview | None:
        """The bytes of a segment; None if there is none."""


class LogScan:
    """An iterator over records; afterwards ``end`` and ``damage`` say how it stopped.

    ``damage`` is None where zeros follow, which is how an undamaged log ends.
    """

    def __init__(
        self, commit_log: Segmented, start: int, end: int | None, *, check_crc: bool
    ) -> None:
        self._log = commit_log
        self._stop = end
        self._check_crc = check_crc
        self._topics: dict[bytes, str] = {}
        self.end = start
        self.last_record = -1
        self.last_timestamp = 0
        self.damage: str | None = None

    def __iter__(self) -> Iterator[Scanned]:
        commit_log = self._log
        size = commit_log.segment_size
        while self._stop is None or self.end < self._stop:
            base = self.end - self.end % size
            view = commit_log.segment_view(base)
            if view is None:
                return
            yield from self._scan_segment(base, view)
            if self.end < base + size:
                return

    def _scan_segment(self, base: int, view: memoryview) -> Iterator[Scanned]:
        """Yield the records of one segment; at its blank, ``end`` becomes the next segment."""
        limit = len(view)
        stop = limit if self._stop is None else min(limit, self._stop - base)
        at = self.end - base
        parse = self._parse
        while at < stop:
            if limit - at < MIN_RECORD_BYTES:
                self._scan_rest(base, view, at)
                return
            head = _unpack_plain_head(view, at)
            magic = head[1]
            if magic == BLANK_MAGIC:
                self.end = base + limit
                return
            if magic == 0 and head[0] == 0:
                return
            record = parse(base, view, at, head)
            if record is None:
                return
            at += record[1]
            self.last_record, self.last_timestamp = record[0], record[6]
            self.end = base + at
            yield record

    def _scan_rest(self, base: int, view: memoryview, at: int) -> None:
        """See what is in the last bytes of a segment, too few for a record."""
        left = len(view) - at
        if left < BLANK_HEAD_BYTES:
            self.end = base + len(view)
            return
        size, magic = PREFIX.unpack_from(view, at)
        if magic == BLANK_MAGIC:
            self.end = base + len(view)
        elif size or magic:
            self.damage = f"a record of {size} bytes with {left} left"

    def _parse(self, base: int, view: memoryview, at: int, head: tuple[int, ...]) -> Scanned | None:
        """The record at ``at``, or None and the ``damage``."""
        size, magic, crc, queue_id, queue_offset, log_position, sys_flag, timestamp, length = head
        end = at + size
        body_at = at + BODY_POSITION
        if magic == MAGIC_V1:
            width = 1
        elif magic == MAGIC_V2:
            width = 2
        else:
            return self._damaged(f"unknown magic {magic:#010x}")
        if not MIN_RECORD_BYTES <= size <= len(view) - at:
            return self._damaged(f"a record of {size} bytes with {len(view) - at} left")
        if sys_flag & HOST_BITS:
            plain = _HEADS[(sys_flag & HOST_BITS) >> HOST_SHIFT]
            body_at = at + plain.size
            if body_at + width + 2 > end:
                return self._damaged(f"a head of {plain.size} bytes in a record of {size}")
            timestamp, length = plain.unpack_from(view, at)[7:]
        topic_at = body_at + length + width
        if length < 0 or topic_at + 2 > end:
            return self._damaged(f"a body of {length} bytes in a record of {size}")
        topic_end = topic_at + (
            view[topic_at - 1] if width == 1 else _unpack_length(view, topic_at - 2)[0]
        )
        if not topic_at <= topic_end <= end - 2 or (
            _unpack_length(view, topic_end)[0] != end - topic_end - 2
        ):
            return self._damaged(f"lengths that do not add up to the record's {size} bytes")
        if log_position != base + at:
            return self._damaged(f"a record that says it is at {log_position}")
        if self._check_crc and zlib.crc32(view[body_at : body_at + length]) & CRC_MASK != crc:
            return self._damaged("a body that does not have its checksum")
        raw_topic = bytes(view[topic_at:topic_end])
        topic = self._topics.get(raw_topic) or self._topic(raw_topic)
        if topic is None:
            return None
        properties = bytes(view[topic_end + 2 : end])
        if self._check_crc and 0 in properties and self._is_torn(view, end):
            return self._damaged("properties that were written in part")
        return Scanned(
            log_position, size, topic, queue_id, queue_offset, sys_flag, timestamp, properties
        )

    def _damaged(self, damage: str) -> Scanned | None:
        self.damage = damage
        return None

    def _is_torn(self, view: memoryview, end: int) -> bool:
        """Whether zeros in a record's properties are a part that was never written.

        The checksum covers the body only. Our own records hold no zeros there, ``append`` sees to
        that; another program's may, so there it takes a log that ends right behind.
        """
        if self._log.refuses_zeros or len(view) - end < BLANK_HEAD_BYTES:
            return self._log.refuses_zeros
        _, magic = PREFIX.unpack_from(view, end)
        return magic not in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC)

    def _topic(self, raw: bytes) -> str | None:
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            self.damage = f"a topic {raw[:64]!r} that is not UTF-8"
            return None
        if "\0" in topic:
            self.damage = f"a topic {topic[:64]!r} that was written in part"
            return None
        if len(self._topics) >= _MAX_CACHED_TOPICS:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    def damaged(self, vouched: int = 0) -> StoreDamaged:
        """The error that names where the scan stopped.

        ``vouched`` is up to where the log is known to have been on the disk.
        """
        base = self.end - self.end % self._log.segment_size
        path = segment_path(self._log.directory, base)
        expected = "a record, since whole ones follow or messages behind it were on the disk"
        if self.end < vouched:
            expected = f"records up to log position {vouched}, which were on the disk"
        return StoreDamaged(
            f"{path} at {self.end - base} (log position {self.end}): "
            f"{self.damage or 'the log ends here'}",
            expected=expected,
            hint="restore the file from a copy; or save what can be read with penstock store "
            "export and start with truncateDamagedLog=true: that moves the rest to penstock.cut",
        )
