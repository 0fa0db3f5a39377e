"""Timer messages against their files: each slot of the wheel linked through the timer log.

    slot ─▶ newest unit ─▶ the unit before ─▶ ... ─▶ oldest unit; each names a record of the log

Slots before the saved time were delivered and count for nothing. What a running or crashed broker
has not saved is unfinished, not damaged: opening links it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import ProtocolError, StoreDamaged
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.records.codec import decode_record
from penstock.store import layout
from penstock.store.files import FileLayer
from penstock.store.segments import segment_path
from penstock.store.timers.checkpoint_page import (
    FoundCheckpoint,
    TimerCheckpoint,
    load_checkpoint,
)
from penstock.store.timers.timer_log import NO_UNIT, UNIT_BYTES, TimerLog, Unit
from penstock.store.timers.wheel_file import SLOT_BYTES, SLOTS, Slot, WheelFile
from penstock.store.tools.log_walk import Damage

PRECISIONS: Final = (1000, 500, 200, 100)
_MIB: Final = 1 << 20

RecordAt = Callable[[int], memoryview | None]


@dataclass(slots=True)
class TimerFindings:
    """What waits, and what is wrong."""

    waiting: int = 0
    """Messages in slots that are not delivered yet, as of the last save."""
    first_due_ms: int = -1
    last_due_ms: int = -1
    log_sizes: list[int] = field(default_factory=list)
    wheel_size: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_timers(
    files: FileLayer,
    root: str,
    *,
    is_clean: bool,
    log_start: int = 0,
    record_at: RecordAt | None = None,
) -> TimerFindings:
    """Look at the timer files of a store; with ``record_at`` also at the records that they name.

    Records before ``log_start`` were deleted by retention.
    """
    check = _TimerCheck(files, root, is_clean, log_start, record_at)
    try:
        check.run()
    finally:
        check.close()
    return check.found


class _TimerCheck:
    def __init__(
        self,
        files: FileLayer,
        root: str,
        is_clean: bool,
        log_start: int,
        record_at: RecordAt | None,
    ) -> None:
        self._files = files
        self._wheel_path = f"{root}/{layout.TIMER_WHEEL}"
        self._log_path = f"{root}/{layout.TIMER_LOG}"
        self._is_clean = is_clean
        self._log_start = log_start
        self._record_at = record_at
        saved = load_checkpoint(files, root)
        self._saved = FoundCheckpoint(TimerCheckpoint()) if saved is None else saved
        self._has_snapshots = any(
            entry.name.startswith(f"{layout.TIMER_WHEEL}.") for entry in files.list_dir(root)
        )
        self._log: TimerLog | None = None
        self._wheel: WheelFile | None = None
        self._precision = self._saved.precision_ms or PRECISIONS[0]
        self._gone = 0
        self.found = TimerFindings()

    def close(self) -> None:
        """Give the files back."""
        for part in (self._log, self._wheel):
            if part is not None:
                part.close()

    def run(self) -> None:
        """Open what is there, and compare it."""
        sizes = {
            entry.name: entry.size
            for entry in self._files.list_dir(self._log_path)
            if not entry.is_dir
        }
        self.found.log_sizes = list(sizes.values())
        unlinked = self._scan_log() if sizes else 0
        entry = self._files.stat(self._wheel_path)
        self.found.wheel_size = 0 if entry is None else entry.size
        if entry is None or not entry.size:
            if unlinked:
                self.found.notes.append("the timer wheel is missing; opening the store rebuilds it")
            return
        if entry.size != SLOTS * SLOT_BYTES:
            what = f"{entry.size} bytes, a timer wheel has {SLOTS * SLOT_BYTES}"
            self.found.damages.append(Damage(self._wheel_path, 0, what))
            return
        if self._has_snapshots:
            # Then the plain file is an old state, and the log tells what waits.
            self.found.waiting = unlinked
            return
        linked = self._check_slots()
        if unlinked > linked and not self.found.damages:
            self.found.notes.append(
                f"{unlinked - linked} of {unlinked} timer messages are in no slot: delivered "
                "before the clock was set back, or not linked yet"
            )
        if self._gone:
            self.found.notes.append(
                f"the records of {self._gone} waiting timer messages were deleted by retention"
            )

    def _scan_log(self) -> int:
        """Read the whole timer log; return how many units belong to slots not delivered yet."""
        try:
            timer_log = TimerLog(self._files, self._log_path, 100 * _MIB, read_only=True)
        except StoreDamaged as error:
            self.found.damages.append(Damage(self._log_path, 0, error.what))
            return 0
        self._log = timer_log
        end, waiting = timer_log.start, 0
        for position, unit in timer_log.scan(timer_log.start):
            end = position + UNIT_BYTES
            waiting += self._is_waiting(position, unit)
        timer_log.end = end
        saved = self._saved.checkpoint.log_position
        if end < saved:
            self._blame(end, f"no unit, but the timer log was on the disk up to {saved}")
        elif timer_log.bytes_at(end).strip(b"\0"):
            self._blame(end, "neither a unit nor empty", is_unfinished=not self._is_clean)
        return waiting

    def _is_waiting(self, position: int, unit: Unit) -> bool:
        progress = self._saved.progress
        if unit.slot_ms == progress.slot_ms and position <= progress.position:
            return False
        return unit.slot_ms >= self._saved.checkpoint.read_ms

    def _blame(self, position: int, what: str, *, is_unfinished: bool = False) -> None:
        """Report a place in the timer log."""
        assert self._log is not None
        at = position % self._log.segment_bytes
        if is_unfinished:
            self.found.notes.append(f"the timer log ends in a torn write at {position}")
            return
        self.found.damages.append(Damage(segment_path(self._log_path, position - at), at, what))

    def _check_slots(self) -> int:
        """Walk all slots that wait; return how many units they link."""
        wheel = self._wheel = WheelFile(
            self._files, self._wheel_path, self._precision, read_only=True
        )
        if not self._saved.is_ours:
            self._guess_precision(wheel)
        linked = 0
        for slot in wheel.all_slots():
            at = slot.slot_ms // self._precision % SLOTS * SLOT_BYTES
            if slot.slot_ms >= self._saved.checkpoint.read_ms:
                linked += self._walk(slot, at)
        return linked

    def _guess_precision(self, wheel: WheelFile) -> None:
        """Only our own broker saves it; the slots of another tell it by what they link."""
        for slot in wheel.all_slots():
            unit = None if self._log is None else self._log.unit(slot.last)
            if unit is None:
                continue
            tick = slot.slot_ms // self._precision
            for precision in PRECISIONS:
                if tick * precision == unit.slot_ms:
                    self._precision = wheel.precision_ms = precision
                    return

    def _walk(self, slot: Slot, at: int) -> int:
        position, linked = slot.last, 0
        while position > NO_UNIT:
            unit = None if self._log is None else self._log.unit(position)
            if unit is None or unit.slot_ms != slot.slot_ms:
                self._blame_link(slot, at, position)
                break
            if self._is_waiting(position, unit):
                linked += 1
                self._count(slot, unit)
                self._check_record(position, unit)
            if unit.previous >= position:
                self._blame(position, f"links {unit.previous}, which is not before it")
                break
            position = unit.previous
        return linked

    def _blame_link(self, slot: Slot, at: int, position: int) -> None:
        saved = self._saved.checkpoint.log_position
        if not self._is_clean and position >= saved:
            return  # Written after the last save; opening links it again.
        what = f"slot {slot.slot_ms} links {position}, where the timer log has no unit of it"
        if position == slot.last:
            self.found.damages.append(Damage(self._wheel_path, at, what))
        elif self._log is not None:
            self._blame(position, what)

    def _count(self, slot: Slot, unit: Unit) -> None:
        found, due = self.found, slot.slot_ms + self._precision
        if not unit.is_delete:
            found.waiting += 1
            found.first_due_ms = due if found.first_due_ms < 0 else min(found.first_due_ms, due)
            found.last_due_ms = max(found.last_due_ms, due)

    def _check_record(self, position: int, unit: Unit) -> None:
        if self._record_at is None:
            return
        if unit.log_position < self._log_start:
            self._gone += 1
            return
        view = self._record_at(unit.log_position)
        try:
            topic = "no topic: there is none" if view is None else decode_record(view).topic
        except ProtocolError as error:
            topic = f"no topic ({error.what})"
        if topic != TIMER_TOPIC:
            self._blame(position, f"names log position {unit.log_position}, a record of {topic}")
