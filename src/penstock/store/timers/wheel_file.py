"""The wheel: one slot for each tick of the precision, in a file of fixed size.

    time:8 (slot time / precision) | first:8 | last:8 | count:4 | magic:4 (0)      (big-endian)

``first`` and ``last`` are positions of the oldest and the newest unit in the timer log. A slot is
valid only if its time is the one asked for: the wheel is used again and again, and a slot of an
earlier lap is empty. It is read through a map and written with ``write``: a store to a hole of a
mapped file kills the process if the disk is full.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.files import FileLayer
from penstock.store.segments import write_fully

SLOTS: Final = 2 * 7 * 86_400
SLOT_BYTES: Final = 32
_SLOT: Final = struct.Struct(">qqqii")
_EMPTY: Final = bytes(SLOT_BYTES)
_PAGE_SLOTS: Final = 128
_EMPTY_PAGE: Final = bytes(_PAGE_SLOTS * SLOT_BYTES)


class Slot(NamedTuple):
    """A slot that has units."""

    slot_ms: int
    first: int
    last: int
    units: int
    """Units less delete marks."""


class WheelFile:
    """The slots of the wheel; used by one thread, except `sync`."""

    def __init__(
        self,
        files: FileLayer,
        path: str,
        precision_ms: int,
        *,
        slots: int = SLOTS,
        read_only: bool = False,
    ) -> None:
        self._files = files
        self._path = path
        self.precision_ms = precision_ms
        self._slots = slots
        self.span_ms = slots * precision_ms
        """Times further apart than this share slots."""
        size = slots * SLOT_BYTES
        entry = files.stat(path)
        self.was_missing = entry is None or entry.size == 0
        if entry is not None and entry.size not in (0, size):
            raise StoreDamaged(
                f"{path} has {entry.size} bytes",
                expected=f"{size}, for {slots} slots",
                hint="move it away: the broker rebuilds it from the timer log",
            )
        if self.was_missing:
            files.remove(path)
            self._descriptor = files.create(path, size)
            files.sync_dir(path.rpartition("/")[0])
        else:
            self._descriptor = files.open(path, write=not read_only)
        self._view = files.map(self._descriptor, size)
        self._unwritten: dict[int, bytes] = {}
        """Slots that could not be written, by tick: the disk is full."""

    def get(self, slot_ms: int) -> Slot | None:
        """A slot; None if it is empty."""
        tick = slot_ms // self.precision_ms
        if tick in self._unwritten:
            time, first, last, units, _ = _SLOT.unpack(self._unwritten[tick])
        else:
            at = tick % self._slots * SLOT_BYTES
            time, first, last, units, _ = _SLOT.unpack_from(self._view, at)
        return Slot(slot_ms, first, last, units) if time == tick and tick else None

    def put(self, slot: Slot) -> None:
        """Replace a slot; `write` puts it into the page cache."""
        tick = slot.slot_ms // self.precision_ms
        self._unwritten[tick] = _SLOT.pack(tick, slot.first, slot.last, slot.units, 0)

    def clear(self, slot_ms: int) -> None:
        """Make a slot empty, as `put` does."""
        self._unwritten[slot_ms // self.precision_ms] = _EMPTY

    def write(self) -> None:
        """Write the slots that were put; on ``OSError`` the rest is kept for the next call."""
        unwritten = self._unwritten
        while unwritten:
            tick, content = next(iter(unwritten.items()))
            at = tick % self._slots * SLOT_BYTES
            write_fully(self._files, self._descriptor, (content,), at, SLOT_BYTES)
            del unwritten[tick]

    def next_slot(self, start_ms: int, stop_ms: int) -> Slot | None:
        """The first slot with units in a range of times shorter than the wheel's span."""
        view, slots, unwritten = self._view, self._slots, self._unwritten
        tick, stop = start_ms // self.precision_ms, stop_ms // self.precision_ms
        while tick < stop:
            index = tick % slots
            if (
                not unwritten
                and not index % _PAGE_SLOTS
                and index + _PAGE_SLOTS <= slots
                and view[index * SLOT_BYTES : (index + _PAGE_SLOTS) * SLOT_BYTES] == _EMPTY_PAGE
            ):
                tick += _PAGE_SLOTS
                continue
            slot = self.get(tick * self.precision_ms)
            if slot is not None:
                return slot
            tick += 1
        return None

    def all_slots(self) -> Iterator[Slot]:
        """Every slot with units, of any lap."""
        size = self._slots * SLOT_BYTES
        # Most of the wheel was never written: what is a hole is not read.
        for begin, end in self._files.data_ranges(self._descriptor, 0, size):
            yield from self._slots_between(begin - begin % SLOT_BYTES, end)

    def _slots_between(self, begin: int, end: int) -> Iterator[Slot]:
        page = _PAGE_SLOTS * SLOT_BYTES
        for at in range(begin, end, page):
            content = bytes(self._view[at : min(at + page, end + -end % SLOT_BYTES)])
            if content.count(0) == len(content):
                continue
            for time, first, last, units, _ in _SLOT.iter_unpack(content):
                if time:
                    yield Slot(time * self.precision_ms, first, last, units)

    def checksum(self, crc: int = 0) -> int:
        """Of every slot with units; ``crc`` is what it goes on from."""
        for slot in self.all_slots():
            # As text: the numbers of a damaged slot may be larger than those of a file.
            crc = zlib.crc32(b"%d %d %d %d" % slot, crc)
        return crc

    def clear_all(self) -> None:
        """Make every slot empty."""
        self._files.clear(self._descriptor, 0, self._slots * SLOT_BYTES)

    def sync(self) -> None:
        """Return when all that was written before is on the disk; may run in another thread."""
        self._files.sync(self._descriptor)

    def close(self) -> None:
        """Give the file back."""
        self._view = memoryview(b"")
        self._files.close(self._descriptor)
