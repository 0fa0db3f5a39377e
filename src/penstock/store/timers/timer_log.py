"""The timer log: one unit for each parked message that was put into the wheel.

    size:4 (52) | previous:8 | magic:4 | written_ms:8 | delay_ms:4 | log_position:8
    | record_size:4 | topic_hash:4 | reserved:8                                   (big-endian)

``previous`` is the position of the slot's unit before this one, -1 for the first: a slot is a chain
that is walked from its newest unit back. A unit is written only where 16 bytes are left behind it;
else a blank fills the segment:

    size:4 | 0:8 | 0xCBD43194:4

Used by one thread, except `sync`.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add, sub
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.files import FileLayer
from penstock.store.segments import find_segments, segment_path, write_fully

UNIT_BYTES: Final = 52
BLANK_BYTES: Final = 16
NO_UNIT: Final = -1
DEFAULT: Final = 1
ROLL: Final = 2
DELETE: Final = 4
_MAX_MAGIC: Final = 15
_BLANK_MAGIC: Final = 0xCBD43194
_UNIT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqI")
_MAX_MAPS: Final = 8
_SCAN_UNITS: Final = 4096
_MOST_IN_RUN: Final = 512


class Unit(NamedTuple):
    """One unit, as it is stored."""

    size: int
    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    log_position: int
    record_size: int
    topic_hash: int
    reserved: int

    @property
    def slot_ms(self) -> int:
        """The time of the slot that the unit belongs to."""
        return self.written_ms + self.delay_ms

    @property
    def is_delete(self) -> bool:
        """Whether its record is a delete mark."""
        return bool(self.magic & DELETE)

    @property
    def is_sound(self) -> bool:
        """Whether the bytes can be a unit at all."""
        return (
            self.size == UNIT_BYTES
            and 0 <= self.magic <= _MAX_MAGIC
            and self.written_ms > 0
            and self.log_position >= 0
            and self.record_size > 0
        )


class UnitRun(NamedTuple):
    """Units side by side whose records are of one size and lie side by side, too."""

    positions: Sequence[int]
    written_ms: Sequence[int]
    log_positions: range
    record_size: int


def _are_sound(rows: Sequence[tuple[int, ...]]) -> bool:
    """Whether all these can be units."""
    sizes, _, magics, written, _, positions, record_sizes, *_ = zip(*rows, strict=True)
    return (
        sizes.count(UNIT_BYTES) == len(rows)
        and min(magics) >= 0
        and max(magics) <= _MAX_MAGIC
        and min(written) > 0
        and min(positions) >= 0
        and min(record_sizes) > 0
    )


def encode_unit(
    previous: int,
    magic: int,
    written_ms: int,
    slot_ms: int,
    log_position: int,
    record_size: int,
    topic_hash: int,
) -> bytes:
    """The bytes of a unit."""
    return _UNIT.pack(
        UNIT_BYTES,
        previous,
        magic,
        written_ms,
        slot_ms - written_ms,
        log_position,
        record_size,
        topic_hash,
        0,
    )


def encode_units(
    previous: Sequence[int],
    magic: int,
    written_ms: Sequence[int],
    slots_ms: Sequence[int],
    log_positions: Sequence[int],
    record_size: int,
    topic_hash: int,
) -> bytes:
    """`encode_unit` for many records of one size and topic."""
    delays = map(sub, slots_ms, written_ms)
    rows = zip(repeat(UNIT_BYTES), previous, repeat(magic), written_ms, delays, log_positions)
    pack, behind = _UNIT.pack, (record_size, topic_hash, 0)
    return b"".join([pack(*row, *behind) for row in rows])


class TimerLog:
    """The segments of the timer log; `end` is where the next unit is written."""

    def __init__(
        self, files: FileLayer, directory: str, segment_bytes: int, *, read_only: bool = False
    ) -> None:
        self._files = files
        self._directory = directory
        found = find_segments(files, directory, size=None, default=segment_bytes, after_crash=True)
        if found.size < UNIT_BYTES + BLANK_BYTES:
            raise StoreDamaged(
                f"segments of {found.size} bytes in {directory}",
                expected=f"at least {UNIT_BYTES + BLANK_BYTES}",
            )
        for path in [] if read_only else found.stray:
            files.remove(path)
        self.segment_bytes = found.size
        self.bases = found.bases
        self.end = self.start
        self._staged: list[bytes] = []
        self._staged_from = self.end
        self._is_directory_dirty = False
        self._descriptors: dict[int, int] = {}
        self._unsynced: dict[int, int] = {}
        self._maps: dict[int, memoryview] = {}

    @property
    def start(self) -> int:
        """Where the oldest segment begins."""
        return self.bases[0] if self.bases else 0

    # Writing

    def next_position(self) -> int:
        """Where the next unit goes; a segment that is full is closed with a blank."""
        left = self.segment_bytes - self.end % self.segment_bytes
        if left < UNIT_BYTES + BLANK_BYTES:
            self._staged.append(_BLANK.pack(left, 0, _BLANK_MAGIC) + bytes(left - BLANK_BYTES))
            self.end += left
        return self.end

    def stage(self, unit: bytes) -> None:
        """Add a unit at `next_position`; `write` puts it into the page cache."""
        self._staged.append(unit)
        self.end += UNIT_BYTES

    def room(self) -> int:
        """How many units fit into the segment of `next_position`."""
        left = self.segment_bytes - self.next_position() % self.segment_bytes
        return (left - BLANK_BYTES) // UNIT_BYTES

    def stage_many(self, units: bytes) -> None:
        """Add units at `next_position`; the segment has `room` for them."""
        self._staged.append(units)
        self.end += len(units)

    def write(self) -> None:
        """Write what is staged; on ``OSError`` nothing of it counts."""
        content = memoryview(b"".join(self._staged))
        at, position = 0, self._staged_from
        try:
            while at < len(content):
                base = position - position % self.segment_bytes
                size = min(len(content) - at, base + self.segment_bytes - position)
                descriptor = self._descriptor(base)
                part = content[at : at + size]
                write_fully(self._files, descriptor, (part,), position - base, size)
                at += size
                position += size
        except OSError:
            self.end = self._staged_from
            self._staged = []
            raise
        self._staged = []
        self._staged_from = self.end

    def _descriptor(self, base: int) -> int:
        descriptor = self._descriptors.get(base)
        if descriptor is None:
            path = segment_path(self._directory, base)
            if base in self.bases:
                descriptor = self._files.open(path, write=True)
            else:
                self._files.make_dir(self._directory)
                # One that a failed write left behind is empty.
                self._files.remove(path)
                descriptor = self._files.create(path, self.segment_bytes)
                self.bases = [*self.bases, base]
                self._is_directory_dirty = True
            for other in [other for other in self._descriptors if other < base]:
                # Kept for the next `sync`, which closes it.
                self._unsynced[other] = self._descriptors.pop(other)
            self._descriptors[base] = descriptor
        return descriptor

    def sync(self) -> None:
        """Return when all that was written before is on the disk; may run in another thread."""
        if self._is_directory_dirty:
            self._is_directory_dirty = False
            self._files.sync_dir(self._directory)
            self._files.sync_dir(self._directory.rpartition("/")[0])
        for base, descriptor in list(self._unsynced.items()):
            self._files.sync(descriptor)
            del self._unsynced[base]
            self._files.close(descriptor)
        for descriptor in list(self._descriptors.values()):
            self._files.sync(descriptor)

    # Reading

    def unit(self, position: int) -> Unit | None:
        """The unit at a position; None where there cannot be one."""
        base = position - position % self.segment_bytes
        at = position - base
        if not self.start <= position < self.end or at + UNIT_BYTES > self.segment_bytes:
            return None
        view = self._view(base)
        if view is None:
            return None
        unit = Unit(*_UNIT.unpack_from(view, at))
        return unit if unit.is_sound else None

    def units(self, positions: Sequence[int]) -> list[tuple[int, Unit]]:
        """The units at ascending positions, each with its own; those that are none are left out."""
        rows = self._rows(positions)
        if rows is not None:
            found = list(zip(positions, map(Unit._make, rows), strict=True))
            return found if _are_sound(rows) else [one for one in found if one[1].is_sound]
        units = ((position, self.unit(position)) for position in positions)
        return [(position, unit) for position, unit in units if unit is not None]

    def run(self, positions: Sequence[int]) -> UnitRun | None:
        """`units` where units and records lie side by side; None where they do not."""
        rows = self._rows(positions)
        if rows is None or not _are_sound(rows):
            return None
        _, _, _, written, _, log_positions, sizes, *_ = zip(*rows, strict=True)
        first, size, count = log_positions[0], sizes[0], len(rows)
        side_by_side = range(first, first + count * size, size)
        if sizes.count(size) != count or log_positions != tuple(side_by_side):
            return None
        return UnitRun(positions, written, side_by_side, size)

    def _rows(self, positions: Sequence[int]) -> list[tuple[int, ...]] | None:
        """The units at ascending positions if they lie side by side, sound or not."""
        if not positions:
            return None
        first, last = positions[0], positions[-1]
        base = first - first % self.segment_bytes
        size = last - first + UNIT_BYTES
        view = self._view(base) if self.start <= first and last < self.end else None
        if view is None or not size == UNIT_BYTES * len(positions) <= base + len(view) - first:
            return None
        at = first - base
        return list(_UNIT.iter_unpack(view[at : at + size]))

    def run_before(self, position: int, stop: int, slot_ms: int) -> int:
        """How many units up to the one at ``position`` are a usual part of the chain of a slot.

        That is: all of them behind ``stop``, messages of the slot, each linking the one that lies
        before it. 0: walk the chain unit by unit.
        """
        base = position - position % self.segment_bytes
        at = position - base
        view = self._view(base) if self.start <= position < self.end else None
        if view is None or at + UNIT_BYTES > self.segment_bytes:
            return 0
        first = max(base, stop + 1)
        count = min((position - first) // UNIT_BYTES + 1, _MOST_IN_RUN)
        start = at - (count - 1) * UNIT_BYTES
        rows = list(_UNIT.iter_unpack(view[start : at + UNIT_BYTES]))
        _, previous, magics, written, delays, *_ = zip(*rows, strict=True)
        is_usual = (
            previous[1:] == tuple(range(base + start, position, UNIT_BYTES))
            and magics.count(magics[0]) == count
            and not magics[0] & DELETE
            and list(map(add, written, delays)).count(slot_ms) == count
            and _are_sound(rows)
        )
        return count if is_usual else 0

    def bytes_at(self, position: int) -> bytes:
        """The bytes where a unit would be; empty where no segment is."""
        base = position - position % self.segment_bytes
        view = self._view(base)
        return b"" if view is None else bytes(view[position - base :][:UNIT_BYTES])

    def checksum(self) -> int:
        """Of all units, written ones only."""
        crc = 0
        for base in self.bases:
            view = self._view(base)
            if view is not None:
                crc = zlib.crc32(view[: max(0, self.end - base)], crc)
        return crc

    def _view(self, base: int) -> memoryview | None:
        view = self._maps.get(base)
        if view is None:
            if base not in self.bases:
                return None
            descriptor = self._files.open(segment_path(self._directory, base))
            try:
                view = self._files.map(descriptor, self.segment_bytes)
            finally:
                self._files.close(descriptor)
            if len(self._maps) >= _MAX_MAPS:
                del self._maps[next(iter(self._maps))]
            self._maps[base] = view
        return view

    def scan(self, start: int) -> Iterator[tuple[int, Unit]]:
        """The sound units from ``start`` on, up to the first place that has none.

        Goes beyond `end`: opening finds the end by it.
        """
        position = start
        while True:
            base = position - position % self.segment_bytes
            view = self._view(base)
            if view is None:
                return
            at = position - base
            count = min((self.segment_bytes - at) // UNIT_BYTES, _SCAN_UNITS)
            for _ in range(count):
                unit = Unit(*_UNIT.unpack_from(view, at))
                if not unit.is_sound:
                    break
                yield base + at, unit
                at += UNIT_BYTES
            position = base + at
            left = self.segment_bytes - at
            if left >= UNIT_BYTES + BLANK_BYTES:
                unit = Unit(*_UNIT.unpack_from(view, at))
                if unit.is_sound:
                    continue
                return
            if left >= BLANK_BYTES and _BLANK.unpack_from(view, at)[2] != _BLANK_MAGIC:
                return
            position = base + self.segment_bytes

    # Cutting

    def cut(self, position: int) -> None:
        """Continue at ``position``: what is behind it is no unit, or of no use."""
        base = position - position % self.segment_bytes
        for later in [one for one in self.bases if one > base or (one == position)]:
            self._maps.pop(later, None)
            self._files.remove(segment_path(self._directory, later))
            self._is_directory_dirty = True
        self.bases = [one for one in self.bases if one <= base and one != position]
        if base in self.bases:
            descriptor = self._files.open(segment_path(self._directory, base), write=True)
            try:
                self._files.clear(descriptor, position - base, self.segment_bytes)
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        # Without a segment there is nothing to continue.
        self.end = self._staged_from = position if self.bases else 0

    def remove_first(self) -> None:
        """Delete the oldest segment, which is not the one that is written."""
        base = self.bases[0]
        self.bases = self.bases[1:]
        self._maps.pop(base, None)
        with contextlib.suppress(KeyError):
            self._files.close(self._unsynced.pop(base))
        self._files.remove(segment_path(self._directory, base))

    def last_unit_of(self, base: int) -> Unit | None:
        """The last unit of a full segment."""
        position = base + (self.segment_bytes - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES
        return self.unit(position - UNIT_BYTES)

    def close(self) -> None:
        """Give all files back."""
        for descriptor in (*self._descriptors.values(), *self._unsynced.values()):
            self._files.close(descriptor)
        self._descriptors.clear()
        self._unsynced.clear()
        self._maps.clear()
