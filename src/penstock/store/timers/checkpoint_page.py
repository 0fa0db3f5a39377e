"""``config/timercheck``: how far timers were delivered and enqueued.

    0 read_ms | 8 log_position | 16 queue_offset | 24 queue_offset of the master
    | 32 state version | 40 version time | 48 version counter          (eight bytes each)
    | 64 "penstock" | 72 precision | 80 slot in work | 88 its last unit delivered
    | 96 CRC of all before it: ours
    | 256 "checksum" | 264 counter | 272 checksum of wheel and timer log | 280 CRC: after a stop
    | 512 a copy of the first 104 bytes

``read_ms`` is the next slot to deliver, ``log_position`` the end of the timer log that is on the
disk together with the slots that link it, ``queue_offset`` the next parked message to enqueue. The
second queue offset is that of a master; a broker that finds it smaller than its own starts there,
so it is always written. RocketMQ reads and writes the first 56 bytes of the page: where our own
mark does not match them, another program used the files since; or a power failure tore the page,
which the copy tells, because every save of either program counts one more. A clean stop leaves the
checksum of the other two files; every other save clears it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.store.files import PAGE_BYTES, FileLayer
from penstock.store.segments import make_durable_dir, write_fully

NAME: Final = "timercheck"
_NUMBERS: Final = struct.Struct(">7q")
_MARK: Final = b"penstock"
_MARK_AT: Final = 64
_OURS: Final = struct.Struct(">8s3q")
_CRC: Final = struct.Struct(">q")
_COPY_AT: Final = 512
_CHECKSUM_AT: Final = 256
_CHECKSUM_MARK: Final = b"checksum"
_CHECKSUM: Final = struct.Struct(">8s2q")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The numbers of the page."""

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    version_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """The 56 bytes that RocketMQ knows; also the body that GET_TIMER_CHECK_POINT answers."""
        return _NUMBERS.pack(
            self.read_ms,
            self.log_position,
            self.queue_offset,
            self.queue_offset,
            0,
            self.version_ms,
            self.counter,
        )


class SlotProgress(NamedTuple):
    """How far the slot that is being delivered has come: the position of a unit in the log."""

    slot_ms: int = 0
    position: int = -1


class FoundCheckpoint(NamedTuple):
    """What a page says, and whether we wrote it last."""

    checkpoint: TimerCheckpoint
    precision_ms: int = 0
    """0: not known, since it is not ours."""
    progress: SlotProgress = SlotProgress()
    checksum: int | None = None
    """Of wheel and timer log as a clean stop left them; None: it was no clean stop of ours."""

    @property
    def is_ours(self) -> bool:
        """Whether we wrote it last."""
        return bool(self.precision_ms)


def load_checkpoint(files: FileLayer, root: str) -> FoundCheckpoint | None:
    """The page of a store; None where there is none, or it says nothing."""
    try:
        descriptor = files.open(f"{root}/config/{NAME}")
    except FileNotFoundError:
        return None
    try:
        page = files.read(descriptor, PAGE_BYTES, 0)
    finally:
        files.close(descriptor)
    found, copy = _decode(page), _decode(page[_COPY_AT:])
    if found.is_ours:
        return found._replace(checksum=_checksum(page, found.checkpoint.counter))
    if copy.is_ours and copy.checkpoint.counter == found.checkpoint.counter:
        # Torn: the counter is the last number of a save.
        return copy
    numbers = found.checkpoint
    return found if numbers.read_ms or numbers.log_position or numbers.queue_offset else None


def _decode(page: bytes) -> FoundCheckpoint:
    """What a page says; ours only if it is whole."""
    if len(page) < _NUMBERS.size:
        return FoundCheckpoint(TimerCheckpoint())
    read_ms, log_position, queue_offset, master, _, version_ms, counter = (
        # A number below zero cannot be a time or a position.
        max(0, number)
        for number in _NUMBERS.unpack_from(page)
    )
    found = FoundCheckpoint(
        TimerCheckpoint(read_ms, log_position, max(queue_offset, master), version_ms, counter)
    )
    crc_at = _MARK_AT + _OURS.size
    if len(page) < crc_at + _CRC.size:
        return found
    mark, precision_ms, slot_ms, position = _OURS.unpack_from(page, _MARK_AT)
    (crc,) = _CRC.unpack_from(page, crc_at)
    if mark != _MARK or crc != zlib.crc32(page[:crc_at]) or precision_ms <= 0:
        return found
    return found._replace(precision_ms=precision_ms, progress=SlotProgress(slot_ms, position))


def _checksum(page: bytes, counter: int) -> int | None:
    """The checksum that belongs to the save with this number; None if there is none."""
    crc_at = _CHECKSUM_AT + _CHECKSUM.size
    if len(page) < crc_at + _CRC.size:
        return None
    mark, counted, checksum = _CHECKSUM.unpack_from(page, _CHECKSUM_AT)
    (crc,) = _CRC.unpack_from(page, crc_at)
    is_sound = mark == _CHECKSUM_MARK and crc == zlib.crc32(page[_CHECKSUM_AT:crc_at])
    return checksum if is_sound and counted == counter else None


class CheckpointPage:
    """The page, open for writing; `save` waits for the disk."""

    def __init__(self, files: FileLayer, root: str, precision_ms: int) -> None:
        self._files = files
        self._precision_ms = precision_ms
        make_durable_dir(files, f"{root}/config")
        path = f"{root}/config/{NAME}"
        entry = files.stat(path)
        if entry is not None and entry.size == PAGE_BYTES:
            self._descriptor = files.open(path, write=True)
            return
        if entry is not None:
            files.remove(path)
        self._descriptor = files.create(path, PAGE_BYTES)
        files.sync_dir(f"{root}/config")

    def save(
        self, checkpoint: TimerCheckpoint, progress: SlotProgress, checksum: int | None = None
    ) -> None:
        """Write the numbers and return when they are on the disk.

        ``checksum`` is that of the other files, which nothing is written to from now on.
        """
        numbers = checkpoint.encode().ljust(_MARK_AT, b"\0")
        numbers += _OURS.pack(_MARK, self._precision_ms, *progress)
        numbers += _CRC.pack(zlib.crc32(numbers))
        page = numbers.ljust(_CHECKSUM_AT, b"\0")
        if checksum is not None:
            part = _CHECKSUM.pack(_CHECKSUM_MARK, checkpoint.counter, checksum)
            page += part + _CRC.pack(zlib.crc32(part))
        page = page.ljust(_COPY_AT, b"\0") + numbers
        write_fully(self._files, self._descriptor, (page,), 0, len(page))
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._descriptor)
