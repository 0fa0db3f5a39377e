"""The parts of an open store, and the little state they share.

``MessageStore`` builds and owns them; each part gets the whole, and touches what is its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import DiskFull, PenstockError, StoreError
from penstock.store.checkpoint import Checkpoint, StoreState
from penstock.store.commit_log import CommitLog
from penstock.store.config import StoreConfig
from penstock.store.files import FileLayer
from penstock.store.index_builder import IndexBuilder
from penstock.store.key_index import KeyIndex
from penstock.store.queue_table import QueueTable
from penstock.store.statistics import StoreStatistics

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class StoreContext:
    """What a store is made of."""

    root: str
    config: StoreConfig
    files: FileLayer
    time_ms: Callable[[], int]
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
    foreign: list[str]
    counts: StoreStatistics = field(default_factory=StoreStatistics)
    published: tuple[int, int] = (0, 0)
    """End of what readers can see of the log, and the store time of the last message in it."""
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

    def refuse_for_lack_of_room(self, error: OSError) -> DiskFull:
        """Take no more messages until the next round of cleaning finds room."""
        full = DiskFull(
            f"store {self.root} cannot be written: {error}",
            hint="make room; messages are taken again after the next round of cleaning",
        )
        if self.refusal is None:
            self.refusal = full
        return full
