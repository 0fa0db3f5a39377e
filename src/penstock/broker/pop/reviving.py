"""Brings unfinished messages back when their invisible time is up, and restores a restart's state.

A message that is due is stored in the group's pop retry topic, or as a dead letter when its retries
are used up (`redelivery`); its receipt ends in the same turn.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from penstock.broker.pop.check_points import CheckPoint
from penstock.broker.pop.early_acks import LONGEST_MS, ReceiptKey
from penstock.broker.pop.redelivery import record_of, redeliver
from penstock.broker.pop.revive_records import (
    NO_POP,
    ReadAck,
    ReadCheckPoint,
    read_revive_record,
)
from penstock.broker.state import BrokerState
from penstock.errors import PenstockError, StoreError
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.records.codec import Record
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_PER_STEP: Final = 256
"""Messages that come back in one turn; more would delay other requests."""
_BYTES_PER_STEP: Final = 4 << 20
"""Far below what the store stages: a message and the end of its receipt leave in one write."""
_REFUSED_MS: Final = 10_000
"""The wait of a message that was refused for a reason of its own."""
_TIMED_ACK_MS: Final = 2_000
"""After a check-point from Apache's timer its acknowledgements may still be on their way."""
_MAX_QUEUE_ID: Final = 1 << 31


class Reviver(Service):
    """Stores what is due again."""

    TICK = 1.0
    """Between two looks at the journal; and the wait after a failed write."""
    LONGEST = 5.0
    """The longest sleep while receipts are open: the wall clock may be set forward."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        self._woken = asyncio.Event()
        self._wake_at_ms: float = -math.inf
        self._is_failing = False
        self._refused: set[tuple[str, str]] = set()
        """Groups and topics whose messages were refused last, so that it is logged once."""
        self._settled_end = 0

    # At the start

    def restore(self) -> int:
        """Read the journal; the number of receipts that are open."""
        broker = self._broker
        journal = broker.pop.journal
        journal.begin()
        if broker.offsets.journal_position is None and broker.storage.max_offset(TIMER_TOPIC, 0):
            # An Apache broker ran before, and its timer may have check-points.
            journal.early.expected_until = broker.clock.time_ms() + LONGEST_MS
        self._apply(list(journal.unread()), is_start=True)
        return broker.pop.points.count

    def _apply(self, records: list[tuple[int, Record]], *, is_start: bool) -> None:
        """Open what records say is open; acknowledgements may come before their check-point."""
        broker = self._broker
        broker_name = broker.pop.journal.broker_name
        read = [(queue_id, record, read_revive_record(record, broker_name))
                for queue_id, record in records]  # fmt: skip
        done: set[ReceiptKey] = set()
        early, now = broker.pop.journal.early, broker.clock.time_ms()
        for _, _, said in read:
            if isinstance(said, ReadAck):
                keys = {
                    (said.group, said.topic, said.queue_id, said.pop_time, offset)
                    for offset in said.offsets
                }
                done |= keys
                if now < said.due <= now + LONGEST_MS:
                    early.expected_until = max(early.expected_until, said.due)
                    for key in keys:
                        early.note(key, said.due)
        if is_start:
            self._move_frontiers([(record, said) for _, record, said in read])
        for revive_queue_id, record, said in read:
            if isinstance(said, ReadCheckPoint):
                self._open(revive_queue_id, record, said, done)
            elif said is None:
                log.warning(
                    "revive record not understood queue=%d offset=%d",
                    revive_queue_id,
                    record.queue_offset,
                )
        if not is_start:
            for group, topic, queue_id, pop_time, offset in done:
                queue = broker.pop.points.find_queue(group, topic, queue_id)
                if queue is not None:
                    broker.pop.points.finish(queue, pop_time, offset)

    def _applies(self, record: Record, said: ReadCheckPoint) -> bool:
        """Whether a check-point is about something that still exists."""
        broker = self._broker
        return (
            said.topic in broker.topics
            and said.group in broker.groups
            and 0 <= said.queue_id < _MAX_QUEUE_ID
            and not broker.storage.store.was_deleted_since(said.topic, record.log_position)
        )

    def _open(
        self, revive_queue_id: int, record: Record, said: ReadCheckPoint, done: set[ReceiptKey]
    ) -> None:
        broker = self._broker
        early = broker.pop.journal.early
        group, topic, queue_id = said.group, said.topic, said.queue_id
        if not self._applies(record, said):
            return
        queue = broker.pop.points.queue(group, topic, queue_id)
        if any((said.pop_time, offset) in queue.receipts for offset in said.offsets):
            # Written again: the later record counts, with what is left of the check-point.
            older = queue.receipts[next(
                (said.pop_time, offset)
                for offset in said.offsets
                if (said.pop_time, offset) in queue.receipts
            )]  # fmt: skip
            broker.pop.points.placed(older, record.queue_offset, broker.clock.time_ms())
            return
        left = [
            offset
            for offset in dict.fromkeys(said.offsets)
            if (key := (group, topic, queue_id, said.pop_time, offset)) not in done
            and key not in early
        ]
        if not left:
            return
        point = CheckPoint(
            queue,
            said.start_offset,
            tuple(dict.fromkeys(said.offsets)),
            said.pop_time,
            said.invisible_ms,
            revive_queue_id,
            is_suspended=said.is_suspended,
        )
        if said.is_timed:
            point.due = max(point.due, broker.clock.time_ms()) + _TIMED_ACK_MS
        broker.pop.points.add(point, left)
        broker.pop.points.placed(point, record.queue_offset, broker.clock.time_ms())

    def _move_frontiers(self, read: list[tuple[Record, object]]) -> None:
        """What was handed out after the offsets were saved is not handed out a second time.

        In the order of the log: after a reset a group went on before where it was.
        """
        known = self._broker.offsets.journal_position
        if known is None:
            return
        newer = [
            (record, said)
            for record, said in read
            if isinstance(said, ReadCheckPoint) and record.log_position + record.size > known
        ]
        for record, said in sorted(newer, key=lambda one: one[0].log_position):
            if self._applies(record, said):
                self._move_frontier(record, said)
        self._broker.offsets.note_journal_read()

    def _move_frontier(self, record: Record, said: ReadCheckPoint) -> None:
        offsets = self._broker.offsets
        group, topic, queue_id = said.group, said.topic, said.queue_id
        if said.next_offset == NO_POP or not said.offsets:
            return
        if record.log_position < offsets.reset_position(group, topic, queue_id):
            return
        following = said.next_offset
        if following is None:
            # Not from here: it may also be a renewed one, so that a group is not moved back.
            committed = offsets.committed(group, topic, queue_id)
            following = max(max(said.offsets) + 1, committed or 0)
        if 0 <= following <= self._broker.storage.max_offset(topic, queue_id):
            offsets.restore(group, topic, queue_id, following)

    # While it runs

    def wake(self, due: int) -> None:
        """A check-point is due at this time."""
        if due < self._wake_at_ms:
            self._woken.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        broker = self._broker
        for topic, group, queue_id, _ in broker.pop.orders.blocked():
            broker.pop.wake_orderly_at(topic, group, queue_id)
        ready()
        looked = -math.inf
        while True:
            now = broker.clock.monotonic()
            is_busy = self._revive_step()
            if now - looked >= self.TICK:
                looked = now
                self._look()
            if is_busy:
                await broker.clock.sleep(0)
            else:
                await self._sleep(looked)

    async def _sleep(self, looked: float) -> None:
        """Sleep until something is due, or until the journal has to be looked at."""
        broker = self._broker
        self._woken.clear()
        waits = []
        due = broker.pop.points.next_due
        if due is not None:
            waits.append((due - broker.clock.time_ms()) / 1000)
        if self._is_failing:
            waits = [self.TICK]
        if due is not None or not self._is_settled():
            waits.append(max(0.0, looked + self.TICK - broker.clock.monotonic()))
        elif broker.storage.max_offset(TIMER_TOPIC, 0):
            # The timer may bring check-points of an Apache broker.
            waits.append(self.LONGEST)
        wait = max(0.001, min(waits)) if waits else None
        self._wake_at_ms = math.inf if wait is None else broker.clock.time_ms() + wait * 1000
        timer = None if wait is None else broker.clock.call_later(wait, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            self._wake_at_ms = -math.inf
            if timer is not None:
                timer.cancel()

    def _is_settled(self) -> bool:
        """Whether the committed numbers are those of the last record, and saved so."""
        return (
            self._settled_end == self._broker.pop.journal.end
            and not self._broker.offsets.has_unflushed
        )

    def _look(self) -> None:
        """Read what others appended to the journal, and move its committed numbers on."""
        journal, offsets = self._broker.pop.journal, self._broker.offsets
        found = list(journal.unread())
        if found:
            self._apply(found, is_start=False)
        try:
            self.settle()
        except StoreError as error:
            self._log_failure(error)
        if offsets.has_unflushed:
            # Saved again: a save before the next flush leaves the newest offsets out.
            offsets.touch()

    def settle(self, *, is_last: bool = False) -> None:
        """Commit how far the journal is done; the last time nothing is appended any more."""
        journal = self._broker.pop.journal
        journal.keep_up(may_append=not is_last)
        self._settled_end = journal.end

    # What is due

    def _revive_step(self) -> bool:
        """Bring back what is due, a part of it at a time; whether more is due."""
        points = self._broker.pop.points
        now = self._broker.clock.time_ms()
        count = size = 0
        while count < _PER_STEP and size < _BYTES_PER_STEP:
            point = points.take_due(now)
            if point is None:
                return False
            count += point.left
            try:
                size += self._revive(point, _BYTES_PER_STEP - size)
            except StoreError as error:
                points.put_back(point, point.due)
                self._log_failure(error)
                return False
            except PenstockError as error:
                # One message must not keep the others from coming back.
                points.put_back(point, now + _REFUSED_MS)
                self._log_refusal(point, error)
                continue
            if point.left:
                points.put_back(point, point.due)
            self._is_failing = False
            self._refused.discard((point.queue.group, point.queue.topic))
        return True

    def _log_failure(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error("unfinished messages are not redelivered yet error=%s", error)

    def _log_refusal(self, point: CheckPoint, error: PenstockError) -> None:
        key = (point.queue.group, point.queue.topic)
        if key not in self._refused:
            self._refused.add(key)
            log.error(
                "unfinished messages are kept for later group=%s topic=%s error=%s", *key, error
            )

    def _revive(self, point: CheckPoint, room: int) -> int:
        """Store unfinished messages of a check-point for their next delivery; their bytes.

        What exceeds ``room`` is left.
        """
        broker, queue = self._broker, point.queue
        offsets = point.open_offsets
        if queue.group not in broker.groups or queue.topic not in broker.topics:
            self._finish(point, offsets)
            return 0
        done: list[int] = []
        size = 0
        for offset in offsets:
            if size >= room:
                break
            try:
                if offset not in point.redelivered:
                    size += self._redeliver(point, offset)
            except StoreError:
                # What is stored already is known by `redelivered`, and ends with the next try.
                raise
            except PenstockError:
                self._finish(point, done)
                raise
            done.append(offset)
        self._finish(point, done)
        return size

    def _finish(self, point: CheckPoint, offsets: list[int]) -> None:
        if offsets:
            self._broker.pop.journal.finish(point, offsets)
            self._broker.stats.receipts_expired(point.queue.group, len(offsets))

    def _redeliver(self, point: CheckPoint, offset: int) -> int:
        """Store one message of a check-point again; its size."""
        broker, queue = self._broker, point.queue
        record = record_of(broker, queue.topic, queue.queue_id, offset)
        if record is None:
            log.warning(
                "unfinished message is gone, its receipt is dropped "
                "group=%s topic=%s queue=%d offset=%d",
                queue.group,
                queue.topic,
                queue.queue_id,
                offset,
            )
            return 0
        end = redeliver(
            broker, queue.group, record, point.pop_time, is_suspended=point.is_suspended
        )
        if end:
            # Known until its receipt is gone for good: the write of the end may fail alone.
            point.redelivered.add(offset)
            broker.pop.journal.when_lost(end, lambda: point.redelivered.discard(offset))
        return record.size
