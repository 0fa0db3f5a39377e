"""Flushing: moves the page cache to the disk, the log first, then queues and index.

After a failed fsync the content of the disk is unknown: the kernel may have dropped the pages and
called them clean, so a second fsync that succeeds proves nothing. The store refuses everything.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from penstock.errors import FlushFailed
from penstock.store.checkpoint import CheckpointFile, FlushedNote
from penstock.store.note import save_state
from penstock.store.store_context import NO_ROOM, StoreContext

log = logging.getLogger(__name__)

# A tail costs opening, writing and closing a file. With 10,000 busy queues, all of them every
# second would take a fifth of the broker's time; the rest waits for the next flush.
_QUEUES_PER_FLUSH = 1000


class Flusher:
    """Moves the flushed position on; any thread may call it, one at a time gets in."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._checkpoint_file: CheckpointFile | None = None
        self._failure: FlushFailed | None = None
        self._persisted_ms = self._synced_ms = self._now_ms()
        self.lock = threading.Lock()
        """Also guards our note, which deleting a topic changes, too."""

    def flush(self, *, thorough: bool = False) -> int:
        """Return when all that was written is on the disk, and up to where that is.

        Blocks; may run in any thread. From time to time, or if ``thorough``, queues and index
        are flushed too, which moves the point a recovery starts from. After a failure the disk's
        content is unknown: the store refuses everything from then on.
        """
        with self.lock:
            if self._failure is not None:
                raise FlushFailed(self._failure.what, hint=self._failure.hint)
            written = self._context.commit_log.written
            published = self._context.published
            self._context.check_held()
            try:
                self._context.commit_log.sync(written[0])
                # Not only before: what was synced must be in files that have their names.
                self._context.check_held()
                self._context.checkpoint.log_timestamp = written[1]
                self._flush_rest(published, self._now_ms(), thorough=thorough)
            except OSError as error:
                raise self._flush_failed(error) from error
            self._context.counts.flush_calls += 1
        return written[0]

    def _now_ms(self) -> float:
        return self._context.monotonic() * 1000

    def _flush_rest(self, published: tuple[int, int, int], now: float, *, thorough: bool) -> None:
        """Write queue entries from time to time, and put all of it on the disk less often."""
        context, config = self._context, self._context.config
        if not thorough and now - self._persisted_ms < config.flush_interval_consume_queue_ms:
            return
        self._persisted_ms = now
        if now - self._synced_ms >= config.flush_consume_queue_thorough_interval_ms:
            thorough = True
        try:
            is_complete = context.queues.persist(None if thorough else _QUEUES_PER_FLUSH)
        except OSError as error:
            # Only a delay: the entries stay in memory, and the log has the messages.
            log.error("queues cannot be written root=%s error=%s", context.root, error)
            return
        if not is_complete:
            return  # The checkpoint would claim entries that are in memory only.
        index_synced = ""
        if thorough:
            self._synced_ms = now
            context.queues.sync()
            index_synced = self._sync_index()
            context.checkpoint.queue_position, context.checkpoint.queue_timestamp = published[:2]
        self._save(published if thorough else None, index_synced)

    def _save(self, synced: tuple[int, int, int] | None, index_synced: str) -> None:
        """Note how far the disk has it all; without room for that, the older note still holds."""
        context = self._context
        try:
            self.save_checkpoint()
            if synced is not None and context.is_marked_open:
                assert context.state is not None
                stopped_at = context.index_builder.index_stopped_at
                state = replace(
                    context.state,
                    flushed_position=context.commit_log.flushed,
                    queue_position=synced[0],
                    queue_record=synced[2],
                    index_synced=index_synced,
                    index_files={} if context.index is None else context.index.key_counts,
                    index_stopped_at=-1 if stopped_at is None else stopped_at,
                    deleted_topics=context.index_builder.deleted_topics,
                )
                save_state(context.files, context.root, state)
                context.state = state
                context.note_deletable()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.error("checkpoint cannot be written root=%s error=%s", context.root, error)

    def _sync_index(self) -> str:
        """Put the index on the disk; return the name of its newest file that is full and there."""
        index, checkpoint = self._context.index, self._context.checkpoint
        if index is None:
            return ""
        # Asked before syncing: files that get full meanwhile are not on the disk yet.
        newest_full, full_timestamp = index.newest_full, index.full_timestamp
        if index.has_new_files:
            index.has_new_files = False
            self._context.files.sync_dir(index.directory)
            self._context.files.sync_dir(self._context.root)
        for full in index.take_full_maps():
            full.sync()
            full.close()
        current = index.current_map
        if current is not None:
            current.sync()
        # Like RocketMQ, only full files count: the newest one changes all over with every key.
        checkpoint.index_timestamp = max(checkpoint.index_timestamp, full_timestamp)
        return newest_full

    def _flush_failed(self, error: OSError) -> FlushFailed:
        failure = FlushFailed(
            f"flush of store {self._context.root} failed: {error}",
            hint="check the disk, then restart the broker: recovery finds what is really there",
        )
        self._failure = failure
        self._context.refusal = failure
        log.error("flush failed, store refuses writes root=%s error=%s", self._context.root, error)
        return failure

    def save_checkpoint(self) -> None:
        """Write the checkpoint as it is."""
        context = self._context
        if self._checkpoint_file is None:
            self._checkpoint_file = CheckpointFile(context.files, context.root)
        run = 0 if context.state is None else context.state.run
        self._checkpoint_file.save(context.checkpoint, FlushedNote(run, context.commit_log.flushed))

    def save_note(self) -> None:
        """Write our own note as it is; a failed sync is as bad here as anywhere."""
        context = self._context
        with self.lock:
            assert context.state is not None
            context.state.deleted_topics = context.index_builder.deleted_topics
            try:
                save_state(context.files, context.root, context.state)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise context.refuse_for_now(error) from error
                raise self._flush_failed(error) from error

    def close(self) -> None:
        """Give the checkpoint file back."""
        if self._checkpoint_file is not None:
            self._checkpoint_file.close()
