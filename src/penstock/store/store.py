"""``MessageStore``: the face of the store.

One thread appends, writes and reads; ``flush`` may run in another. The way of a message:

    append ─ staged in memory ─▶ write ─ page cache ─▶ flush ─ disk
                                   │ asynchronous flush      │ synchronous flush: mark_flushed
                                   ▼                         ▼
                                 visible: queue entry, index entry, arrival

What an acknowledgement means is decided by when the broker sends it: after ``write`` a message
survives the death of the process, after ``flush`` that of the machine. To acknowledge as soon
as possible, call ``write_log``, answer, and then ``publish``; readers see no difference, because a
read first publishes what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol, cast

from penstock.errors import (
    DiskFull,
    LifecycleError,
    StoreBlocked,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreReadOnly,
)
from penstock.store import layout
from penstock.store.appending import (
    Appended,
    AppendedBatch,
    Appender,
    BatchItem,
    Draft,
    DraftFields,
)
from penstock.store.bulk.record_rows import RecordRows
from penstock.store.checkpoint import Checkpoint
from penstock.store.cleaning import Cleaner
from penstock.store.commit_log import CommitLog
from penstock.store.config import StoreConfig
from penstock.store.disk_steps import DiskSteps, run_inline
from penstock.store.files import DiskSpace, FileLayer
from penstock.store.flushing import Flusher
from penstock.store.index_builder import Arrival
from penstock.store.key_index import KeyIndex
from penstock.store.memory_disks import check_room
from penstock.store.opening import load_context, mark_clean, recover
from penstock.store.queue_table import QueueTable
from penstock.store.reading import Reader
from penstock.store.recovery import Recovery, follow
from penstock.store.segments import OS_FILES, make_durable_dir
from penstock.store.statistics import StoreStatistics
from penstock.store.store_context import NO_ROOM, StoreContext
from penstock.store.store_reading import StoreReading
from penstock.store.topic_deletion import delete_topic_in_steps

log = logging.getLogger(__name__)


class _AppendBatchBody(Protocol):
    def __call__(
        self, draft: DraftFields, body: bytes, unless: Sequence[bytes] = ()
    ) -> AppendedBatch | None: ...


class _NotOpen:
    """Stands for a part of a store before it is opened."""

    def __init__(self, root: str) -> None:
        self._root = root

    def refuse(self, *_: object, **__: object) -> NoReturn:
        raise LifecycleError(f"store {self._root} is not open", hint="call open() first")

    def __getattr__(self, name: str) -> object:
        self.refuse()


class MessageStore(StoreReading):
    """A store directory of RocketMQ's, open for appending and reading."""

    def __init__(
        self,
        root: Path | str,
        config: StoreConfig | None = None,
        *,
        time_ms: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        files: FileLayer = OS_FILES,
        read_only: bool = False,
        are_files_removed: bool = False,
    ) -> None:
        self.root = str(root)
        self.config = config or StoreConfig()
        self.read_only = read_only
        self._are_files_removed = are_files_removed
        self.recovery: Recovery | None = None
        """What opening found; None before."""
        self._files = files
        self._time_ms = time_ms or _wall_ms
        self._monotonic = monotonic
        """Seconds that no change of the clock moves: for everything that takes or waits a time."""
        self._lock_token: int | None = None
        self._opened: StoreContext | None = None
        self._flusher: Flusher | None = None
        not_open = _NotOpen(self.root)
        self._appender = cast(Appender, not_open)
        # The appender's own methods, once the store is open: they are called for every message.
        self.append: Callable[[DraftFields], Appended] = not_open.refuse
        self.append_batch: Callable[[Draft, Sequence[BatchItem]], list[Appended]] = not_open.refuse
        self.append_batch_body: _AppendBatchBody = not_open.refuse
        self.append_rows: Callable[[str, int, RecordRows], int] = not_open.refuse
        self._cleaner = cast(Cleaner, not_open)
        self._reader = cast(Reader, not_open)
        self._queue_table = cast(QueueTable, not_open)
        self._log = cast(CommitLog, not_open)

    @classmethod
    def open_readonly(
        cls, root: Path | str, config: StoreConfig | None = None, *, files: FileLayer = OS_FILES
    ) -> MessageStore:
        """Open a live store, a copy or a directory of Apache RocketMQ's; nothing is written."""
        store = cls(root, config, files=files, read_only=True)
        store.open()
        return store

    @property
    def damage(self) -> StoreDamaged | None:
        """Why messages are missing that are in the files, if so; only if it is read only."""
        return self._context.damage

    # Opening and closing

    def open(self) -> Recovery:
        """Take the lock, load what is there and recover; raises rather than start beside damage."""
        if self.recovery is not None:
            raise LifecycleError(f"store {self.root} was opened before", hint="make a new one")
        try:
            check_room(self._files, self.root)
            if not self.read_only:
                self._take_lock()
            elif self._files.stat(self.root) is None:
                raise StoreDamaged(f"{self.root} does not exist", expected="a store directory")
            context = self._opened = load_context(
                self.root,
                self.config,
                self._files,
                self._time_ms,
                self._monotonic,
                read_only=self.read_only,
            )
            context.lock_token = self._lock_token
            context.are_files_removed = self._are_files_removed
            recovery = recover(context)
            if self.read_only:
                context.refusal = StoreReadOnly(f"store {self.root} was opened for reading only")
            else:
                self._flusher = Flusher(context)
        except OSError as error:
            self._release()
            kind = DiskFull if error.errno in NO_ROOM else StoreError
            raise kind(f"store {self.root} cannot be opened: {error}") from error
        except BaseException:
            self._release()
            raise
        self._appender = Appender(context)
        self.append = self._appender.append
        self.append_batch = self._appender.append_batch
        self.append_batch_body = self._appender.append_batch_body
        self.append_rows = self._appender.append_rows
        self._cleaner = Cleaner(context)
        memory_bytes = self.config.memory_bytes or self._files.memory_bytes()
        self._reader = Reader(
            self.config,
            context.commit_log,
            memory_bytes,
            # Who reads a store without its broker checks records, too, and walks past damage.
            checked_before=0 if self.read_only else context.commit_log.written[0],
        )
        self._queue_table = context.queues
        self._log = context.commit_log
        context.counts.started_ms = self._time_ms()
        self.recovery = recovery
        log.info(
            "store opened root=%s kind=%s end=%d records=%d dispatched=%d",
            self.root, recovery.kind, recovery.end, recovery.records, recovery.dispatched,
        )  # fmt: skip
        return recovery

    def _take_lock(self) -> None:
        make_durable_dir(self._files, self.root)
        try:
            self._lock_token = self._files.lock(f"{self.root}/{layout.LOCK}")
        except BlockingIOError as error:
            raise StoreLocked(
                f"another process writes to store {self.root}: {error.strerror}",
                hint="stop that broker, or use another directory",
            ) from error

    def close(self) -> None:
        """Write and flush everything and leave the signs of a clean stop."""
        context = self._opened
        if context is None or self.recovery is None:
            self._release()
            return
        try:
            if not self.read_only and (
                context.refusal is None or isinstance(context.refusal, StoreBlocked)
            ):
                self._close_cleanly(context)
        finally:
            self.abandon()

    def _close_cleanly(self, context: StoreContext) -> None:
        assert self._flusher is not None
        if context.refusal is None:
            self.write()
        self.publish()
        self.mark_flushed(self.flush(thorough=True))
        self.flush(thorough=True)
        if (
            context.index_builder.index_stopped_at is not None
            or context.queues.failed_writes is not None
        ):
            return  # something is missing: the next start must look
        if context.index is not None:
            context.index.close()
            context.checkpoint.index_timestamp = context.index.end_timestamp
        try:
            self._flusher.save_checkpoint()
            mark_clean(context)
        except OSError as error:
            # Everything is on the disk; the next start just has to look for its end.
            log.warning("no signs of a clean stop root=%s error=%s", self.root, error)
            return
        log.info("store closed root=%s end=%d", self.root, self._log.written[0])

    def abandon(self) -> None:
        """Give all files and the lock back as they are, as the death of the process would."""
        if self._opened is not None:
            self._opened.refusal = LifecycleError(f"store {self.root} is closed")
        self._release()

    def _release(self) -> None:
        if self._opened is not None:
            if self._opened.index is not None:
                self._opened.index.close()
            self._opened.commit_log.close()
        if self._flusher is not None:
            self._flusher.close()
            self._flusher = None
        if self._lock_token is not None:
            self._files.unlock(self._lock_token)
            self._lock_token = None

    def __enter__(self) -> MessageStore:
        if self.recovery is None:
            self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Writing

    def write(self) -> None:
        """Put everything staged into the page cache; without sync flush, readers see it now.

        On an error nothing of it is stored, and nothing of it will appear after a crash.
        """
        self._appender.write()

    def write_log(self) -> bool:
        """`write` without the work for readers, unless a listener waits for one of the messages.

        True: that work is left to `publish`, or to the first read.
        """
        return self._appender.write_log()

    def publish(self) -> None:
        """Do the work for readers that `write_log` left."""
        self._appender.publish()

    def flush(self, *, thorough: bool = False) -> int:
        """Return when all that was written is on the disk, and up to where that is.

        Blocks; may run in any thread. From time to time, or if ``thorough``, queues and index
        are flushed too, which moves the point a recovery starts from. After a failure the disk's
        content is unknown: the store refuses everything from then on.
        """
        if self._flusher is None:
            self._context.refuse()
        assert self._flusher is not None
        return self._flusher.flush(thorough=thorough)

    def mark_flushed(self, log_position: int) -> None:
        """With sync flush: make visible what is on the disk now; for the thread that appends."""
        self._appender.mark_flushed(log_position)

    def on_arrival(
        self, listener: Arrival, waiting: Collection[tuple[str, int]] | None = None
    ) -> None:
        """Call ``listener`` for every message that becomes visible.

        With ``waiting`` only for those of the queues (topic, number) that are in it at the time.
        """
        self._context.index_builder.listeners.append((listener, waiting))

    def off_arrival(self, listener: Arrival) -> None:
        """Call ``listener`` no more; without any, appends do not look for one."""
        builder = self._context.index_builder
        # A new list: the old one may be under way.
        builder.listeners = [one for one in builder.listeners if one[0] != listener]

    def on_failed_write(self, listener: Callable[[StoreError], None]) -> None:
        """Call ``listener`` when a write failed: every message staged before it is lost.

        Appending may have to write, too, if very much is staged.
        """
        self._context.on_failed_write = listener

    def on_staged(self, listener: Callable[[str, int], None]) -> None:
        """Call ``listener`` with topic and queue of the first message staged since a write."""
        self._context.on_staged = listener

    # Following another process

    def refresh(self) -> int:
        """Let a read-only store see what was written since; returns how many messages that are."""
        if not self.read_only:
            raise LifecycleError(
                f"store {self.root} is open for writing", hint="it needs no refresh"
            )
        return follow(self._context)

    # Cleaning

    def delete_topic(self, topic: str) -> int:
        """Delete all queues of a topic; its records stay in the log until retention takes them."""
        return run_inline(self.topic_deletion(topic))

    def topic_deletion(self, topic: str) -> DiskSteps[int]:
        """`delete_topic` in steps; the topic has no messages any more after the first of them."""
        context, flusher = self._context, self._flusher
        if context.refusal is not None or flusher is None:
            context.refuse()
        assert flusher is not None
        self.write()
        return (yield from delete_topic_in_steps(context, flusher, topic))

    def deleted_topics(self) -> Mapping[str, int]:
        """The log positions at which topics were deleted; a later deletion makes another map."""
        return self._context.index_builder.deleted_topics

    def was_deleted_since(self, topic: str, log_position: int) -> bool:
        """Whether a topic was deleted after a record was appended; it may be there again."""
        return log_position < self._context.index_builder.deleted_topics.get(topic, 0)

    def request_clean(self) -> None:
        """Let the next rounds of ``clean`` delete expired segments at any hour."""
        self._cleaner.request()

    def clean(self, now_ms: int | None = None) -> list[str]:
        """One round of retention; returns the files that were deleted."""
        return run_inline(self.cleaning(now_ms))

    def cleaning(self, now_ms: int | None = None) -> DiskSteps[list[str]]:
        """`clean` in steps."""
        if self.read_only:
            self._context.refuse()
        try:
            return (yield from self._cleaner.clean(now_ms))
        except OSError as error:
            failure = StoreError(f"store {self.root} cannot be cleaned: {error}")
            if self._log.has_failed_sync:
                self._context.refusal = failure
            raise failure from error

    def unblocking(self) -> DiskSteps[bool]:
        """Try again what could not be written for now, in steps; True if that worked."""
        return (yield from self._cleaner.unblock())

    def check_held(self) -> None:
        """Raise `StoreLost` if the directory was removed or replaced; any thread may ask."""
        self._context.check_held()

    def reconfigure(self, config: StoreConfig) -> None:
        """Keep and delete by other rules from now on; what the store was opened with stays."""
        self.config = self._context.config = config

    # State

    @property
    def counts(self) -> StoreStatistics:
        """The counts alone, as they grow; ``statistics`` tells more and costs more."""
        return self._context.counts

    @property
    def min_position(self) -> int:
        """Where the log starts."""
        return self._log.min_position

    @property
    def max_position(self) -> int:
        """Where the log ends, staged messages not counted."""
        return self._log.written[0]

    @property
    def unpublished_bytes(self) -> int:
        """How much of the log readers cannot see yet."""
        return self._log.written[0] - self._context.published[0]

    @property
    def flushed_position(self) -> int:
        """Up to where the log is on the disk."""
        return self._log.flushed

    @property
    def commit_log(self) -> CommitLog:
        """The log itself, for tools."""
        return self._log

    @property
    def queue_table(self) -> QueueTable:
        """The queues themselves, for tools."""
        self.publish()
        return self._queue_table

    @property
    def key_index(self) -> KeyIndex | None:
        """The index itself, for tools."""
        self.publish()
        return self._context.index

    @property
    def checkpoint(self) -> Checkpoint:
        """What is known to be on the disk."""
        return self._context.checkpoint

    @property
    def foreign(self) -> list[str]:
        """What was found in the directory and is left alone."""
        return self._context.foreign

    @property
    def was_used_by_others(self) -> bool:
        """Whether another program may have changed the directory since this one closed it."""
        return self.recovery is None or self.recovery.is_foreign

    @property
    def damages(self) -> list[str]:
        """Messages that readers asked for and that cannot be read, at most one of each queue."""
        return [str(error) for _, error in self._reader.damages.by_queue.values()]

    @property
    def is_writable(self) -> bool:
        """Whether ``append`` would take a message."""
        return self._opened is not None and self._opened.refusal is None

    @property
    def is_disk_full(self) -> bool:
        """Whether messages are refused for lack of room; ``clean`` takes them again."""
        return isinstance(self._context.refusal, DiskFull)

    @property
    def is_blocked(self) -> bool:
        """Whether messages are refused for now, for lack of room or of descriptors, say."""
        return isinstance(self._context.refusal, StoreBlocked)

    @property
    def refusal(self) -> str | None:
        """Why ``append`` would not take a message."""
        refusal = self._context.refusal
        return None if refusal is None else str(refusal)

    def disk_space(self) -> DiskSpace:
        """The file system that the store is on."""
        return self._files.disk_space(self.root)

    def statistics(self) -> StoreStatistics:
        """Where the store stands."""
        context, written = self._context, self._log.written[0]
        return replace(
            context.counts,
            min_position=self._log.min_position,
            max_position=written,
            flushed_position=self._log.flushed,
            dispatch_behind_bytes=written - context.published[0],
            earliest_timestamp=self.earliest_store_time(),
            log_segments=len(self._log.bases),
            loaded_queues=len(context.queues.queues),
            index_files=0 if context.index is None else len(context.index.headers),
            disk_used_ratio=self.disk_space().used_ratio,
        )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
