"""Moves parked messages into the wheel, and messages that are due into their topics.

One task does both, so a slot is taken only when everything parked before is in the wheel: a recall
that was acknowledged is always seen. Files are read and written in a thread; the loop only reads
the queue of parked messages and appends. After a failure, of a full disk say, the task tries the
same again: nothing that is due is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.broker.delivery.deleted_topics import DeletedTopics
from penstock.broker.storage import Storage
from penstock.broker.tables.topics import Topics
from penstock.broker.timers.due_columns import FEW
from penstock.broker.timers.preparing import (
    Deleted,
    Located,
    LocatedRun,
    Prepared,
    Views,
    deleted_by,
    last_position,
    log_skipped,
    prepare_columns,
    prepare_each,
    prepare_run,
)
from penstock.broker.timers.timer_files import Snapshot, TakenSlot, TimerFiles
from penstock.broker.timers.timer_metrics import METRICS_FILE, TimerMetrics
from penstock.errors import InvalidArgument, StoreError
from penstock.model.names import TIMER_TOPIC
from penstock.runtime.clock import Clock
from penstock.runtime.saved_tables import SavedTables
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end
from penstock.store import Draft, ReadStatus
from penstock.store.timers.checkpoint_page import TimerCheckpoint
from penstock.store.timers.timer_log import Unit, UnitRun

log = logging.getLogger(__name__)

_READ_COUNT: Final = 512
_READ_BYTES: Final = 4 << 20
_DELIVER_COUNT: Final = 512
_DELIVER_BYTES: Final = 4 << 20
_Units = list[tuple[int, Unit]]
_Result = TypeVar("_Result")


class TimerService(Service):
    """The timers of one broker."""

    ENQUEUE_SECONDS = 0.1
    """How long a parked message waits at most before it is put into the wheel."""
    RETRY_SECONDS = 0.1
    SAVE_SECONDS = 1.0

    def __init__(
        self,
        files: TimerFiles,
        storage: Storage,
        clock: Clock,
        topics: Topics,
        tables: SavedTables,
    ) -> None:
        self._files = files
        self._storage = storage
        self._clock = clock
        self._tables = tables
        self._topics = topics
        self._deleted = DeletedTopics(topics, storage.store)
        self.metrics = TimerMetrics(clock.time_ms, topics.__contains__)
        self.checkpoint = TimerCheckpoint()
        """What was saved last."""
        self._woken = asyncio.Event()
        self._is_failing = False
        self._is_save_failing = False
        self._changed = asyncio.Event()
        self.enqueued = 0
        self.delivered = 0

    # For handlers

    def parked(self) -> None:
        """Note that a message was appended to the timer topic."""
        self._woken.set()

    def units_in(self, slot_ms: int) -> int:
        """How many messages of a slot are in the wheel."""
        return self._files.units_in(slot_ms)

    def is_open(self, slot_ms: int) -> bool:
        """Whether a slot was not taken yet: what is parked for it now is in time."""
        return slot_ms >= self._files.read_ms

    @property
    def pending(self) -> int:
        """Messages in the wheel."""
        return self._files.pending

    @property
    def next_offset(self) -> int:
        """The queue offset of the next parked message to enqueue."""
        return self._files.queue_offset

    @property
    def read_ms(self) -> int:
        """The next slot to deliver."""
        return self._files.read_ms

    # Running

    async def _run(self, ready: Callable[[], None]) -> None:
        with (
            ThreadPoolExecutor(1, thread_name_prefix="penstock-timers") as self._thread,
            ThreadPoolExecutor(1, thread_name_prefix="penstock-timer-flush") as flushing,
        ):
            store, now = self._storage.store, self._clock.time_ms()
            await run_to_end(self._thread, functools.partial(self._files.open, store, now))
            ready()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._save_forever(flushing))
                    group.create_task(self._work_forever())
            finally:
                await self._stop(flushing)

    async def _work_forever(self) -> None:
        while True:
            self._woken.clear()
            try:
                wait = await self._work()
                self._is_failing = False
            except (StoreError, OSError) as error:
                if not self._is_failing:
                    # Logged once: the next attempt follows in a tenth of a second.
                    self._is_failing = True
                    log.error("timer messages not moved, tried again error=%s", error)
                wait = self.RETRY_SECONDS
            await self._sleep(wait)

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep for ``seconds``, or until shortly after a message was parked."""
        if seconds is None:
            await self._woken.wait()
            await self._clock.sleep(self.ENQUEUE_SECONDS)
            return
        deadline = self._clock.monotonic() + seconds
        timer = self._clock.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        left = deadline - self._clock.monotonic()
        if left > 0:
            await self._clock.sleep(min(left, self.ENQUEUE_SECONDS))

    async def _work(self) -> float | None:
        """Enqueue and deliver all there is; return the seconds to the next tick, None if none."""
        files = self._files
        while True:
            await self._enqueue(self._storage.max_offset(TIMER_TOPIC, 0))
            now = self._clock.time_ms()
            taken = await self._in_thread(functools.partial(files.take, now))
            if taken is None:
                break
            await self._deliver(taken)
        if not files.slots:
            return None
        precision = files.shape.precision_ms
        return (precision - self._clock.time_ms() % precision) / 1000

    async def _in_thread(self, function: Callable[[], _Result]) -> _Result:
        return await run_to_end(self._thread, function)

    # Enqueueing

    async def _enqueue(self, end: int) -> None:
        """Put messages that are parked before ``end`` into the wheel."""
        files = self._files
        while files.queue_offset < end:
            offset = files.queue_offset
            result = self._storage.read(
                TIMER_TOPIC, 0, offset, max_count=_READ_COUNT, max_bytes=_READ_BYTES
            )
            if result.status is not ReadStatus.FOUND:
                if result.next_offset <= offset:
                    return
                log.error(
                    "parked timer messages are gone from=%d to=%d", offset, result.next_offset
                )
                files.queue_offset = result.next_offset
                continue
            now = self._clock.time_ms()
            step = functools.partial(files.enqueue, result.slices, now)
            enqueued = await self._in_thread(step)
            self._note(enqueued.by_topic)
            self.enqueued += enqueued.records
            if enqueued.records < result.count:
                return  # The wheel has no room before more is delivered.

    def _note(self, by_topic: dict[str, int]) -> None:
        self._changed.set()
        if by_topic:
            self.metrics.add(by_topic)
            self._tables.changed(METRICS_FILE)

    # Delivering

    async def _deliver(self, taken: TakenSlot) -> None:
        """Deliver all messages of a slot; what fails is tried again from there on."""
        deleted: set[tuple[str, str]] = set()
        for portion in _portions(taken.marks):
            units = await self._in_thread(functools.partial(self._files.units_at, portion))
            views = self._located(units)
            deleted |= await self._in_thread(functools.partial(deleted_by, views))
        keys = frozenset(deleted)
        for kind in (taken.marks, taken.messages):
            await self._deliver_all(taken, kind, keys)
        await self._in_thread(functools.partial(self._files.finish, taken))
        self._note({})

    async def _deliver_all(self, taken: TakenSlot, kind: array[int], deleted: Deleted) -> None:
        """Deliver the units at ``kind``, portion by portion.

        One call of the thread prepares a portion and reads the units of the next: each call costs
        a wait for the loop, which may be busy with other requests.
        """
        portions = _portions(kind)
        following = next(portions, None)
        units = await self._in_thread(functools.partial(self._units_at, following or []))
        while following is not None:
            following = next(portions, None)
            *parts, last = await self._located_parts(units)
            for part in parts:
                await self._deliver_part(taken, kind, part, deleted, [])
            units = await self._deliver_part(taken, kind, last, deleted, following or [])
            # A full slot takes long: what is parked meanwhile has its own time to keep.
            with contextlib.suppress(StoreError, OSError):
                await self._enqueue(self._storage.max_offset(TIMER_TOPIC, 0))

    def _units_at(self, positions: list[int]) -> _Units | UnitRun:
        """Runs in the thread."""
        run = self._files.run_at(positions) if len(positions) >= FEW else None
        if run is None or len(positions) * run.record_size > _DELIVER_BYTES:
            return self._files.units_at(positions)
        return run

    async def _located_parts(self, units: _Units | UnitRun) -> list[Views | LocatedRun]:
        """Units with their records, in parts that are not too large to be copied at once."""
        if isinstance(units, UnitRun):
            first, size = units.log_positions[0], len(units.positions) * units.record_size
            view = self._storage.store.commit_log.slice(first, size)
            if view is not None:
                return [LocatedRun(units, view)]
            # The end of a segment is among them, or some of them are gone.
            read = functools.partial(self._files.units_at, units.positions)
            units = await self._in_thread(read)
        return [*_by_bytes(self._located(units))] or [[]]

    def _located(self, units: _Units) -> Views:
        """Units with their records; the bytes are not looked at here: they may be on the disk."""
        found: Views = []
        slice_log = self._storage.store.commit_log.slice
        for position, unit in units:
            view = slice_log(unit.log_position, unit.record_size)
            if view is None:
                log.error("timer message is gone position=%d", unit.log_position)
            else:
                found.append(Located(position, unit, view))
        return found

    async def _deliver_part(
        self,
        taken: TakenSlot,
        kind: array[int],
        views: Views | LocatedRun,
        deleted: Deleted,
        following: list[int],
    ) -> _Units | UnitRun:
        """Store what is due; return the units at ``following``, to be delivered next."""
        is_columnar = not deleted
        while True:
            step = functools.partial(
                self._prepare,
                views,
                deleted,
                self._clock.time_ms(),
                following,
                is_columnar=is_columnar,
            )
            prepared, units = await self._in_thread(step)
            columns = prepared.columns
            if columns is not None and columns.topic not in self._topics:
                # It may be deleted, which is asked message by message.
                is_columnar = False
                continue
            try:
                if columns is not None:
                    for queue in columns.queues:
                        self._storage.append_rows(*queue)
                for draft, position in prepared.drafts:
                    self._append(draft, position)
                # A message that could not be written is still to be delivered.
                self._storage.write()
            except StoreError as error:
                if not self._is_failing:
                    self._is_failing = True
                    log.error("due timer messages not stored, tried again error=%s", error)
                await self._clock.sleep(self.RETRY_SECONDS)
                continue
            except InvalidArgument:
                # Found before the first of them was appended; one by one, they are logged.
                is_columnar = False
                continue
            self._is_failing = False
            self.delivered += len(prepared.drafts) if columns is None else columns.messages
            self._note({topic: -count for topic, count in prepared.by_topic.items()})
            if views and kind is taken.messages:
                self._files.note_progress(taken, last_position(views))
            return units

    def _prepare(
        self,
        views: Views | LocatedRun,
        deleted: Deleted,
        now_ms: int,
        following: list[int],
        *,
        is_columnar: bool,
    ) -> tuple[Prepared, _Units | UnitRun]:
        """Runs in the thread."""
        limits = (now_ms, self._files.shape.precision_ms, self._storage.max_message_size)
        prepared: Prepared | None = None
        if isinstance(views, LocatedRun):
            prepared = prepare_run(views, *limits) if is_columnar else None
            if prepared is None:
                views = views.opened(self._files.units_at(views.units.positions))
        elif is_columnar:
            prepared = prepare_columns(views, *limits)
        if prepared is None:
            assert not isinstance(views, LocatedRun)
            prepared = prepare_each(views, deleted, now_ms, limits[1])
        return prepared, self._units_at(following)

    def _append(self, draft: Draft, position: int) -> None:
        if draft.topic != TIMER_TOPIC and self._deleted.skips(draft.topic, position):
            return
        try:
            self._storage.append(draft)
        except InvalidArgument as error:
            log_skipped(position, error)

    # Saving

    async def _save_forever(self, thread: ThreadPoolExecutor) -> None:
        while True:
            await self._changed.wait()
            await self._clock.sleep(self.SAVE_SECONDS)
            self._changed.clear()
            snapshot = await self._snapshot()
            if snapshot is None:
                self._changed.set()
                continue
            end = self._storage.store.max_position
            # Delivered messages must be on the disk before they count as delivered.
            while self._storage.store.flushed_position < end:
                await self._clock.sleep(self.SAVE_SECONDS / 4)
            await self._save(thread, snapshot)

    async def _snapshot(self, *, is_last: bool = False) -> Snapshot | None:
        now = self._clock.time_ms()
        return await self._in_thread(functools.partial(self._files.snapshot, now, is_last=is_last))

    async def _save(self, thread: ThreadPoolExecutor, snapshot: Snapshot) -> None:
        try:
            await run_to_end(thread, functools.partial(self._files.sync, snapshot))
        except OSError as error:
            # What was saved before is still true; after a restart more is done again. Logged
            # once: the next attempt follows in a second.
            if not self._is_save_failing:
                self._is_save_failing = True
                log.error("timer files cannot be saved, tried again error=%s", error)
            self._changed.set()
            return
        self._is_save_failing = False
        self.checkpoint = snapshot.checkpoint
        low = self._storage.store.min_position
        await self._in_thread(functools.partial(self._files.retire, snapshot, low))

    async def _stop(self, thread: ThreadPoolExecutor) -> None:
        """Save where the timers stand, as the last thing."""
        try:
            snapshot = await self._snapshot()
            if snapshot is not None and self._storage.store.is_writable:
                self._storage.store.write()
                await run_to_end(thread, self._storage.store.flush)
                await self._save(thread, snapshot)
                # Saving retires slots and segments; what is left stays as it is.
                last = await self._snapshot(is_last=True)
                if last is not None:
                    await run_to_end(thread, functools.partial(self._files.sync, last))
        except (StoreError, OSError) as error:
            log.error("timer files not saved error=%s", error)
        finally:
            await self._in_thread(self._files.close)


def _portions(positions: array[int]) -> Iterator[list[int]]:
    for at in range(0, len(positions), _DELIVER_COUNT):
        yield list(positions[at : at + _DELIVER_COUNT])


def _by_bytes(views: Views) -> Iterator[Views]:
    """Parts that are not too large to be copied at once."""
    part: Views = []
    size = 0
    for one in views:
        if part and size + len(one.view) > _DELIVER_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one.view)
    if part:
        yield part
