"""What is where in a store directory, and of which sizes.

    commitlog/  consumequeue/<topic>/<queue>/  index/  config/  checkpoint  abort  lock
    timerlog/  timerwheel

RocketMQ stores its segment sizes nowhere. They are read off the files, or off our own note of an
earlier run, and must agree with the settings where there are any.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.config import (
    DEFAULT_COMMIT_LOG_BYTES,
    DEFAULT_CONSUME_QUEUE_BYTES,
    DEFAULT_INDEX_SLOTS,
    DEFAULT_INDEX_UNITS,
    StoreConfig,
)
from penstock.store.consume_queue import UNIT_BYTES
from penstock.store.files import FileEntry, FileLayer
from penstock.store.index_files import IndexShape, find_index_files, index_shape
from penstock.store.note import StoreState
from penstock.store.segments import SegmentList, adopted_size, find_segments, segment_path

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
INDEX: Final = "index"
TIMER_LOG: Final = "timerlog"
TIMER_WHEEL: Final = "timerwheel"
CHECKPOINT: Final = "checkpoint"
STATE: Final = "penstock.state"
ABORT: Final = "abort"
LOCK: Final = "lock"
OPEN_INDEX_FILES: Final = 16

_NOT_SUPPORTED = {
    "consumequeue_ext": "extended consume queues",
    "batchconsumequeue": "batch consume queues",
    "rocksdbstore": "RocksDB",
    "compaction": "compaction",
}


class Layout(NamedTuple):
    """What a store directory holds."""

    segments: SegmentList
    queue_bytes: int
    index_entries: list[FileEntry]
    index_shape: IndexShape
    foreign: list[str]


def inspect(
    files: FileLayer,
    root: str,
    config: StoreConfig,
    state: StoreState | None,
    *,
    after_crash: bool = False,
) -> Layout:
    """Look at a directory without reading any message; refuse sizes and names that cannot be."""
    known = {} if state is None else state.sizes
    foreign = [
        f"{entry.name}: {_NOT_SUPPORTED[entry.name]} are left alone"
        for entry in sorted(files.list_dir(root))
        if entry.name in _NOT_SUPPORTED
    ]
    segments = _log_segments(
        files, f"{root}/{COMMIT_LOG}", config, known.get("commit_log"), after_crash=after_crash
    )
    if after_crash and state is not None and segments.bases[:1] > [state.flushed_position]:
        # Retention deletes only what was on the disk, so this is no old log but a headless one.
        headless = [segment_path(f"{root}/{COMMIT_LOG}", base) for base in segments.bases]
        segments = segments._replace(bases=[], stray=headless + segments.stray)
    queue_bytes = _queue_bytes(
        files, f"{root}/{CONSUME_QUEUE}", config, known.get("consume_queue"), foreign
    )
    index_directory = f"{root}/{INDEX}"
    entries, others = find_index_files(files, index_directory)
    foreign += [f"{INDEX}/{name}: not an index file, left alone" for name in others]
    default = IndexShape(
        known.get("index_slots", DEFAULT_INDEX_SLOTS), known.get("index_units", DEFAULT_INDEX_UNITS)
    )
    if after_crash and state is not None:
        # What was not synced may be cut short; it holds nothing then, and is made again.
        entries = [
            entry._replace(size=0)
            if entry.size < default.file_bytes and entry.name > state.index_synced
            else entry
            for entry in entries
        ]
    shape = index_shape(
        entries, index_directory, config.max_hash_slot_num, config.max_index_num, default
    )
    return Layout(segments, queue_bytes, entries, shape, foreign)


def _log_segments(
    files: FileLayer,
    directory: str,
    config: StoreConfig,
    known: int | None,
    *,
    after_crash: bool,
) -> SegmentList:
    configured = config.mapped_file_size_commit_log
    segments = find_segments(
        files,
        directory,
        size=known,
        default=configured or DEFAULT_COMMIT_LOG_BYTES,
        after_crash=after_crash,
    )
    if segments.bases:
        adopted_size(segments.size, configured, "mappedFileSizeCommitLog", directory)
    elif configured is not None:
        segments = segments._replace(size=configured)
    return segments


def _queue_bytes(
    files: FileLayer,
    directory: str,
    config: StoreConfig,
    known: int | None,
    foreign: list[str],
) -> int:
    """The size of queue files: that of the first one found."""
    configured = config.mapped_file_size_consume_queue
    key = "mappedFileSizeConsumeQueue"
    if known is not None and known % UNIT_BYTES == 0 and known > 0:
        return adopted_size(known, configured, key, directory)
    found: int | None = None
    for topic in sorted(files.list_dir(directory)):
        for queue in sorted(files.list_dir(f"{directory}/{topic.name}")):
            if not queue.is_dir or not queue.name.isdigit():
                foreign.append(
                    f"{CONSUME_QUEUE}/{topic.name}/{queue.name}: not a queue, left alone"
                )
            elif found is None:
                sizes = [
                    entry.size
                    for entry in files.list_dir(f"{directory}/{topic.name}/{queue.name}")
                    if entry.size and not entry.is_dir
                ]
                found = max(sizes, default=None)
    if found is None:
        return configured or DEFAULT_CONSUME_QUEUE_BYTES
    if found % UNIT_BYTES:
        raise StoreDamaged(
            f"a queue file in {directory} has {found} bytes",
            expected=f"a multiple of {UNIT_BYTES}, the size of an entry",
        )
    return adopted_size(found, configured, key, directory)
