"""The wheel and its log: enqueueing parked messages, taking slots that are due, and recovery.

Everything here waits for the disk and runs in one thread at a time; `sync` may run in another one.
The order of writes makes a crash harmless:

* A unit is written to the log before the slot that links it.
* `Snapshot.checkpoint` names only units whose slots were written before it was taken, and it is
  saved after a sync of both, when the messages delivered until then are on the disk, too.

So after a crash the log is read from the checkpoint on and its units are linked again; what was
parked behind the last of them is enqueued anew. A wheel that is missing is made from the log, and
a log that is missing from the parked messages.
"""

from __future__ import annotations

import functools
import logging
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.broker.delivery.record_views import record_views
from penstock.broker.timers.parked_columns import ParkedColumns, parked_columns
from penstock.broker.timers.parked_records import Parked, read_parked
from penstock.broker.timers.timer_shape import TimerShape
from penstock.errors import ProtocolError
from penstock.model.java_hash import java_hash
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.records.codec import decode_record
from penstock.store import FileLayer, layout
from penstock.store.timers.checkpoint_page import (
    CheckpointPage,
    FoundCheckpoint,
    SlotProgress,
    TimerCheckpoint,
    load_checkpoint,
)
from penstock.store.timers.timer_log import (
    DEFAULT,
    DELETE,
    NO_UNIT,
    ROLL,
    UNIT_BYTES,
    TimerLog,
    Unit,
    UnitRun,
    encode_unit,
    encode_units,
)
from penstock.store.timers.wheel_file import Slot, WheelFile

log = logging.getLogger(__name__)

_UNITS_SINGLY = 256
"""So many units are walked one by one where no run of usual ones is found."""

_hash_of = functools.lru_cache(1024)(java_hash)


class RecordSource(Protocol):
    """What recovery asks of the message store."""

    @property
    def max_position(self) -> int: ...
    def record_at(self, log_position: int) -> memoryview | None: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...


class Enqueued(NamedTuple):
    """What one call of `enqueue` did."""

    records: int
    """How many were read; fewer than given if the wheel has no room for the next one yet."""
    by_topic: dict[str, int]
    """By how much the messages that wait have become more."""


class TakenSlot(NamedTuple):
    """The units of a slot that is due, as positions in the timer log, oldest first."""

    slot_ms: int
    last: int
    units: int
    """What the slot counts, with those that were delivered before."""
    messages: array[int]
    marks: array[int]


class Delivered(NamedTuple):
    """Up to which unit a slot was delivered, and how many messages it had then."""

    last: int
    units: int


class Snapshot(NamedTuple):
    """What can be saved once the commit log is on the disk up to where it ends now."""

    checkpoint: TimerCheckpoint
    progress: SlotProgress
    delivered: dict[int, Delivered]
    checksum: int | None = None
    """Of wheel and timer log, if nothing is written to them any more."""


