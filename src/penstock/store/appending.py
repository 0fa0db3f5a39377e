"""Appending: from drafts to records in the log, and from there to readers.

``append`` stages, ``write`` stores all that is staged with one system call, mostly. In between the
messages have their positions and offsets already; if the write fails these are taken back, so that
a failed append leaves no hole in a queue.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.errors import IllegalMessage, StoreError
from penstock.model.names import RETRY_PREFIX
from penstock.model.properties import MAX_PROPERTIES_BYTES
from penstock.model.record_layout import BLANK_HEAD_BYTES
from penstock.protocol.records.codec import Record, encode_record
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store.bulk.batch_encoding import BatchHeader, encode_batch_records
from penstock.store.bulk.record_rows import RecordRows, encode_rows
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.index_builder import Staged, StagedBatch
from penstock.store.store_context import NO_ROOM, StoreContext

MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
RECORD_OVERHEAD_BYTES: Final = 65_536
MAX_STAGED_BYTES: Final = 1 << 20
"""So much is written without waiting for the end of a loop turn, while the processor still has it
at hand: bulk writers send several megabytes in one."""
_TRANSACTION: Final = SysFlag.TRANSACTION_MASK
_new_tuple = tuple.__new__
_UNUSUAL: Final = SysFlag.TRANSACTION_MASK | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_NO_QUEUE = (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)


class Draft(NamedTuple):
    """A message to append; the store adds positions, offsets and the time."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    unique_id: bytes = b""
    """The value of UNIQ_KEY among the properties, if the caller has it at hand."""


