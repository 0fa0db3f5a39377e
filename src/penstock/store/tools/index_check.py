"""The index against the log: each key of each record can be found, each unit is about a record.

Units are added in the order of the log, so both are walked side by side. A unit counts only if the
chain of its slot leads to it. A process that dies while it adds the keys of one write leaves some
of them; the next one adds them all again, behind a gap. So what the walk misses is looked up as a
reader does before it is called damage.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator

from penstock.errors import PenstockError
from penstock.model.names import Property
from penstock.model.properties import get_property
from penstock.store import layout
from penstock.store.config import DEFAULT_INDEX_SLOTS, DEFAULT_INDEX_UNITS
from penstock.store.files import FileLayer
from penstock.store.index_builder import message_keys
from penstock.store.index_files import (
    HEADER_BYTES,
    SLOT_BYTES,
    UNIT_BYTES,
    IndexShape,
    find_index_files,
    index_shape,
)
from penstock.store.key_hashes import TopicHash
from penstock.store.log_scan import Scanned
from penstock.store.note import StoreState
from penstock.store.segments import SegmentMaps
from penstock.store.tools.log_walk import Damage

_HEADER = struct.Struct(">qqqqii")
_NUMBER = struct.Struct(">i")
_UNIT = struct.Struct(">iqii")
_OPEN_FILES = 2
_CHUNK = 4096
_MAX_TOPICS = 65_536
_TAGS = Property.TAGS.encode()


_Unit = tuple[int, int, str, int]
"""Log position, key hash, file, number in it; one for every key."""


class IndexCheck:
    """All index files of a store; ask it about each record in log order, then ``finish`` it."""

    def __init__(self, files: FileLayer, root: str, state: StoreState | None) -> None:
        self._files = files
        self._is_record: Callable[[int], bool] = lambda position: True
        self._directory = f"{root}/{layout.INDEX}"
        self._maps = SegmentMaps(files, _OPEN_FILES)
        self._topics: dict[str, TopicHash] = {}
        self.damages: list[Damage] = []
        self.keys = 0
        self._pending = 0
        self._has_seen_record = False
        self._damaged_files: set[str] = set()
        entries, _ = find_index_files(files, self._directory)
        entries = [entry for entry in entries if entry.size]
        sizes = {} if state is None else state.sizes
        default = IndexShape(
            sizes.get("index_slots", DEFAULT_INDEX_SLOTS),
            sizes.get("index_units", DEFAULT_INDEX_UNITS),
        )
        try:
            self._shape = index_shape(entries, self._directory, None, None, default)
        except PenstockError as error:
            self.damages.append(Damage(self._directory, 0, str(error)))
            entries = []
        self._names = [entry.name for entry in entries]
        self._report_missing({} if state is None else state.index_files)
        self.files_count = len(entries)
        # How far each file is, before the log is looked at.
        self._headers = [self._read_header(name) for name in self._names]
        self._units = self._walk_units()
        self._next: _Unit | None = None
        begins = [begin for begin, _, _ in self._headers]
        self._begin = min(begins, default=None)
        self._end = max((end for _, end, _ in self._headers), default=-1)

    def start(self, is_record: Callable[[int], bool]) -> None:
        """Go to the first key; ``is_record`` tells whether a record starts at a position."""
        self._is_record = is_record
        self._next = next(self._units, None)

    def _report_missing(self, noted: Iterable[str]) -> None:
        """Report files that our note names and that are gone, but for what retention deletes."""
        lost = sorted(name for name in noted if name not in self._names)
        if lost and (not self._names or lost[-1] > min(self._names)):
            what = f"missing, with {len(lost) - 1} more" if len(lost) > 1 else "missing"
            self.damages.append(Damage(self._path(lost[-1]), 0, what))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _read_header(self, name: str) -> tuple[int, int, int]:
        view = self._maps.view(self._path(name), self._shape.file_bytes)
        if view is None:
            return 0, -1, 1
        _, _, begin, end, _, count = _HEADER.unpack_from(view)
        if not 0 <= count <= self._shape.units:
            self._report(name, 36, f"a header that counts {count} keys of {self._shape.units}")
            count = 1
        return begin, end, max(1, count)

    def _report(self, name: str, at: int, what: str) -> None:
        if name not in self._damaged_files:
            self._damaged_files.add(name)
            self.damages.append(Damage(self._path(name), at, what))

    def _walk_units(self) -> Iterator[_Unit]:
        """The units of all files, in order, but none that points far ahead.

        All records up to there would lack theirs. The order is not promised by the format; it
        follows from how keys are added.
        """
        units_at = HEADER_BYTES + self._shape.slots * SLOT_BYTES if self._names else 0
        last = 0
        for name, (_, _, count) in zip(self._names, self._headers, strict=True):
            view = self._maps.view(self._path(name), self._shape.file_bytes)
            if view is None:
                continue  # retention of a live store was faster
            reachable = self._reachable(name, view, units_at)
            for first in range(1, count, _CHUNK):
                end = min(first + _CHUNK, count)
                units = view[units_at + first * UNIT_BYTES : units_at + end * UNIT_BYTES]
                rows = [
                    (position, key_hash, name, number)
                    for number, (key_hash, position, _, _) in enumerate(
                        _UNIT.iter_unpack(units), first
                    )
                ]
                # Units that no chain leads to are what a killed process left half done.
                if 0 in reachable[first:end]:
                    rows = [row for row in rows if reachable[row[3]]]
                positions = [last, *(row[0] for row in rows)]
                if positions != sorted(positions):
                    rows = self._drop_ahead(rows, last)
                if rows:
                    last = rows[-1][0]
                    yield from rows

    def _drop_ahead(self, rows: list[_Unit], last: int) -> list[_Unit]:
        """Leave out units added twice, since who added them first died, or about nothing."""
        kept: list[_Unit] = []
        for place, row in enumerate(rows):
            position, _, name, number = row
            if place + 1 < len(rows) and last <= rows[place + 1][0] < position:
                if not self._is_record(position):
                    what = f"a key out of order points to {position}: no record"
                    self._report(name, self._at(number), what)
                continue
            last = position
            kept.append(row)
        return kept

    def _at(self, number: int) -> int:
        """Where a unit is in its file."""
        return HEADER_BYTES + self._shape.slots * SLOT_BYTES + number * UNIT_BYTES

    def _reachable(self, name: str, view: memoryview, units_at: int) -> bytearray:
        """Which units the chains of the slots lead to."""
        reached = bytearray(self._shape.units)
        slots = array("i")
        slots.frombytes(view[HEADER_BYTES : HEADER_BYTES + self._shape.slots * SLOT_BYTES])
        if sys.byteorder == "little":
            slots.byteswap()
        for newest in filter(None, slots):
            number = newest
            if not 0 < number < self._shape.units:
                if name not in self._damaged_files:
                    slot = slots.index(number)
                    at = HEADER_BYTES + slot * SLOT_BYTES
                    self._report(name, at, f"slot {slot} points to unit {number}")
                continue
            # A live store may have more units than were counted; they are only passed through.
            while number > 0 and not reached[number]:
                reached[number] = 1
                (previous,) = _NUMBER.unpack_from(view, units_at + number * UNIT_BYTES + 16)
                if previous >= number:
                    at = units_at + number * UNIT_BYTES
                    self._report(name, at, f"unit {number} is followed by unit {previous}")
                    break
                number = previous
        return reached

    def check(self, record: Scanned, *, is_due: bool) -> None:
        """Look for a record's keys; ``is_due`` if they must be there."""
        position = record.log_position
        unit = self._next
        if unit is not None and unit[0] < position:
            unit = self._skip_to(position)
        listed: list[int] = []
        first = unit
        while unit is not None and unit[0] == position:
            self.keys += 1
            listed.append(unit[1])
            unit = self._next = next(self._units, None)
        self._has_seen_record = True
        due = self._hashes(record)
        if listed == due:
            return
        found, expected = set(listed), set(due)
        missing = {hashed for hashed in expected - found if not self._finds(hashed, position)}
        if missing and self._begin is not None and position >= self._begin:
            if is_due and position <= self._end:
                self._miss(missing, len(expected), position)
            else:
                self._pending += 1
        if first is not None and found - expected - self._tag_hash(record):
            _, _, name, number = first
            self._report(name, self._at(number), f"a key that the record at {position} has not")

    def _miss(self, missing: set[int], total: int, position: int) -> None:
        """Blame the file that should have the keys, at the slot that does not lead to them."""
        names = [
            name
            for name, (begin, end, _) in zip(self._names, self._headers, strict=True)
            if begin <= position <= end
        ]
        at = HEADER_BYTES + min(missing) % self._shape.slots * SLOT_BYTES
        what = f"{len(missing)} of {total} keys of the record at {position} cannot be found"
        self._report(names[0] if names else self._names[-1], at, what)

    def _skip_to(self, position: int) -> _Unit | None:
        """Pass units about records that the walk did not meet."""
        unit = self._next
        while unit is not None and unit[0] < position:
            self.keys += 1
            # What retention removed is before the first record the walk met.
            if self._has_seen_record and not self._is_record(unit[0]):
                self._report(unit[2], self._at(unit[3]), f"a key points to {unit[0]}: no record")
            unit = next(self._units, None)
        self._next = unit
        return unit

    def _finds(self, hashed: int, position: int) -> bool:
        """Whether a reader that follows the chains finds this key of this record."""
        for name, (begin, end, _) in zip(self._names, self._headers, strict=True):
            view = self._maps.view(self._path(name), self._shape.file_bytes)
            if view is None or not begin <= position <= end:
                continue
            units_at = HEADER_BYTES + self._shape.slots * SLOT_BYTES
            (number,) = _NUMBER.unpack_from(
                view, HEADER_BYTES + hashed % self._shape.slots * SLOT_BYTES
            )
            last = self._shape.units
            while 0 < number < last:
                found, at, _, following = _UNIT.unpack_from(view, units_at + number * UNIT_BYTES)
                if (found, at) == (hashed, position):
                    return True
                last, number = number, following
        return False

    def _hashes(self, record: Scanned) -> list[int]:
        """What the index should have of a record, in the order keys are added."""
        hash_of = (self._topics.get(record.topic) or self._topic_hash(record.topic)).hash
        return [hash_of(key) for key in message_keys(record.properties)]

    def _topic_hash(self, topic: str) -> TopicHash:
        hashes = self._topics.get(topic)
        if hashes is None:
            if len(self._topics) >= _MAX_TOPICS:
                self._topics.clear()
            hashes = self._topics[topic] = TopicHash(topic.encode())
        return hashes

    def _tag_hash(self, record: Scanned) -> set[int]:
        tag = get_property(record.properties, _TAGS)
        return {self._topic_hash(record.topic).hash(b"T#" + tag)} if tag else set()

    def finish(self, log_end: int, *, is_clean: bool) -> None:
        """Look at what is left: units about records behind the end of the log."""
        while (unit := self._next) is not None:
            self.keys += 1
            # A record before the end has its keys twice if who added them first was killed.
            if is_clean and not (unit[0] < log_end and self._is_record(unit[0])):
                what = f"a key points to {unit[0]}, the log ends at {log_end}"
                self._report(unit[2], self._at(unit[3]), what)
            else:
                self._pending += 1
            self._next = next(self._units, None)

    def notes(self) -> list[str]:
        """What was seen that is no damage."""
        if not self._pending:
            return []
        return [f"records to index: {self._pending}; opening the store does it"]
