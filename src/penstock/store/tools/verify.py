"""Is a store whole? The log against its checksums, queues, index and timers against the log.

The log is walked once, in order. Each record must be where its queue says it is, and its keys must
be found through the index. Queue entries and index units are in the order of the log too, so
nothing is searched for and memory does not grow with the store.

A store that runs or crashed is unfinished, not damaged: what lies behind the last flush is made
again by recovery. Such things are counted and reported, but they are not damage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import layout
from penstock.store.checkpoint import Checkpoint, load_checkpoint
from penstock.store.config import StoreConfig
from penstock.store.files import FileLayer
from penstock.store.log_scan import Scanned
from penstock.store.memory_disks import check_room
from penstock.store.note import StoreState, load_state, vouched_end
from penstock.store.segments import OS_FILES
from penstock.store.store import MessageStore
from penstock.store.tools.index_check import IndexCheck
from penstock.store.tools.log_walk import Damage, LogWalk
from penstock.store.tools.queue_check import QueueCheck
from penstock.store.tools.timer_check import check_timers
from penstock.store.transactions.open_halves import count_open

__all__ = ["Damage", "Verification", "verify"]

_REPORT_EVERY = 4096
_UNQUEUED = (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class Verification:
    """What was checked, and what is wrong."""

    name: str
    root: str
    is_clean: bool
    segments: int = 0
    records: int = 0
    record_bytes: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_keys: int = 0
    timers_waiting: int = 0
    open_transactions: int = 0
    damages: list[Damage] = field(default_factory=list)
    """The first one of each file, in the order they were found."""
    notes: list[str] = field(default_factory=list)
    """What is unfinished or unusual, and no damage."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages


class Trust:
    """Up to where queues and index must be complete: all of it after a clean stop."""

    def __init__(self, state: StoreState | None, checkpoint: Checkpoint, *, is_clean: bool) -> None:
        self.is_clean = is_clean
        self._position = None if state is None else state.queue_position
        self._timestamp = checkpoint.recovery_timestamp

    def covers(self, record: Scanned) -> bool:
        """Whether a record's entries must be in the files."""
        if self.is_clean:
            return True
        if self._position is not None:
            return record.log_position < self._position
        return record.store_timestamp <= self._timestamp


def verify(
    name: str,
    root: str,
    *,
    files: FileLayer = OS_FILES,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Walk a whole store; reads only."""
    check_room(files, root)
    state = load_state(files, root)
    is_clean = files.stat(f"{root}/{layout.ABORT}") is None
    result = Verification(name, root, is_clean)
    trust = Trust(state, load_checkpoint(files, root), is_clean=is_clean)
    # Queues and index of a live store grow while the log is walked: look at them first, so that
    # they are never ahead of it.
    index = IndexCheck(files, root, state)
    queues = QueueCheck(files, root, state)
    walk = LogWalk(files, root, state)
    try:
        index.start(walk.is_record)
        vouched = vouched_end(files, root, state)
        _walk_log(walk, queues, index, trust, result, progress)
        walk.check_end(vouched)
        queues.finish(walk, is_clean=is_clean)
        index.finish(walk.end, is_clean=is_clean)
        timers = check_timers(
            files, root, is_clean=is_clean, log_start=walk.start, record_at=walk.record_at
        )
    finally:
        walk.close()
    result.segments = len(walk.files)
    result.queues, result.queue_entries = queues.count, queues.entries
    result.index_files, result.index_keys = index.files_count, index.keys
    result.timers_waiting = timers.waiting
    result.damages = _first_of_each_file(
        walk.damages + queues.damages + index.damages + timers.damages
    )
    if walk.torn_tail is not None and not walk.damages:
        result.notes.append(f"the log ends in a torn write at {walk.torn_tail}; opening cuts it")
    result.notes += queues.notes(is_log_whole=not walk.damages) + index.notes() + timers.notes
    if result.is_whole:
        with MessageStore.open_readonly(root, StoreConfig(), files=files) as store:
            result.open_transactions = count_open(store, files, root)
    return result


def _walk_log(
    walk: LogWalk,
    queues: QueueCheck,
    index: IndexCheck,
    trust: Trust,
    result: Verification,
    progress: Callable[[int, int], None] | None,
) -> None:
    total = walk.end_of_files - walk.start
    count = size = 0
    is_clean = trust.is_clean
    for base, _, records in walk.records():
        for record in records:
            count += 1
            size += record.size
            if progress is not None and count % _REPORT_EVERY == 0:
                progress(record.log_position - walk.start, total)
            kind = record.sys_flag & SysFlag.TRANSACTION_MASK
            is_due = is_clean or trust.covers(record)
            if kind not in _UNQUEUED:
                queues.check(record, is_due=is_due)
            if kind != SysFlag.TRANSACTION_ROLLBACK:
                index.check(record, is_due=is_due)
        if progress is not None:
            progress(base + walk.segment_size - walk.start, total)
    result.records, result.record_bytes = count, size


def _first_of_each_file(damages: list[Damage]) -> list[Damage]:
    first: dict[str, Damage] = {}
    for damage in damages:
        first.setdefault(damage.file, damage)
    return list(first.values())
