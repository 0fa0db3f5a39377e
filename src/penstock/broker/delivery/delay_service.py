"""Delivers delayed messages when they are due.

The schedule topic has one queue per level, and the messages of a level fall due in the order of the
queue. So the progress of a level is one offset, and its next message determines when to check
again; an empty level is not checked before a message arrives. Progress is saved every ten seconds;
after a crash, messages delivered since then are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.delivery.delay_times import DelayTimes
from penstock.broker.delivery.deleted_topics import DeletedTopics
from penstock.broker.delivery.record_views import record_views
from penstock.broker.delivery.schedule_records import due
from penstock.broker.storage import Storage
from penstock.broker.tables.topics import Topics
from penstock.errors import InvalidArgument, ProtocolError, StoreError
from penstock.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.offsets import DelayOffsetTable
from penstock.protocol.delays import DelayLevels
from penstock.protocol.records.codec import Record, decode_record
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.store import ReadResult, ReadStatus

log = logging.getLogger(__name__)

_PER_STEP = 32
_MAX_STEPS = 64
_MOVES_PER_VERSION = 200


class DelayService(Service):
    """Moves due messages from the schedule topic to their own topics."""

    TICK = 0.1
    """Delay before a level is tried again after a failure, or has more to deliver."""
    FIRST = 1.0

    def __init__(
        self,
        storage: Storage,
        levels: DelayLevels,
        clock: Clock,
        changed: Callable[[], None],
        *,
        topics: Topics,
    ) -> None:
        self._storage = storage
        self._levels = levels
        self._clock = clock
        self._changed = changed
        self._deleted = DeletedTopics(topics, storage.store)
        self._positions: dict[int, int] = {}
        self._times = {level: DelayTimes(clock, 0) for level in range(1, levels.max_level + 1)}
        self._is_failing = False
        self._busy_levels: set[int] = set(range(1, levels.max_level + 1))
        self.queues = frozenset((SCHEDULE_TOPIC, level - 1) for level in self._busy_levels)
        """The queues of the schedule topic."""
        self._woken = asyncio.Event()
        self._version = DataVersion(0, clock.time_ms(), 0)
        self._moves = 0

    # Progress

    def load(self, data: bytes) -> None:
        """Load ``delayOffset.json``; 4.9 wrote it without a version."""
        table = decode_body(DelayOffsetTable, data)
        self._positions = dict(table.offset_table)
        self._version = table.data_version or self._version

    def dump(self) -> bytes:
        """The content of ``delayOffset.json``."""
        return encode_state(self.table())

    def table(self) -> DelayOffsetTable:
        """The queue offset of each level's next message."""
        return DelayOffsetTable(dict(sorted(self._positions.items())), self._version)

    def correct(self) -> None:
        """Move saved offsets into the range of the queues, whose messages are all old ones."""
        for level in range(1, self._levels.max_level + 1):
            low = self._storage.min_offset(SCHEDULE_TOPIC, level - 1)
            high = self._storage.max_offset(SCHEDULE_TOPIC, level - 1)
            self._times[level] = DelayTimes(self._clock, high)
            position = self._positions.get(level, low)
            corrected = min(max(position, low), high)
            if corrected != position:
                log.warning(
                    "delay progress corrected level=%d from=%d to=%d", level, position, corrected
                )
            if corrected or high:
                self._positions[level] = corrected

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level: the offset of its next message and the end of its queue.

        Levels that never had a message are left out, as RocketMQ does.
        """
        ends = {
            level: self._storage.max_offset(SCHEDULE_TOPIC, level - 1)
            for level in range(1, self._levels.max_level + 1)
        }
        return {level: (self._position(level), end) for level, end in ends.items() if end}

    # Delivery

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        """Check the level of a new message; called by the store."""
        level = queue_id + 1
        if topic != SCHEDULE_TOPIC:
            return
        self._times[level].arrived(next_offset - 1)
        # In a level that has messages it is not the next one to fall due.
        if level not in self._busy_levels:
            self._busy_levels.add(level)
            self._woken.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        await self._clock.sleep(self.FIRST)
        while True:
            self._woken.clear()
            await self._sleep(self._deliver())

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep for ``seconds``, or until an empty level gets a message."""
        timer = None if seconds is None else self._clock.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _position(self, level: int) -> int:
        return self._positions.get(level, 0)

    def _deliver(self) -> float | None:
        """Deliver due messages; return the seconds until the next check, None if empty."""
        waits: list[float] = []
        for level in sorted(self._busy_levels):
            wait = self._deliver_level(level)
            if wait is None:
                self._busy_levels.discard(level)
            else:
                waits.append(wait)
        return min(waits, default=None)

    def _deliver_level(self, level: int) -> float | None:
        """`_deliver` for one level."""
        # Bounded, so that a backlog of delayed messages does not block the loop.
        for _ in range(_MAX_STEPS):
            before = self._position(level)
            if before >= self._storage.max_offset(SCHEDULE_TOPIC, level - 1):
                return None
            try:
                wait = self._deliver_step(level, before)
            except StoreError as error:
                if not self._is_failing:
                    # Logged once: the next attempt follows in a tenth of a second.
                    self._is_failing = True
                    log.error("delayed messages not delivered, tried again error=%s", error)
                return self.TICK
            self._is_failing = False
            if self._position(level) != before:
                self._note_move()
            if wait is not None:
                return wait
        return self.TICK

    def _note_move(self) -> None:
        self._moves += 1
        if self._moves % _MOVES_PER_VERSION == 0:
            self._version = self._version.following(self._clock.time_ms())
        self._changed()

    def _deliver_step(self, level: int, position: int) -> float | None:
        """Deliver the due ones of the next messages; return how long the others have to wait."""
        result = self._storage.read(SCHEDULE_TOPIC, level - 1, position, max_count=_PER_STEP)
        if result.status is not ReadStatus.FOUND:
            if result.next_offset > position:
                self._positions[level] = result.next_offset
                return None
            return self.TICK
        following, wait = self._append_due(level, position, result)
        # A message that could not be written is still to be delivered.
        self._storage.write()
        self._positions[level] = following
        return wait

    def _append_due(
        self, level: int, position: int, result: ReadResult
    ) -> tuple[int, float | None]:
        """Append due messages; return the offset after them and the wait for the next one."""
        times, delay_ms = self._times[level], self._levels.delay_ms(level)
        for view in record_views(result.slices):
            try:
                record = decode_record(view)
            except ProtocolError as error:
                log.error("delayed message skipped level=%d error=%s", level, error)
                position += 1
                continue
            position = record.queue_offset
            wait = times.seconds_left(position, record.store_timestamp, delay_ms)
            if wait > 0:
                return position, wait
            self._append(record)
            position += 1
        return result.next_offset, None

    def _append(self, record: Record) -> None:
        draft = due(record)
        if draft is None or draft.topic == HALF_TOPIC:
            log.error("delayed message without a target skipped position=%d", record.log_position)
            return
        if self._deleted.skips(draft.topic, record.log_position):
            return
        try:
            self._storage.append(draft)
        except InvalidArgument as error:
            # The store of another program may hold messages that this one refuses; they must not
            # block all that follow.
            log.error("delayed message skipped position=%d error=%s", record.log_position, error)