def draft_of(record: Record, topic: str, queue_id: int, properties: bytes) -> Draft:
    """A stored message to be stored again, in another queue and with other properties."""
    return Draft(
        topic,
        queue_id,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


DraftFields: TypeAlias = tuple[str, int, bytes, bytes, int, int, int, bytes, bytes, int, int, bytes]
"""The fields of a `Draft`. A plain tuple of them is a draft too: it costs half as much to make."""


class Appended(NamedTuple):
    """Where an appended message is, or will be after ``write``."""

    log_position: int
    queue_offset: int
    size: int
    store_timestamp: int


class AppendedBatch(NamedTuple):
    """Where the messages of a batch are that was appended as a whole."""

    log_positions: Sequence[int]
    queue_offset: int
    """Of the first one."""
    size: int
    """Of all records together."""
    last: Appended


class BatchItem(Protocol):
    """One message of a batch, as ``penstock.protocol.records.batches`` decodes it."""

    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> bytes: ...
    @property
    def flag(self) -> int: ...


class Appender:
    """Stages, writes and publishes messages; used by one thread."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._config = context.config
        self._max_body = context.config.max_message_size
        self._log = context.commit_log
        self._queues = context.queues
        self._queue_by_key = context.queues.queues
        self._time_ms = context.time_ms
        self._now = 0
        """The time of what is staged, read once for each write; 0: not read yet."""
        self._is_sync = context.config.is_sync_flush
        self._pending: list[Staged | StagedBatch] = []
        self._in_batches = 0
        """Messages in staged batches, less one for each batch."""
        self._has_batches = False
        """Whether a batch may be among what is staged."""
        self._unflushed: deque[Staged | StagedBatch] = deque()
        self.unpublished: list[Staged | StagedBatch] = []
        """Written without a wait for a flush, but not visible yet; see `publish`."""
        self._publishes_batches = False
        """Whether a batch may be among what is to be published."""

    def append(self, draft: DraftFields) -> Appended:
        """Stage one message; ``write`` puts it into the log."""
        if self._context.refusal is not None:
            self._context.refuse()
        (
            topic,
            queue_id,
            body,
            properties,
            flag,
            sys_flag,
            born_timestamp,
            born_host,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            unique_id,
        ) = draft
        queue = self._queue_by_key.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        if len(body) > self._max_body or len(properties) > MAX_PROPERTIES_BYTES or 0 in properties:
            raise self._illegal(body, properties)
        is_queued = not sys_flag & _TRANSACTION or sys_flag & _TRANSACTION not in _NO_QUEUE
        queue_offset = queue.next_offset if is_queued else 0
        commit_log = self._log
        position = commit_log.position
        now = self._now or self._read_clock()
        record = encode_record(
            queue.topic_bytes,
            body,
            properties,
            queue_id,
            queue_offset,
            position,
            now,
            born_timestamp,
            born_host,
            store_host,
            flag,
            sys_flag,
            reconsume_times,
            prepared_transaction_offset,
        )
        size = len(record)
        if position + size + BLANK_HEAD_BYTES > commit_log.segment_end:
            # Its position is part of a record, so it is encoded anew.
            self._roll(size)
            return self.append(draft)
        commit_log.staged.append(record)
        commit_log.position = position + size
        if is_queued:
            queue.next_offset = queue_offset + 1
        pending = self._pending
        if not pending:
            self._announce(queue)
        pending.append((queue, position, size, queue_offset, sys_flag, now, properties, unique_id))
        if position - commit_log.written[0] > MAX_STAGED_BYTES:
            self.write()
        # NamedTuple's own constructor costs twice as much as the tuple it makes.
        return _new_tuple(Appended, (position, queue_offset, size, now))

    def _announce(self, queue: ConsumeQueue) -> None:
        if self._context.on_staged is not None:
            self._context.on_staged(queue.topic, queue.queue_id)

    def _read_clock(self) -> int:
        self._now = self._time_ms()
        return self._now

    def append_batch(self, draft: Draft, items: Sequence[BatchItem]) -> list[Appended]:
        """Stage several messages of one queue side by side in one segment: all or none.

        ``draft`` has what they share; its body, properties and flag are not used.
        """
        if self._context.refusal is not None:
            self._context.refuse()
        queue = self._queue_by_key.get((draft.topic, draft.queue_id))
        if queue is None:
            queue = self._new_queue(draft.topic, draft.queue_id)
        if draft.sys_flag & SysFlag.TRANSACTION_MASK or not items:
            raise IllegalMessage(
                f"batch of {len(items)} messages with system flag {draft.sys_flag:#x}",
                expected="at least one message, none of them part of a transaction",
            )
        now = self._now or self._read_clock()
        commit_log = self._log
        records = self._encode_batch(queue, draft, items, commit_log.position, now)
        total = sum(map(len, records))
        if total > self._config.max_message_size + RECORD_OVERHEAD_BYTES:
            raise self._too_big(total, 0)
        if commit_log.position + total + BLANK_HEAD_BYTES > commit_log.segment_end:
            self._roll(total)
            return self.append_batch(draft, items)
        if not self._pending:
            self._announce(queue)
        appended: list[Appended] = []
        position, queue_offset = commit_log.position, queue.next_offset
        for item, record in zip(items, records, strict=True):
            size = len(record)
            self._pending.append(
                (queue, position, size, queue_offset, draft.sys_flag, now, item.properties, b"")
            )
            appended.append(Appended(position, queue_offset, size, now))
            position += size
            queue_offset += 1
        commit_log.staged += records
        commit_log.position, queue.next_offset = position, queue_offset
        if position - commit_log.written[0] > MAX_STAGED_BYTES:
            self.write()
        return appended

    def append_batch_body(
        self, draft: DraftFields, body: bytes, unless: Sequence[bytes] = ()
    ) -> AppendedBatch | None:
        """Stage the messages of a batch send as a whole, straight from its body.

        None if they need the plain path, `append_batch`: something about them is unusual, or
        properties contain one of ``unless``.
        """
        if self._context.refusal is not None:
            self._context.refuse()
        topic, queue_id, _, _, _, sys_flag, *others, _ = draft
        if sys_flag & _UNUSUAL:
            return None
        queue = self._queue_by_key.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        now = self._now or self._read_clock()
        shared: BatchHeader = _new_tuple(
            BatchHeader, (queue.topic_bytes, queue_id, sys_flag, *others)
        )
        commit_log = self._log
        position, queue_offset = commit_log.position, queue.next_offset
        made = encode_batch_records(body, shared, queue_offset, position, now, unless)
        if made is None:
            return None
        records, batch = made
        total = len(records)
        if total > self._config.max_message_size + RECORD_OVERHEAD_BYTES:
            return None
        if position + total + BLANK_HEAD_BYTES > commit_log.segment_end:
            self._roll(total)
            return self.append_batch_body(draft, body, unless)
        positions = batch.positions
        count = len(positions)
        commit_log.staged.append(records)
        commit_log.position = position + total
        queue.next_offset = queue_offset + count
        if not self._pending:
            self._announce(queue)
        self._pending.append((queue, position, total, queue_offset, sys_flag, now, batch, b""))
        self._in_batches += count - 1
        self._has_batches = True
        if position - commit_log.written[0] > MAX_STAGED_BYTES:
            self.write()
        last = (positions[-1], queue_offset + count - 1, batch.sizes[-1], now)
        return _new_tuple(
            AppendedBatch, (positions, queue_offset, total, _new_tuple(Appended, last))
        )

    def append_rows(self, topic: str, queue_id: int, rows: RecordRows) -> int:
        """Stage records of one queue that are ready but for their places; the first's offset."""
        queue = self._queue_by_key.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        size, count, done = rows.size, len(rows.starts), 0
        first = queue.next_offset
        commit_log = self._log
        while done < count:
            if self._context.refusal is not None:
                self._context.refuse()
            position = commit_log.position
            room = (commit_log.segment_end - position - BLANK_HEAD_BYTES) // size
            if room <= 0:
                self._roll(size)
                continue
            part = rows if done == 0 and count <= room else rows.part(done, done + room)
            done += len(part.starts)
            self._append_rows(queue, part)
        return first

    def _append_rows(self, queue: ConsumeQueue, rows: RecordRows) -> None:
        commit_log = self._log
        now = self._now or self._read_clock()
        position, queue_offset = commit_log.position, queue.next_offset
        records, batch = encode_rows(rows, queue_offset, position, now)
        total, count = len(records), len(rows.starts)
        commit_log.staged.append(records)
        commit_log.position = position + total
        queue.next_offset = queue_offset + count
        if not self._pending:
            self._announce(queue)
        self._pending.append((queue, position, total, queue_offset, rows.sys_flag, now, batch, b""))
        self._in_batches += count - 1
        self._has_batches = True
        if position - commit_log.written[0] > MAX_STAGED_BYTES:
            self.write()

    def _encode_batch(
        self, queue: ConsumeQueue, draft: Draft, items: Sequence[BatchItem], position: int, now: int
    ) -> list[bytes]:
        records: list[bytes] = []
        for queue_offset, item in enumerate(items, queue.next_offset):
            body, properties = item.body, item.properties
            if (
                len(body) > self._max_body
                or len(properties) > MAX_PROPERTIES_BYTES
                or 0 in properties
            ):
                raise self._illegal(body, properties)
            record = encode_record(
                queue.topic_bytes,
                body,
                properties,
                queue.queue_id,
                queue_offset,
                position,
                now,
                draft.born_timestamp,
                draft.born_host,
                draft.store_host,
                item.flag,
                draft.sys_flag,
                draft.reconsume_times,
                draft.prepared_transaction_offset,
            )
            records.append(record)
            position += len(record)
        return records

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        length = len(topic.encode("utf-8", "replace"))
        limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
        if length > limit:
            raise IllegalMessage(
                f"topic {topic[:32]!r}... of {length} bytes", expected=f"at most {limit}"
            )
        return self._queues.get_or_create(topic, queue_id)

    def _illegal(self, body: bytes, properties: bytes) -> IllegalMessage:
        if 0 not in properties:
            return self._too_big(len(body), len(properties))
        # A record torn by a crash has zeros where bytes are missing, and no checksum but that of
        # its body: properties without zeros are how recovery can tell.
        self._context.counts.put_refused += 1
        return IllegalMessage(
            f"message properties hold a zero byte at {properties.index(0)}",
            expected="text without the character U+0000",
        )

    def _too_big(self, body_bytes: int, properties_bytes: int) -> IllegalMessage:
        self._context.counts.put_refused += 1
        return IllegalMessage(
            f"body of {body_bytes} bytes, properties of {properties_bytes}",
            expected=f"at most {self._config.max_message_size} (maxMessageSize) "
            f"and {MAX_PROPERTIES_BYTES}",
        )

    def _roll(self, size: int) -> None:
        """Continue in the next segment, if ``size`` bytes fit into one at all."""
        if size + BLANK_HEAD_BYTES > self._log.segment_size:
            raise IllegalMessage(
                f"{size} bytes do not fit into a log segment",
                expected=f"at most {self._log.segment_size - BLANK_HEAD_BYTES}",
                hint="raise mappedFileSizeCommitLog of a new store",
            )
        self._log.roll()

    def write(self) -> None:
        """Put everything staged into the page cache; without sync flush, readers see it now.

        On an error nothing of it is stored, and nothing of it will appear after a crash.
        """
        self.write_log()
        if self.unpublished:
            self.publish()

    def write_log(self) -> bool:
        """`write`, but leaves messages without a waiting listener to `publish`; True: call it."""
        pending = self._pending
        self._now = 0
        if self._queues.has_persisted:
            self._queues.drop_persisted()
        if not pending:
            return bool(self.unpublished)
        self._pending = []
        in_batches, self._in_batches = self._in_batches, 0
        commit_log = self._log
        last = pending[-1]
        before = commit_log.written[0]
        try:
            commit_log.write(last[5])
        except (OSError, StoreError) as error:
            self._write_failed(pending, len(pending) + in_batches, error)
        tail = last[6]
        commit_log.last_record = last[1] if isinstance(tail, bytes) else tail.positions[-1]
        counts = self._context.counts
        counts.write_calls += 1
        counts.put_count += len(pending) + in_batches
        counts.put_bytes += commit_log.written[0] - before
        if self._has_batches:
            self._has_batches, self._publishes_batches = False, True
        if self._is_sync:
            self._unflushed.extend(pending)
            return False
        self.unpublished += pending
        if self._context.index_builder.is_awaited(pending):
            self.publish()
            return False
        return True

    def _write_failed(
        self, pending: list[Staged | StagedBatch], messages: int, error: Exception
    ) -> None:
        """Take back what was staged; refuse more if the disk is full or worse."""
        self._context.counts.put_refused += messages
        for queue, _, _, queue_offset, sys_flag, *_ in reversed(pending):
            if sys_flag & SysFlag.TRANSACTION_MASK not in _NO_QUEUE:
                queue.next_offset = queue_offset
        failure: StoreError
        if isinstance(error, OSError) and error.errno in (*NO_ROOM, errno.EMFILE, errno.ENFILE):
            failure = self._context.refuse_for_now(error)
        elif isinstance(error, StoreError):
            # The failed write could not be undone, so the end of the log is unknown.
            failure = self._context.refusal = error
        else:
            failure = StoreError(f"write to {self._log.directory} failed: {error}")
        if self._context.on_failed_write is not None:
            self._context.on_failed_write(failure)
        raise failure from error

    def publish(self) -> None:
        """Make visible what is written; a reader that comes first does the same."""
        # Taken before listeners are called: a listener may read at once.
        staged, self.unpublished = self.unpublished, []
        if staged:
            self._publish(staged)

    def _publish(self, staged: Sequence[Staged | StagedBatch]) -> None:
        context = self._context
        last = staged[-1]
        try:
            if self._publishes_batches:
                self._publishes_batches = self._is_sync  # With sync flush others may still wait.
                context.index_builder.apply_appended(staged)
            else:
                context.index_builder.apply_records(staged)  # type: ignore[arg-type]  # no batch among them
        finally:
            tail = last[6]
            position = last[1] if isinstance(tail, bytes) else tail.positions[-1]
            context.published = (last[1] + last[2], last[5], position)
        problem = context.index_builder.index_error or self._queues.failed_writes
        if problem is not None:
            context.refuse_for_now(problem)

    def mark_flushed(self, log_position: int) -> None:
        """With sync flush: make visible what is on the disk now; for the thread that appends."""
        unflushed = self._unflushed
        if not unflushed:
            return
        ready: list[Staged | StagedBatch] = []
        while unflushed and unflushed[0][1] + unflushed[0][2] <= log_position:
            ready.append(unflushed.popleft())
        if ready:
            self._publish(ready)