class TimerFiles:
    """The timer files of one store."""

    def __init__(self, files: FileLayer, root: str, shape: TimerShape) -> None:
        self._files = files
        self._root = root
        self.shape = shape
        self._log: TimerLog | None = None
        self._wheel: WheelFile | None = None
        self._page: CheckpointPage | None = None
        self.read_ms = 0
        """The next slot to take."""
        self.queue_offset = 0
        """The next parked message to enqueue."""
        self.pending = 0
        """Messages that wait, less those that were recalled."""
        self.slots = 0
        """Slots with units, delivered ones included until `retire`."""
        self._rebuilt_until = 0
        """Messages parked before this offset may have been delivered: the log does not tell."""
        self._delivered: dict[int, Delivered] = {}
        self._progress = SlotProgress()
        self._counter = 0

    # Opening

    def open(self, source: RecordSource, now_ms: int) -> None:
        """Load what is there and recover it; nothing is created before there is a timer."""
        found = load_checkpoint(self._files, self._root)
        names = {entry.name for entry in self._files.list_dir(self._root)}
        has_log = bool(self._files.list_dir(f"{self._root}/{layout.TIMER_LOG}"))
        end = source.max_offset(TIMER_TOPIC, 0)
        self.read_ms = self.shape.floor(now_ms)
        self.queue_offset = source.min_offset(TIMER_TOPIC, 0)
        if found is None and not has_log and layout.TIMER_WHEEL not in names and not end:
            return
        # Snapshots of the wheel are a setting of RocketMQ; then the plain file is an old state.
        has_snapshots = any(name.startswith(f"{layout.TIMER_WHEEL}.") for name in names)
        self._recover(source, found, now_ms, is_wheel_old=has_snapshots)

    def _recover(
        self,
        source: RecordSource,
        found: FoundCheckpoint | None,
        now_ms: int,
        *,
        is_wheel_old: bool,
    ) -> None:
        timer_log, wheel = self._open_files()
        low, end = source.min_offset(TIMER_TOPIC, 0), source.max_offset(TIMER_TOPIC, 0)
        shape, precision = self.shape, 0 if found is None else found.precision_ms
        is_damaged = found is not None and self._is_damaged(timer_log, wheel, found)
        if found is None or precision not in (0, shape.precision_ms):
            # Either what was delivered is not known, or the slots mean other times.
            log.warning("timer messages are enqueued again timerPrecisionMs=%d", shape.precision_ms)
            timer_log.cut(timer_log.start)
        elif is_damaged:
            log.error(
                "timer files are not as the last stop left them, timers are enqueued anew root=%s",
                self._root,
            )
            timer_log.cut(timer_log.start)
        if found is None or wheel.was_missing or is_wheel_old or is_damaged:
            wheel.clear_all()
            start = timer_log.start
        else:
            start = self._scan_start(timer_log, found)
        if found is not None:
            self.read_ms = shape.floor(found.checkpoint.read_ms)
            self._counter = found.checkpoint.counter
            self._progress = found.progress
        last = self._link_from(timer_log, start, source.max_position)
        is_short = is_damaged or (
            found is not None and timer_log.end < found.checkpoint.log_position
        )
        self._repair(timer_log, wheel)
        self._count(wheel)
        offset = low if is_short or found is None else found.checkpoint.queue_offset
        if last is not None:
            offset = max(offset, _offset_behind(source, last))
        if is_short:
            self._rebuilt_until = end
        else:
            self._skip_empty_slots(wheel, shape.floor(now_ms))
        self.queue_offset = min(max(offset, low), end)
        log.info(
            "timers loaded waiting=%d log=%d next=%d queue_offset=%d",
            self.pending, timer_log.end, self.read_ms, self.queue_offset,
        )  # fmt: skip

    def _is_damaged(self, timer_log: TimerLog, wheel: WheelFile, found: FoundCheckpoint) -> bool:
        """Whether the files are not as our clean stop left them."""
        if found.checksum is None or wheel.was_missing:
            return False
        timer_log.end = found.checkpoint.log_position
        checksum = wheel.checksum(timer_log.checksum())
        timer_log.end = timer_log.start
        return checksum != found.checksum

    def _link_from(self, timer_log: TimerLog, start: int, stored_until: int) -> Unit | None:
        """Link the units from ``start`` on, and cut the log behind the last; return that one."""
        last: Unit | None = None
        position = start
        for at, unit in timer_log.scan(start):
            if unit.log_position >= stored_until:
                break  # Its record was lost in a crash of the machine, and so were all behind it.
            position, last = at + UNIT_BYTES, unit
            if unit.slot_ms >= self.read_ms:
                self._link(at, unit)
        timer_log.cut(position)
        return last

    def _scan_start(self, timer_log: TimerLog, found: FoundCheckpoint) -> int:
        """From where on units may not be linked."""
        position = found.checkpoint.log_position
        size = timer_log.segment_bytes
        if not found.is_ours:
            # RocketMQ saves the position, but not always the wheel, when it stops.
            position = max(0, position - size)
            position -= position % size
        start = timer_log.start
        if not timer_log.bases or position > timer_log.bases[-1] + size:
            return start
        return max(position, start)

    def _repair(self, timer_log: TimerLog, wheel: WheelFile) -> None:
        """Mend slots that link what the log does not have."""
        broken: dict[int, int] = {}
        stale: list[int] = []
        for slot in wheel.all_slots():
            if slot.slot_ms < self.read_ms:
                stale.append(slot.slot_ms)
            elif not timer_log.start <= slot.last < timer_log.end:
                broken[slot.slot_ms] = slot.first
        for slot_ms in (*stale, *broken):
            wheel.clear(slot_ms)
        if broken:
            log.warning("slots of the timer wheel mended count=%d", len(broken))
            start = max(timer_log.start, min(broken.values()))
            if start % timer_log.segment_bytes % UNIT_BYTES:
                start = timer_log.start  # Not the position of a unit.
            for at, unit in timer_log.scan(start):
                if unit.slot_ms in broken:
                    self._link(at, unit)
        wheel.write()

    def _count(self, wheel: WheelFile) -> None:
        self.pending = self.slots = 0
        for slot in wheel.all_slots():
            self.slots += 1
            self.pending += max(slot.units, 0)

    def _skip_empty_slots(self, wheel: WheelFile, wheel_ms: int) -> None:
        """Move the next slot to take forward: the time before may be longer than the wheel."""
        oldest = min((slot.slot_ms for slot in wheel.all_slots()), default=wheel_ms)
        self.read_ms = max(self.read_ms, min(oldest, wheel_ms))

    def _open_files(self) -> tuple[TimerLog, WheelFile]:
        if self._log is None or self._wheel is None:
            shape = self.shape
            self._log = TimerLog(
                self._files, f"{self._root}/{layout.TIMER_LOG}", shape.log_segment_bytes
            )
            self._wheel = WheelFile(
                self._files,
                f"{self._root}/{layout.TIMER_WHEEL}",
                shape.precision_ms,
                slots=shape.slots,
            )
        return self._log, self._wheel

    # Enqueueing

    def enqueue(self, slices: Sequence[memoryview], now_ms: int) -> Enqueued:
        """Put parked records into the wheel; on ``OSError`` none of them."""
        timer_log, wheel = self._open_files()
        wheel.write()  # What a full disk left over.
        read_ms, slots, pending = self.read_ms, self.slots, self.pending
        by_topic: Counter[str] = Counter()
        changed: dict[int, Slot] = {}
        wheel_ms, count = self.shape.floor(now_ms), 0
        columns = parked_columns(slices)
        try:
            if columns is not None and self._enqueue_columns(columns, wheel_ms, changed):
                count = by_topic[columns.topic] = len(columns.slots_ms)
            else:
                for view in record_views(slices):
                    if not self._enqueue_one(view, wheel_ms, changed, by_topic):
                        break
                    count += 1
            timer_log.write()
        except OSError:
            self.read_ms, self.slots, self.pending = read_ms, slots, pending
            raise
        self.queue_offset += count
        for slot in changed.values():
            wheel.put(slot)
        try:
            wheel.write()
        except OSError as error:
            # The units are in the log. The slots stay in memory, and `snapshot` tries again.
            log.error("timer wheel cannot be written error=%s", error)
        return Enqueued(count, by_topic)

    def _enqueue_one(
        self,
        view: memoryview,
        wheel_ms: int,
        changed: dict[int, Slot],
        by_topic: Counter[str],
    ) -> bool:
        """Stage one record; False: the wheel has no room for it before more is delivered.

        Slots go into ``changed``: many records in a row are for the same one.
        """
        try:
            parked = read_parked(view)
        except ProtocolError as error:
            log.error("record of the timer topic skipped error=%s", error)
            return True
        slot_ms = parked.slot_ms
        is_rebuilding = parked.queue_offset < self._rebuilt_until
        if is_rebuilding and self._was_handled(parked):
            return True
        if not self.slots and not is_rebuilding:
            self.read_ms = wheel_ms
        target = self.shape.roll_slot(slot_ms, wheel_ms)
        magic = DEFAULT if target == slot_ms else DEFAULT | ROLL
        if target < self.read_ms:
            # It comes too late, or the clock was set back: what was delivered is not there again.
            target = max(target, wheel_ms)
            self.read_ms = min(self.read_ms, target)
        assert self._log is not None
        assert self._wheel is not None
        if target - self.read_ms >= self._wheel.span_ms:
            return False
        if parked.delete_key:
            magic |= DELETE
        position = self._log.next_position()
        before = changed.get(target) or self._wheel.get(target)
        unit = encode_unit(
            NO_UNIT if before is None else before.last,
            magic,
            min(wheel_ms, target),
            target,
            parked.log_position,
            parked.size,
            _hash_of(parked.topic),
        )
        self._log.stage(unit)
        changed[target] = self._extended(
            before, target, position, is_delete=bool(parked.delete_key)
        )
        by_topic[parked.topic] += -1 if parked.delete_key else 1
        return True

    def _enqueue_columns(
        self, columns: ParkedColumns, wheel_ms: int, changed: dict[int, Slot]
    ) -> bool:
        """`_enqueue_one` for many records; False, and no change, if one of them is unusual."""
        topic, record_size, slots_ms, queue_offsets, log_positions = columns
        assert self._log is not None
        assert self._wheel is not None
        targets, count = set(slots_ms), len(slots_ms)
        read_ms = self.read_ms if self.slots else wheel_ms
        if (
            min(queue_offsets) < self._rebuilt_until
            or min(targets) < read_ms
            or max(targets) - read_ms >= self._wheel.span_ms
            or max(targets) - wheel_ms >= self.shape.roll_window_ms
            or self._log.room() < count
        ):
            return False
        self.read_ms = read_ms
        position = self._log.next_position()
        positions = range(position, position + count * UNIT_BYTES, UNIT_BYTES)
        slots = {slot_ms: self._wheel.get(slot_ms) for slot_ms in targets}
        newest = {ms: NO_UNIT if slot is None else slot.last for ms, slot in slots.items()}
        previous: list[int] = []
        for slot_ms, at in zip(slots_ms, positions, strict=True):
            previous.append(newest[slot_ms])
            newest[slot_ms] = at
        written = {slot_ms: min(wheel_ms, slot_ms) for slot_ms in targets}
        units = encode_units(
            previous,
            DEFAULT,
            [written[slot_ms] for slot_ms in slots_ms],
            slots_ms,
            log_positions,
            record_size,
            _hash_of(topic),
        )
        self._log.stage_many(units)
        for slot_ms, before in slots.items():
            first = positions[slots_ms.index(slot_ms)] if before is None else before.first
            units_before = 0 if before is None else before.units
            number = slots_ms.count(slot_ms)
            changed[slot_ms] = Slot(slot_ms, first, newest[slot_ms], units_before + number)
            self.slots += before is None
        self.pending += count
        return True

    def _was_handled(self, parked: Parked) -> bool:
        """Whether a message was delivered, or parked again, before the files were lost."""
        stored_ms = self.shape.floor(parked.store_timestamp)
        first = self.shape.roll_slot(parked.slot_ms, stored_ms)
        return first < self.read_ms

    def _link(self, position: int, unit: Unit) -> None:
        """Link a unit of the log, unless it is linked already."""
        assert self._wheel is not None
        before = self._wheel.get(unit.slot_ms)
        if before is not None and before.first <= position <= before.last:
            return
        self._wheel.put(self._extended(before, unit.slot_ms, position, is_delete=unit.is_delete))

    def _extended(
        self, before: Slot | None, slot_ms: int, position: int, *, is_delete: bool
    ) -> Slot:
        """A slot with one unit more; counts it."""
        change = -1 if is_delete else 1
        if before is None:
            self.slots += 1
            slot = Slot(slot_ms, position, position, max(change, 0))
        else:
            slot = Slot(slot_ms, before.first, position, max(before.units + change, 0))
        self.pending += slot.units - (0 if before is None else before.units)
        return slot

    def units_in(self, slot_ms: int) -> int:
        """How many messages a slot has."""
        slot = None if self._wheel is None else self._wheel.get(slot_ms)
        return 0 if slot is None else slot.units

    # Taking

    def take(self, now_ms: int) -> TakenSlot | None:
        """The oldest slot that is due; None if there is none."""
        due_until = self.shape.floor(now_ms)
        if self._wheel is None or self._log is None:
            return None
        wheel = self._wheel
        slot = wheel.next_slot(self.read_ms, min(due_until, self.read_ms + wheel.span_ms))
        if slot is None:
            self.read_ms = max(self.read_ms, due_until)
            return None
        self.read_ms = slot.slot_ms
        done = self._delivered.get(slot.slot_ms)
        stop = NO_UNIT if done is None else done.last
        messages, marks = array("q"), array("q")
        position = slot.last
        singly = 0
        while position > stop:
            if singly:
                singly -= 1
            elif run := self._log.run_before(position, stop, slot.slot_ms):
                # All of them but the lowest, whose link may lead anywhere.
                following = position - (run - 1) * UNIT_BYTES
                messages.extend(range(position, following, -UNIT_BYTES))
                position = following
                singly = 1 if run > 1 else _UNITS_SINGLY
                continue
            else:
                singly = _UNITS_SINGLY
            unit = self._log.unit(position)
            if unit is None or unit.slot_ms != slot.slot_ms:
                log.error("timer slot %d is cut off, no unit at %d", slot.slot_ms, position)
                break
            (marks if unit.is_delete else messages).append(position)
            if unit.previous >= position:
                log.error("timer slot %d links itself at %d", slot.slot_ms, position)
                break
            position = unit.previous
        messages.reverse()
        marks.reverse()
        if self._progress.slot_ms == slot.slot_ms:
            at = bisect_right(messages, self._progress.position)
            messages = messages[at:]
        return TakenSlot(slot.slot_ms, slot.last, slot.units, messages, marks)

    def units_at(self, positions: Sequence[int]) -> list[tuple[int, Unit]]:
        """The units at positions that `take` returned."""
        assert self._log is not None
        return self._log.units(positions)

    def run_at(self, positions: Sequence[int]) -> UnitRun | None:
        """The same as columns, if units and records lie side by side."""
        assert self._log is not None
        return self._log.run(positions)

    def note_progress(self, taken: TakenSlot, position: int) -> None:
        """Note that the messages of a slot were delivered up to the unit at ``position``."""
        self._progress = SlotProgress(taken.slot_ms, position)

    def finish(self, taken: TakenSlot) -> None:
        """Note that a slot was delivered as it was taken."""
        assert self._wheel is not None
        slot = self._wheel.get(taken.slot_ms)
        before = self._delivered.get(taken.slot_ms)
        done = taken.units - (0 if before is None else before.units)
        self._delivered[taken.slot_ms] = Delivered(taken.last, taken.units)
        self.pending = max(0, self.pending - done)
        # What was put into the slot meanwhile, a message sent in the last moment before it or one
        # whose clock was set back, is taken next: behind `read_ms` it would be forgotten.
        if slot is None or slot.last == taken.last:
            self.read_ms = max(self.read_ms, taken.slot_ms + self.shape.precision_ms)

    # Saving

    def snapshot(self, now_ms: int, *, is_last: bool = False) -> Snapshot | None:
        """What to save next; None while slots could not be written, or without any file.

        ``is_last``: nothing is written to the files any more.
        """
        if self._wheel is None or self._log is None:
            return None
        try:
            self._wheel.write()
        except OSError as error:
            log.error("timer wheel cannot be written error=%s", error)
            return None
        self._counter += 1
        checkpoint = TimerCheckpoint(
            self.read_ms, self._log.end, self.queue_offset, now_ms, self._counter
        )
        checksum = self._wheel.checksum(self._log.checksum()) if is_last else None
        return Snapshot(checkpoint, self._progress, dict(self._delivered), checksum)

    def sync(self, snapshot: Snapshot) -> None:
        """Put a snapshot on the disk; may run in another thread."""
        assert self._wheel is not None
        assert self._log is not None
        self._log.sync()
        self._wheel.sync()
        if self._page is None:
            self._page = CheckpointPage(self._files, self._root, self.shape.precision_ms)
        self._page.save(snapshot.checkpoint, snapshot.progress, snapshot.checksum)

    def retire(self, snapshot: Snapshot, min_position: int) -> None:
        """Make delivered slots empty, and delete segments whose records are gone."""
        assert self._wheel is not None
        assert self._log is not None
        for slot_ms, delivered in snapshot.delivered.items():
            slot = self._wheel.get(slot_ms)
            if self._delivered.get(slot_ms) == delivered and (
                slot is None or slot.last == delivered.last
            ):
                del self._delivered[slot_ms]
                if slot is not None:
                    self._wheel.clear(slot_ms)
                    self.slots -= 1
        while len(self._log.bases) > 1:
            last = self._log.last_unit_of(self._log.bases[0])
            if last is None or last.log_position >= min_position:
                break
            self._log.remove_first()

    def close(self) -> None:
        """Give all files back."""
        for part in (self._log, self._wheel, self._page):
            if part is not None:
                part.close()


def _offset_behind(source: RecordSource, unit: Unit) -> int:
    """The queue offset behind the parked message of a unit; 0 if its record cannot be read."""
    view = source.record_at(unit.log_position)
    try:
        record = None if view is None else decode_record(view)
    except ProtocolError:
        record = None
    return 0 if record is None or record.topic != TIMER_TOPIC else record.queue_offset + 1
