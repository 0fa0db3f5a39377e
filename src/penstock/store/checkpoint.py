"""What is known to be on the disk: RocketMQ's checkpoint page, and a note of our own beside it.

``checkpoint`` is one page of eight-byte numbers, big-endian, the rest zero:

    0 log_timestamp | 8 queue_timestamp | 16 index_timestamp
    | 24 master_flushed | 32 confirmed (both 0 on a plain master) | 40 queue_position (5.5)

The timestamps are store times of the last message whose log bytes, queue entry and index entry are
on the disk. Recovery after a crash starts at the last segment that begins before all of them.

``penstock.state`` is read by Penstock alone; RocketMQ ignores it. It says what the checkpoint has
no room for: whether *we* stopped cleanly and where the log ended then, so that opening needs no
scan. It is believed only while the files are exactly as we left them; if another program wrote to
the store since, opening scans like RocketMQ does.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.store.files import PAGE_BYTES, FileLayer
from penstock.store.segments import write_fully

CHECKPOINT_NAME: Final = "checkpoint"
STATE_NAME: Final = "penstock.state"
_STATE_VERSION = 1
_MAX_STATE_BYTES = 16 << 20

# RocketMQ writes a message's timestamp some time after its bytes; this covers the difference.
SAFETY_MS: Final = 3_000

_PAGE = struct.Struct(">6q")


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

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the numbers and return when they are on the disk."""
        page = checkpoint.encode()
        write_fully(self._files, self._descriptor, (page,), 0, len(page))
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Give the file back."""
        self._files.close(self._descriptor)


@dataclass(slots=True, kw_only=True)
class StoreState:
    """What we note for our own next start."""

    clean: bool = False
    boot_id: str = ""
    is_recovering: bool = False
    """Whether recovery was under way: a second one must not trust what the first began."""
    sizes: dict[str, int] = field(default_factory=dict)
    log_end: int = 0
    last_record: int = -1
    fingerprint: list[int] = field(default_factory=list)
    """Times of change of the files whose content this note vouches for."""
    flushed_position: int = 0
    """The log before this was on the disk for sure when the note was written."""
    queue_position: int = 0
    """Messages before this had their queue entries on the disk. The checkpoint says so too, but
    a page may be torn, while this note is replaced as a whole."""
    index_synced: str = ""
    """The newest index file that was full and on the disk."""
    index_stopped_at: int = -1
    """From where on the index may lack keys, since it could not be written; -1 if it was."""
    is_all_ours: bool = False
    """Whether no other program ever wrote to the store."""
    deleted_topics: dict[str, int] = field(default_factory=dict)
    """Topics deleted, and where the log ended then: older records of theirs stay dead."""


def load_state(files: FileLayer, root: str) -> StoreState | None:
    """Our note, or None if there is none or it cannot be read; it is never needed, only useful."""
    path = f"{root}/{STATE_NAME}"
    entry = files.stat(path)
    if entry is None or entry.size > _MAX_STATE_BYTES:
        return None
    descriptor = files.open(path)
    try:
        data = files.read(descriptor, entry.size, 0)
    finally:
        files.close(descriptor)
    try:
        return _decode_state(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _decode_state(raw: Any) -> StoreState:
    if raw["version"] != _STATE_VERSION:
        raise ValueError(raw["version"])
    fresh = StoreState()
    values: dict[str, Any] = {}
    for name in (item.name for item in dataclasses.fields(StoreState)):
        # Notes of earlier versions have no such number.
        value = raw.get(name, -1) if name == "index_stopped_at" else raw[name]
        if type(value) is not type(getattr(fresh, name)):
            raise TypeError(name)
        values[name] = value
    state = StoreState(**values)
    numbers = [*state.sizes.values(), *state.fingerprint, *state.deleted_topics.values()]
    if any(type(number) is not int for number in numbers):
        raise TypeError("numbers")
    return state


def save_state(files: FileLayer, root: str, state: StoreState) -> None:
    """Replace our note; it is on the disk when this returns."""
    path = f"{root}/{STATE_NAME}"
    fresh = f"{path}.new"
    data = json.dumps({"version": _STATE_VERSION, **dataclasses.asdict(state)}).encode()
    files.remove(fresh)
    descriptor = files.create(fresh, 0)
    try:
        write_fully(files, descriptor, (data,), 0, len(data))
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(fresh, path)
    files.sync_dir(root)
