"""The parts of an open store, and the little state they share.

``MessageStore`` builds and owns them; each part gets the whole, and touches what is its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import (
    DiskFull,
    PenstockError,
    StoreBlocked,
    StoreDamaged,
    StoreError,
    StoreLost,
)
from penstock.store import layout
from penstock.store.checkpoint import Checkpoint
from penstock.store.commit_log import CommitLog
from penstock.store.config import StoreConfig
from penstock.store.files import FileLayer
from penstock.store.index_builder import IndexBuilder
from penstock.store.key_index import KeyIndex
from penstock.store.note import StoreState
from penstock.store.queue_ends import QueueEnds
from penstock.store.queue_table import QueueTable
from penstock.store.statistics import StoreStatistics

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(slots=True)
class StoreContext:
    """What a store is made of."""

    root: str
    config: StoreConfig
    files: FileLayer
    time_ms: Callable[[], int]
    monotonic: Callable[[], float]
    read_only: bool
    commit_log: CommitLog
    queues: QueueTable
    index: KeyIndex | None
    index_builder: IndexBuilder
    checkpoint: Checkpoint
    state: StoreState | None
    """Our own note as it was found, or as it was last written."""
    stray: list[str]
    """Log segments without a byte or behind a gap, which a crashed machine leaves."""
    has_crashed: bool
    is_same_boot: bool
    """Whether the machine may have run ever since the store was last written by us."""
    is_intact: bool
    """Whether all that ended was the process, with no recovery under way: the page cache holds
    every byte it wrote, in the order it wrote them."""
    has_kept_order: bool
    """Whether no machine died since the last recovery that came to its end: what is in the files
    was written in order, and no part of it is missing."""
    vouched_end: int
    """Up to where the log is known to have been on the disk, or complete at a clean stop."""
    queue_ends: QueueEnds | None
    """Where a clean stop left the queues; None if that is not known."""
    foreign: list[str]
    counts: StoreStatistics = field(default_factory=StoreStatistics)
    published: tuple[int, int, int] = (0, 0, -1)
    """End of what readers can see of the log, store time and log position of the last message."""
    deletable_before: int = 0
    """Segments before this position may go: the disk has their queue entries, and our note that
    it had the segments. Without the one a queue would forget its place, without the other a
    machine that lost new segments would look like one whose old segments were deleted."""
    is_marked_open: bool = False
    """Whether the next start will know that this one was under way."""
    on_failed_write: Callable[[StoreError], None] | None = None
    """Called when a write lost all messages that were staged."""
    on_staged: Callable[[str, int], None] | None = None
    """Called with topic and queue when the first message since the last write is staged."""
    lock_token: int | None = None
    are_files_removed: bool = False
    """Whether queues and index were removed on purpose, to be made again: no error to report."""
    """The lock that a store open for writing holds."""
    damage: StoreDamaged | None = None
    """What is wrong with the log, if it is read although messages behind the damage are not."""
    refusal: PenstockError | None = None
    """Why nothing is appended, if so."""

    def note_deletable(self) -> None:
        """Let retention go as far as the note reaches that was just written."""
        if self.state is not None:
            self.deletable_before = min(self.state.queue_position, self.state.flushed_position)

    def refuse(self) -> None:
        """Raise why the store takes nothing; a fresh error each time, for its own traceback."""
        refusal = self.refusal
        assert refusal is not None
        self.counts.put_refused += 1
        raise type(refusal)(refusal.what, expected=refusal.expected, hint=refusal.hint)

    def refuse_for_now(self, error: OSError) -> StoreBlocked:
        """Take no more messages until what failed works again; the broker tries it regularly."""
        what = f"store {self.root} cannot be written: {error}"
        blocked: StoreBlocked
        if error.errno in NO_ROOM:
            blocked = DiskFull(what, hint="make room; messages are taken again within seconds")
        elif error.errno in _NO_DESCRIPTOR:
            blocked = StoreBlocked(what, hint="raise the limit of open files (ulimit -n)")
        else:
            blocked = StoreBlocked(what, hint="check the disk and the rights of its files")
        if self.refusal is None:
            self.refusal = blocked
        return blocked

    def check_held(self) -> None:
        """Raise `StoreLost`, and refuse everything, if the directory is not ours any more."""
        if not self.is_held():
            lost = StoreLost(
                f"{self.root} was removed or replaced while this broker used it",
                expected="the directory, the lock and the log that it opened",
                hint="see which broker uses the directory now, and restart this one",
            )
            self.refusal = lost
            raise lost

    def is_held(self) -> bool:
        """Whether the directory is still the one that was opened; costs some system calls."""
        if self.lock_token is None:
            return True
        path = f"{self.root}/{layout.LOCK}"
        return self.files.is_same_file(self.lock_token, path) and self.commit_log.is_in_place()
