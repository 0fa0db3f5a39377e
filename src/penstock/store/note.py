"""Our own note beside the store: what the next start may rely on.

``penstock.state`` is read by Penstock alone; RocketMQ ignores it. It says what the checkpoint has
no room for: whether *we* stopped cleanly and where the log ended then, so that opening needs no
scan, and what must still be there. Where the log ended is believed only while the files are exactly
as we left them; if another program wrote to the store since, opening scans like RocketMQ does.

The note is JSON with a checksum over everything else in it: a flipped digit would make recovery
cut the log in the wrong place. A note without its checksum counts as none.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.store.checkpoint import load_flushed
from penstock.store.files import FileLayer
from penstock.store.segments import write_fully

log = logging.getLogger(__name__)

STATE_NAME: Final = "penstock.state"
_VERSION: Final = 2
_VERSION_WITHOUT_CHECKSUM: Final = 1
_MAX_STATE_BYTES = 16 << 20


@dataclass(slots=True, kw_only=True)
class StoreState:
    """What we note for our own next start."""

    clean: bool = False
    boot_id: str = ""
    run: int = 0
    """How often the store was opened for writing; see `checkpoint.FlushedNote`."""
    is_recovering: bool = False
    """Whether recovery was under way: a second one must not trust what the first began."""
    has_machine_died: bool = False
    """While recovering: whether the machine had died, which may lose and reorder writes."""
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
    queue_record: int = -1
    """The log position of the last message before that."""
    queue_ends: int = -1
    """After a clean stop: the checksum of the file that says where each queue ends."""
    index_synced: str = ""
    """The newest index file that was full and on the disk."""
    index_stopped_at: int = -1
    """From where on the index may lack keys, since it could not be written; -1 if it was."""
    index_files: dict[str, int] = field(default_factory=dict)
    """After a clean stop: the index files, and the number that the next key of each gets."""
    is_all_ours: bool = False
    """Whether no other program ever wrote to the store."""
    deleted_topics: dict[str, int] = field(default_factory=dict)
    """Topics deleted, and where the log ended then: older records of theirs stay dead."""


# What notes of earlier versions may lack.
_ADDED = frozenset(
    ("run", "has_machine_died", "queue_record", "queue_ends", "index_stopped_at", "index_files")
)


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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("note of the last run is damaged and not used file=%s error=%r", path, error)
        return None


def vouched_end(files: FileLayer, root: str, state: StoreState | None) -> int:
    """Up to where the log is known to have been on the disk, or complete at a clean stop."""
    flushed = load_flushed(files, root)
    # Without a readable note its run is not known, but that the log was on the disk still is.
    is_damaged = state is None and files.stat(f"{root}/{STATE_NAME}") is not None
    vouched = 0
    if flushed is not None and (is_damaged or (state and flushed.run == state.run)):
        vouched = flushed.position
    if state is not None:
        vouched = max(vouched, state.flushed_position, state.log_end if state.clean else 0)
    return vouched


def _decode_state(raw: Any) -> StoreState:
    version = raw.pop("version")
    if version != _VERSION_WITHOUT_CHECKSUM:
        checksum = raw.pop("checksum")
        if version != _VERSION or checksum != _checksum(raw):
            raise ValueError(f"version {version}, checksum {checksum}")
    fresh = StoreState()
    values: dict[str, Any] = {}
    for name in (item.name for item in dataclasses.fields(StoreState)):
        value = raw.get(name, getattr(fresh, name)) if name in _ADDED else raw[name]
        if type(value) is not type(getattr(fresh, name)):
            raise TypeError(name)
        values[name] = value
    state = StoreState(**values)
    numbers = [
        *state.sizes.values(),
        *state.fingerprint,
        *state.index_files.values(),
        *state.deleted_topics.values(),
    ]
    if any(type(number) is not int for number in numbers):
        raise TypeError("numbers")
    return state


def _checksum(raw: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(raw, sort_keys=True).encode())


def save_state(files: FileLayer, root: str, state: StoreState) -> None:
    """Replace our note; it is on the disk when this returns."""
    raw = dataclasses.asdict(state)
    text = json.dumps({"version": _VERSION, "checksum": _checksum(raw), **raw})
    replace_file(files, root, STATE_NAME, text.encode())


def replace_file(files: FileLayer, root: str, name: str, data: bytes) -> None:
    """Give a file of the store new content as a whole; it is on the disk when this returns."""
    path = f"{root}/{name}"
    fresh = f"{path}.new"
    files.remove(fresh)
    descriptor = files.create(fresh, 0)
    try:
        write_fully(files, descriptor, (data,), 0, len(data))
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(fresh, path)
    files.sync_dir(root)
