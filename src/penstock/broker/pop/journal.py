"""The journal of pop consumption: the revive topic, written with all else of a loop turn.

Memory is the truth while the broker runs; the journal restores it at the next start, here or at an
Apache broker. A change is made in memory when its record is staged. If the write of the turn fails,
the change is taken back, and no answer leaves that mentions it.

The committed number of the revive group in a queue of the topic is the last record that is done:
all before the lowest open check-point. So that it moves on, a check-point that stays open for long
is written again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.broker.delivery.record_views import record_views
from penstock.broker.pop.check_points import REVIVE_QUEUES, CheckPoint, CheckPoints
from penstock.broker.pop.early_acks import EarlyAcks, ReceiptKey
from penstock.broker.pop.revive_records import (
    ACK,
    BATCH_ACK,
    CHECK_POINT,
    NO_POP,
    ack_body,
    check_point_body,
    early_ack_body,
    properties_of,
)
from penstock.broker.storage import Storage
from penstock.broker.tables.offsets import Offsets
from penstock.errors import ProtocolError, StoreError
from penstock.model.names import REVIVE_GROUP
from penstock.protocol.records.codec import Record, decode_record
from penstock.runtime.clock import Clock
from penstock.store import Draft, ReadStatus

log = logging.getLogger(__name__)

SHORT_REVIVE_QUEUES: Final = REVIVE_QUEUES - 1
LONG_REVIVE_QUEUE: Final = REVIVE_QUEUES - 1
LONG_MS: Final = 60_000
"""A longer invisible time goes to a queue of its own: at an Apache broker an open check-point
delays those behind it."""
OLDEST_MS: Final = 10 * 60_000
MOST_BEHIND: Final = 100_000
"""When a check-point is written again: by age, or by the records behind it."""
_ANEW_PER_ROUND: Final = 1_000
"""So many are written again at most in one turn; more would delay other requests."""
_PER_READ: Final = 32


class Journal:
    """Appends check-points and acknowledgements, and keeps memory in step."""

    def __init__(
        self,
        storage: Storage,
        offsets: Offsets,
        points: CheckPoints,
        clock: Clock,
        *,
        topic: str,
        broker_name: str,
        store_host: bytes,
    ) -> None:
        self._storage = storage
        self._offsets = offsets
        self._points = points
        self._clock = clock
        self.topic = topic
        self.broker_name = broker_name
        self._store_host = store_host
        self._next = [0] * REVIVE_QUEUES
        """The offset after the last record that is known here."""
        self._own: set[tuple[int, int]] = set()
        """Records from here behind records that were not read yet."""
        self._undo: deque[tuple[int, Callable[[], object]]] = deque()
        self._acknowledged: dict[CheckPoint, list[int]] = {}
        """Receipts that ended in this turn and have no record yet."""
        self.early = EarlyAcks()
        self.end = 0
        """The log position after the newest record."""
        self._turn = 0
        storage.on_loss(self._take_back)
        offsets.journal_end = lambda: self.end

    def next_revive_queue(self, invisible_ms: int) -> int:
        """The queue for the check-points of one pop."""
        if invisible_ms > LONG_MS:
            return LONG_REVIVE_QUEUE
        self._turn = (self._turn + 1) % SHORT_REVIVE_QUEUES
        return self._turn

    # Writing

    def open(
        self,
        point: CheckPoint,
        undo: Callable[[], object] | None = None,
        *,
        next_offset: int = NO_POP,
    ) -> int:
        """Open a check-point; the log position its record ends at.

        That of a pop says where the group goes on: a restart without the saved offset needs it.
        """
        end = self._append_check_point(point, point.offsets, next_offset)
        self._points.add(point)

        def close() -> None:
            for offset in point.open_offsets:
                self._points.finish(point.queue, point.pop_time, offset)
            if undo is not None:
                undo()

        self._undo.append((end, close))
        return end

    def finish(self, point: CheckPoint, offsets: Sequence[int]) -> int:
        """End receipts of a check-point; the log position their record ends at."""
        end = self._append_end(point, offsets)
        for offset in offsets:
            self._points.finish(point.queue, point.pop_time, offset)
        return end

    def _append_end(self, point: CheckPoint, offsets: Sequence[int]) -> int:
        end = self._append(
            point.revive_queue_id,
            ACK if len(offsets) == 1 else BATCH_ACK,
            ack_body(point, offsets, self.broker_name),
        )[1]
        self._undo.append((end, lambda: self._points.restore(point, offsets)))
        return end

    def acknowledge(self, point: CheckPoint, offsets: Sequence[int]) -> int:
        """End receipts with one record for all of a check-point that end in this turn.

        It leaves with the write of the turn, before its answers. Returns the log position that the
        answer relies on: with synchronous flush answers wait for their own record.
        """
        if self._storage.is_sync_flush or not self._storage.store.is_writable:
            return self.finish(point, offsets)
        if not self._acknowledged:
            self._storage.before_write(self._append_acknowledged)
        self._acknowledged.setdefault(point, []).extend(offsets)
        for offset in offsets:
            self._points.finish(point.queue, point.pop_time, offset)
        return self.end

    def _append_acknowledged(self) -> None:
        acknowledged, self._acknowledged = self._acknowledged, {}
        refused: StoreError | None = None
        for point, offsets in acknowledged.items():
            try:
                self._append_end(point, offsets)
            except StoreError as error:
                self._points.restore(point, offsets)
                refused = error
        if refused is not None:
            raise refused

    @property
    def unflushed_end(self) -> int:
        """What an answer relies on that repeats an earlier one, where it must be on the disk."""
        storage = self._storage
        is_waited_for = storage.is_sync_flush and self.end > storage.store.flushed_position
        return self.end if is_waited_for else 0

    def acknowledge_early(self, key: ReceiptKey, due: int, revive_queue_id: int) -> int:
        """Note the end of a receipt whose check-point is still to come; where its record ends."""
        if key in self.early:
            return 0
        queue_id = revive_queue_id if 0 <= revive_queue_id < REVIVE_QUEUES else 0
        end = self._append(queue_id, ACK, early_ack_body(key, due, self.broker_name))[1]
        self.early.note(key, due)
        return end

    def write_anew(self, point: CheckPoint) -> None:
        """Append the rest of a check-point once more, so that records before it are done."""
        before = point.revive_offset
        end = self._append_check_point(point, point.open_offsets, NO_POP)
        self._undo.append((end, lambda: self._points.placed_before(point, before)))

    def when_lost(self, log_end: int, undo: Callable[[], object]) -> None:
        """Call ``undo`` if what was appended up to ``log_end`` cannot be written."""
        self._undo.append((log_end, undo))

    def _append_check_point(
        self, point: CheckPoint, offsets: Sequence[int], next_offset: int
    ) -> int:
        body = check_point_body(point, offsets, self.broker_name, next_offset)
        revive_offset, end = self._append(point.revive_queue_id, CHECK_POINT, body)
        self._points.placed(point, revive_offset, self._clock.time_ms())
        return end

    def _append(self, queue_id: int, tag: bytes, body: bytes) -> tuple[int, int]:
        """Append a record; its queue offset and the log position after it."""
        now = self._clock.time_ms()
        appended = self._storage.append(
            Draft(
                self.topic,
                queue_id,
                body,
                properties_of(tag, now),
                born_timestamp=now,
                born_host=self._store_host,
                store_host=self._store_host,
            )
        )
        end = self.end = appended.log_position + appended.size
        if appended.queue_offset == self._next[queue_id]:
            self._next[queue_id] += 1
        else:
            # Another part of the broker has appended here; `unread` reads that, but not this.
            self._own.add((queue_id, appended.queue_offset))
        undo = self._undo
        if undo:
            written = self._storage.store.max_position
            while undo and undo[0][0] <= written:
                undo.popleft()
        return appended.queue_offset, end

    def _take_back(self, written: int) -> None:
        """The write of a turn failed: what it would have stored did not happen."""
        undo = self._undo
        taken_back = 0
        self.end = min(self.end, written)
        while undo and undo[-1][0] > written:
            undo.pop()[1]()
            taken_back += 1
        if taken_back:
            self._next = [
                min(known, self._storage.max_offset(self.topic, queue_id))
                for queue_id, known in enumerate(self._next)
            ]
            log.warning("pops and acknowledgements taken back count=%d", taken_back)

    # Progress

    def keep_up(self, *, may_append: bool = True) -> None:
        """Move the committed numbers of the revive group on."""
        if self._acknowledged:
            # They must not pass a check-point whose end is not in the log. If the store refuses
            # that, the answers of this turn have to know.
            self._storage.write()
        now = self._clock.time_ms()
        is_early = self.early.has_open(now)
        anew = 0
        for queue_id in range(REVIVE_QUEUES):
            first = self._points.first_open(queue_id)
            if is_early:
                # After a restart they have to be read again.
                continue
            while (
                may_append
                and anew < _ANEW_PER_ROUND
                and first is not None
                and self._is_behind(first, queue_id, now)
            ):
                anew += 1
                self.write_anew(first)
                first = self._points.first_open(queue_id)
            done = (self._next[queue_id] if first is None else first.revive_offset) - 1
            if done >= 0 and done != self.committed(queue_id):
                self._offsets.commit_after_flush(REVIVE_GROUP, self.topic, queue_id, done, self.end)

    def _is_behind(self, point: CheckPoint, queue_id: int, now_ms: int) -> bool:
        behind = self._next[queue_id] - point.revive_offset
        if behind > MOST_BEHIND:
            return True
        # One that is due ends soon, unless its messages are refused.
        is_ending = point.due <= now_ms < point.due + OLDEST_MS
        return behind > 1 and now_ms - point.written_ms > OLDEST_MS and not is_ending

    def committed(self, queue_id: int) -> int | None:
        """The last record that is done."""
        return self._offsets.committed(REVIVE_GROUP, self.topic, queue_id)

    # Reading

    def unread(self) -> Iterator[tuple[int, Record]]:
        """Records that were not written here: at the start, or by a timer later."""
        for queue_id in range(REVIVE_QUEUES):
            if self._storage.max_offset(self.topic, queue_id) > self._next[queue_id]:
                yield from self._read_queue(queue_id)

    def begin(self) -> None:
        """Read each queue from the first record that is not done."""
        for queue_id in range(REVIVE_QUEUES):
            done = self.committed(queue_id)
            end = self._storage.max_offset(self.topic, queue_id)
            first = self._storage.min_offset(self.topic, queue_id)
            self._next[queue_id] = max(first, min(end, 0 if done is None else done + 1))

    def _read_queue(self, queue_id: int) -> Iterator[tuple[int, Record]]:
        storage, topic = self._storage, self.topic
        while True:
            result = storage.read(topic, queue_id, self._next[queue_id], max_count=_PER_READ)
            if result.status is not ReadStatus.FOUND:
                if result.next_offset <= self._next[queue_id]:
                    return
                self._next[queue_id] = result.next_offset
                continue
            self._next[queue_id] = result.next_offset
            for view in record_views(result.slices):
                try:
                    record = decode_record(view)
                except ProtocolError as error:
                    log.error("revive record skipped queue=%d error=%s", queue_id, error)
                    continue
                if (queue_id, record.queue_offset) in self._own:
                    self._own.discard((queue_id, record.queue_offset))
                    continue
                yield queue_id, record
