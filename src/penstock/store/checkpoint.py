"""The checkpoint: how far log, queues and index are on the disk, in RocketMQ's one page.

``checkpoint`` is one page of eight-byte numbers, big-endian, the rest zero:

    0 log_timestamp | 8 queue_timestamp | 16 index_timestamp
    | 24 master_flushed | 32 confirmed (both 0 on a plain master) | 40 queue_position (5.5)
    | 2048 ours: mark:4 checksum:4 run:8 flushed_position:8

The timestamps are store times of the last message whose log bytes, queue entry and index entry are
on the disk. Recovery after a crash starts at the last segment that begins before all of them.

RocketMQ neither reads nor changes the second half of the page. There we note about once a second up
to where the log was flushed: our own note (`note`) costs several syncs and is written less often.
``run`` names the opening of the store that wrote it; what an earlier one left counts for nothing.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.store.files import PAGE_BYTES, FileLayer
from penstock.store.segments import write_fully

CHECKPOINT_NAME: Final = "checkpoint"

# RocketMQ writes a message's timestamp some time after its bytes; this covers the difference.
SAFETY_MS: Final = 3_000

_PAGE = struct.Struct(">6q")
_FLUSHED_AT: Final = 2048
_FLUSHED = struct.Struct(">4sI16s")
_FLUSHED_MARK: Final = b"PnSt"
_FLUSHED_NUMBERS = struct.Struct(">qq")


@dataclass(slots=True)
class Checkpoint:
    """The numbers of the checkpoint page."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    queue_position: int = 0

    @property
    def recovery_timestamp(self) -> int:
        """Everything stored before this time is on the disk, queue entries included."""
        return max(0, min(self.log_timestamp, self.queue_timestamp) - SAFETY_MS)

    def encode(self) -> bytes:
        """The used part of the page."""
        return _PAGE.pack(
            self.log_timestamp,
            self.queue_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirmed,
            self.queue_position,
        )


def load_checkpoint(files: FileLayer, root: str) -> Checkpoint:
    """The checkpoint of a store; zeros, which trust nothing, where there is none."""
    try:
        descriptor = files.open(f"{root}/{CHECKPOINT_NAME}")
    except FileNotFoundError:
        return Checkpoint()
    try:
        page = files.read(descriptor, _PAGE.size, 0)
    finally:
        files.close(descriptor)
    if len(page) < _PAGE.size:
        return Checkpoint()
    # A number below zero cannot be a time or a position; a torn page must not be believed.
    return Checkpoint(*(max(0, number) for number in _PAGE.unpack(page)))


class FlushedNote(NamedTuple):
    """Up to where the log was on the disk, and which opening of the store made sure of it."""

    run: int
    position: int

    def encode(self) -> bytes:
        """Our part of the page."""
        numbers = _FLUSHED_NUMBERS.pack(self.run, self.position)
        return _FLUSHED.pack(_FLUSHED_MARK, zlib.crc32(numbers), numbers)


def load_flushed(files: FileLayer, root: str) -> FlushedNote | None:
    """Our part of the checkpoint page; None where there is none, or half of it."""
    try:
        descriptor = files.open(f"{root}/{CHECKPOINT_NAME}")
    except FileNotFoundError:
        return None
    try:
        part = files.read(descriptor, _FLUSHED.size, _FLUSHED_AT)
    finally:
        files.close(descriptor)
    if len(part) < _FLUSHED.size:
        return None
    mark, checksum, numbers = _FLUSHED.unpack(part)
    if mark != _FLUSHED_MARK or checksum != zlib.crc32(numbers):
        return None
    return FlushedNote(*_FLUSHED_NUMBERS.unpack(numbers))


class CheckpointFile:
    """The checkpoint page, open for writing."""

    def __init__(self, files: FileLayer, root: str) -> None:
        self._files = files
        path = f"{root}/{CHECKPOINT_NAME}"
        entry = files.stat(path)
        if entry is not None and entry.size == PAGE_BYTES:
            self._descriptor = files.open(path, write=True)
            return
        if entry is not None:
            files.remove(path)
        self._descriptor = files.create(path, PAGE_BYTES)
        files.sync_dir(root)

    def save(self, checkpoint: Checkpoint, flushed: FlushedNote) -> None:
        """Write the numbers and return when they are on the disk."""
        for part, position in ((checkpoint.encode(), 0), (flushed.encode(), _FLUSHED_AT)):
            write_fully(self._files, self._descriptor, (part,), position, len(part))
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._descriptor)
