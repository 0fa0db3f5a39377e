"""Messages by key: a hash table in files of fixed size, named with the time of their creation.

    header:40 | slots: newest unit of the chain:4 ... | units of 20 bytes; unit 0 is never used

    header: begin_timestamp:8 end_timestamp:8 begin_position:8 end_position:8 slots_used:4 count:4
    unit:   key_hash:4 | log_position:8 | seconds since begin_timestamp:4 | previous unit:4

``count`` is the number the next unit gets, so it starts at 1. A key is ``topic#key``; its hash is
the absolute value of Java's string hash. Hashes collide, so readers compare keys.

The newest file is written through a map, since a new key changes four bytes anywhere in the slots.
Before a page is stored to for the first time it is written once with ``write``: that takes the
page's room on the disk, or fails with an error, where a store to a hole would kill the process.

Order within one message, or many: header, then for each key its unit before its slot. A process
killed in between leaves units that no slot knows, never a slot that points to nothing; the header
names the message, or the first of them, and recovery dispatches again from there.

A process may be killed between any two instructions, so what is already in use, header and slots,
is never changed with ``pack_into``: that clears its bytes before it fills them.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import repeat
from typing import NamedTuple

from penstock.errors import StoreDamaged
from penstock.store.bulk.rows import pack_rows
from penstock.store.files import PAGE_BYTES, FileEntry, FileLayer, WritableMap
from penstock.store.index_files import (
    HEADER_BYTES,
    NAME_DIGITS,
    SLOT_BYTES,
    UNIT_BYTES,
    IndexShape,
    find_index_files,
)
from penstock.store.key_hashes import IndexEntry
from penstock.store.segments import SegmentMaps, rewrite, write_fully

_HEADER = struct.Struct(">qqqqii")
_NUMBER = struct.Struct(">i")
_UNIT_LAYOUT = "iqii"
_UNIT = struct.Struct(">" + _UNIT_LAYOUT)
_pack_header = _HEADER.pack
_pack_unit = _UNIT.pack_into
_unpack_unit = _UNIT.unpack_from
_pack_number = _NUMBER.pack
_unpack_number = _NUMBER.unpack_from
_unpack_native = struct.Struct("i").unpack
_MAX_INT = 0x7FFF_FFFF
_FIRST_SLOT = HEADER_BYTES // SLOT_BYTES
_SLOTS_A_PAGE = PAGE_BYTES // SLOT_BYTES
_CLOCK_SLACK_MS = 60_000
"""How far the clock may go back without hiding messages from a search by time."""


def _in_file_order(numbers: Iterable[int]) -> array[int]:
    """Numbers of four bytes as they must be stored to a map, or those that were read from it."""
    cells = array("i", numbers)
    if sys.byteorder == "little":
        cells.byteswap()
    return cells


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_position: int
    end_position: int
    slots_used: int
    next_unit: int


class KeyIndex:
    """All index files of a store; the newest one takes new keys."""

    def __init__(
        self,
        files: FileLayer,
        directory: str,
        shape: IndexShape,
        maps: SegmentMaps,
        *,
        read_only: bool = False,
    ) -> None:
        self._files = files
        self.directory = directory
        self.shape = shape
        self._maps = maps
        self.headers: dict[str, IndexHeader] = {}
        """Every file by name, oldest first; that of the newest is kept in the fields below."""
        self._units_at = HEADER_BYTES + shape.slots * SLOT_BYTES
        self._slots, self._max_units = shape
        self._map: WritableMap | None = None
        self._name = ""
        self._view = memoryview(b"")
        self._words = self._view
        """The same bytes as numbers of four: a slot is stored to with one instruction."""
        self._descriptor = -1
        self._taken = bytearray()
        self._is_made_here = False
        self._count = 1
        self._slots_used = 0
        self._begin_timestamp = 0
        self._begin_position = 0
        self._end_timestamp = 0
        self.end_position = 0
        """The last message with an entry; older ones need none."""
        self._full_maps: deque[WritableMap] = deque()
        self.has_new_files = False
        """Whether the directory has names that may not be on the disk yet."""
        self._memory: dict[int, list[int]] | None = {} if read_only else None
        """New keys of a store that must not be written to."""

    # Opening

    def load(self, entries: list[FileEntry]) -> None:
        """Read the headers of the files found, oldest first."""
        for entry in entries:
            header = self._read_header(entry.name) if entry.size else None
            if header is not None and header.next_unit > 1:
                self.headers[entry.name] = header
            elif self._memory is None:
                # Who made it died before the first key. Its header is all zeros and would say
                # that nothing is indexed yet.
                self._files.remove(f"{self.directory}/{entry.name}")
        if self.headers:
            self._take_over(*next(reversed(self.headers.items())))

    def reload(self) -> None:
        """Read the headers again, of a store that another process writes."""
        entries, _ = find_index_files(self._files, self.directory)
        self.headers.clear()
        self.load([entry for entry in entries if entry.size == self.shape.file_bytes])

    def _read_header(self, name: str) -> IndexHeader:
        path = f"{self.directory}/{name}"
        descriptor = self._files.open(path)
        try:
            raw = self._files.read(descriptor, HEADER_BYTES, 0)
        finally:
            self._files.close(descriptor)
        header = IndexHeader._make(_HEADER.unpack(raw))
        count = header.next_unit if header.next_unit > 0 else 1
        if count > self.shape.units or header.end_position < 0:
            raise StoreDamaged(
                f"{path} states {header.next_unit} keys up to log position {header.end_position}",
                expected=f"at most {self.shape.units} keys",
                hint="delete the directory 'index' together with 'consumequeue': both are rebuilt",
            )
        return header._replace(next_unit=count)

    def _take_over(self, name: str, header: IndexHeader) -> None:
        self._name = name
        self._begin_timestamp = header.begin_timestamp
        self._begin_position = header.begin_position
        self._end_timestamp = header.end_timestamp
        self.end_position = header.end_position
        self._slots_used = header.slots_used
        self._count = header.next_unit

    # Adding

    def add(self, hashes: Sequence[int], position: int, timestamp: int) -> None:
        """Enter the keys of the message at ``position``."""
        if self._memory is not None:
            for hashed in hashes:
                self._memory.setdefault(hashed, []).append(position)
            return
        count = self._count
        total = len(hashes)
        if self._map is None or count + total > self._max_units:
            self._add_at_the_end(hashes, position, timestamp)
            return
        view, taken, slots = self._view, self._taken, self._slots
        unit_at = self._units_at + count * UNIT_BYTES
        last_page = (unit_at + total * UNIT_BYTES - 1) // PAGE_BYTES
        if not taken[last_page]:
            self._take_pages(unit_at // PAGE_BYTES, last_page)
        begin = self._begin_timestamp
        seconds = (timestamp - begin) // 1000 if 0 < begin <= timestamp else 0
        if count == 1:
            self._begin_timestamp = self._end_timestamp = timestamp
            self._begin_position = position
        if seconds > _MAX_INT:
            seconds = _MAX_INT
        places: list[tuple[int, int]] = []
        for hashed in hashes:
            slot = _FIRST_SLOT + hashed % slots
            if not taken[slot // _SLOTS_A_PAGE]:
                self._take_pages(slot // _SLOTS_A_PAGE, slot // _SLOTS_A_PAGE)
            places.append((hashed, slot))
        if timestamp > self._end_timestamp:
            # Not if the clock went back: a search by time must not pass the file over.
            self._end_timestamp = timestamp
        self.end_position = position
        self._count = count + total
        view[:HEADER_BYTES] = _pack_header(
            self._begin_timestamp,
            self._end_timestamp,
            self._begin_position,
            position,
            self._slots_used,
            count + total,
        )
        words = self._words
        for hashed, slot in places:
            (previous,) = _unpack_number(view, slot * SLOT_BYTES)
            if not 0 < previous < count:
                previous = 0
                self._slots_used += 1
            _pack_unit(view, unit_at, hashed, position, seconds, previous)
            (words[slot],) = _unpack_native(_pack_number(count))
            unit_at += UNIT_BYTES
            count += 1

    def add_many(self, entries: Sequence[IndexEntry]) -> None:
        """Enter keys of several messages, in the order of the log.

        The header is written twice, not once a message. Until all keys are in, it counts them
        all but names the first message as the last one: a start that finds it
        like that after the death of the process replays all of them, as after an error here.
        """
        count = self._count
        total = len(entries)
        if count == 1 or self._map is None or count + total > self._max_units:
            for hashed, position, timestamp in entries:
                self.add((hashed,), position, timestamp)
            return
        view, taken, slots = self._view, self._taken, self._slots
        unit_at = self._units_at + count * UNIT_BYTES
        last_page = (unit_at + total * UNIT_BYTES - 1) // PAGE_BYTES
        if not taken[last_page]:
            self._take_pages(unit_at // PAGE_BYTES, last_page)
        self.end_position = entries[0][1]
        self._count = count + total
        self.finish()
        begin = self._begin_timestamp
        previous_timestamp, seconds = begin, 0
        new_slots = 0
        words, numbers = self._words, _in_file_order(range(count, count + total))
        for (hashed, position, timestamp), number in zip(entries, numbers, strict=True):
            if timestamp != previous_timestamp:
                previous_timestamp = timestamp
                seconds = (timestamp - begin) // 1000 if 0 < begin <= timestamp else 0
                if seconds > _MAX_INT:
                    seconds = _MAX_INT
            slot = _FIRST_SLOT + hashed % slots
            if not taken[slot // _SLOTS_A_PAGE]:
                self._take_pages(slot // _SLOTS_A_PAGE, slot // _SLOTS_A_PAGE)
            (previous,) = _unpack_number(view, slot * SLOT_BYTES)
            if not 0 < previous < count:
                previous = 0
                new_slots += 1
            _pack_unit(view, unit_at, hashed, position, seconds, previous)
            words[slot] = number
            unit_at += UNIT_BYTES
            count += 1
        self._slots_used += new_slots
        self.end_position = entries[-1][1]
        self._end_timestamp = max(self._end_timestamp, entries[-1][2])
        self.finish()

    def add_columns(self, hashes: Sequence[int], positions: Sequence[int], timestamp: int) -> None:
        """`add_many` for keys of one moment: units are made and stored all at once.

        Positions go up, as the log does. An error changes nothing.
        """
        count, total = self._count, len(hashes)
        if count == 1 or self._map is None or count + total > self._max_units:
            self.add_many(list(zip(hashes, positions, repeat(timestamp))))
            return
        taken, slot_count = self._taken, self._slots
        slots = [_FIRST_SLOT + hashed % slot_count for hashed in hashes]
        unit_at = self._units_at + count * UNIT_BYTES
        end = unit_at + total * UNIT_BYTES
        self._take_pages(unit_at // PAGE_BYTES, (end - 1) // PAGE_BYTES)
        first, last = min(slots) // _SLOTS_A_PAGE, max(slots) // _SLOTS_A_PAGE
        if taken.count(0, first, last + 1):
            for page in {slot // _SLOTS_A_PAGE for slot in slots}:
                self._take_pages(page, page)
        previous = self._previous(slots)
        begin = self._begin_timestamp
        seconds = min((timestamp - begin) // 1000, _MAX_INT) if 0 < begin <= timestamp else 0
        columns = {0: hashes, 1: positions, 3: previous}
        units = pack_rows(_UNIT_LAYOUT, total, [0, 0, seconds, 0], columns)
        self.end_position = positions[0]
        self._count = count + total
        self.finish()
        self._view[unit_at:end] = units
        words = self._words
        for slot, number in zip(slots, _in_file_order(range(count, count + total)), strict=True):
            words[slot] = number
        self._slots_used += previous.count(0)
        self.end_position = positions[-1]
        self._end_timestamp = max(self._end_timestamp, timestamp)
        self.finish()

    def _previous(self, slots: Sequence[int]) -> array[int]:
        """The unit that was the newest of its slot before each of these comes, and 0 without."""
        words, count = self._words, self._count
        previous = _in_file_order([words[slot] for slot in slots])
        if min(previous) < 0 or max(previous) >= count:
            # Slots that a damage left with something else count as free, as they do one by one.
            previous = array("i", [number if 0 < number < count else 0 for number in previous])
        if len(set(slots)) != len(slots):
            newest: dict[int, int] = {}
            for at, slot in enumerate(slots):
                previous[at] = newest.get(slot, previous[at])
                newest[slot] = count + at
        return previous

    def _add_at_the_end(self, hashes: Sequence[int], position: int, timestamp: int) -> None:
        """Enter keys one by one: they may need the rest of one file and the start of another."""
        if self._map is not None and len(hashes) > 1:
            for hashed in hashes:
                self.add((hashed,), position, timestamp)
        else:
            self._open_file(timestamp)
            self.add(hashes, position, timestamp)

    def finish(self) -> None:
        """Write the header as it is; every field at once, so that none is ever seen half done."""
        if self._map is not None:
            self._view[:HEADER_BYTES] = _pack_header(
                self._begin_timestamp,
                self._end_timestamp,
                self._begin_position,
                self.end_position,
                self._slots_used,
                self._count,
            )

    def _header(self) -> IndexHeader:
        return IndexHeader(
            self._begin_timestamp,
            self._end_timestamp,
            self._begin_position,
            self.end_position,
            self._slots_used,
            self._count,
        )

    def _take_pages(self, first: int, last: int) -> None:
        """Take room on the disk for pages that are stored to for the first time."""
        for page in range(first, last + 1):
            if not self._taken[page]:
                start = page * PAGE_BYTES
                size = min(PAGE_BYTES, len(self._view) - start)
                content = bytes(size)
                if not self._is_made_here:
                    # Not through the map: a look at a hole of a full tmpfs ends the process, too.
                    content = self._files.read(self._descriptor, size, start).ljust(size, b"\0")
                write_fully(self._files, self._descriptor, (content,), start, size)
                self._taken[page] = 1

    def _open_file(self, timestamp: int) -> None:
        """Open the newest file for writing, or start a new one if it is full or there is none."""
        size = self.shape.file_bytes
        if self._name and self._count < self.shape.units:
            descriptor = self._files.open(f"{self.directory}/{self._name}", write=True)
            self._is_made_here = False
        else:
            self._seal()
            self._name = self._new_name(timestamp)
            self._files.make_dir(self.directory)
            descriptor = self._files.create(f"{self.directory}/{self._name}", size)
            self.has_new_files = True
            self._is_made_here = True
            self._count, self._slots_used = 1, 0
            # RocketMQ's IndexFile starts where its predecessor ended, so the first unit counts
            # its seconds from there, although the first key then sets its own beginning.
            self._begin_timestamp = self._end_timestamp
            self._begin_position = self.end_position
        self._descriptor = descriptor
        self._map = self._files.map_writable(descriptor, size)
        self._view = self._map.view
        self._words = self._view.cast("i")
        self._taken = bytearray((size + PAGE_BYTES - 1) // PAGE_BYTES)
        try:
            self._take_pages(0, 0)
        except OSError:
            # Left open, the next key would be stored to a header without room on the disk.
            self._drop_map()
            raise
        self.headers[self._name] = self._header()

    def _seal(self) -> None:
        """Put the full file aside until the next flush."""
        if self._map is None:
            return
        self.finish()
        self.headers[self._name] = self._header()
        self._full_maps.append(self._map)
        self._map, self._descriptor = None, -1
        self._view = self._words = memoryview(b"")

    def _new_name(self, timestamp: int) -> str:
        """The creation time as RocketMQ writes it; names go up even if the clock goes back."""
        moment = datetime.fromtimestamp(timestamp / 1000).astimezone()
        name = f"{moment:%Y%m%d%H%M%S}{timestamp % 1000:03d}"
        newest = max(self.headers, default="")
        # Only the order of names matters, not the time in them.
        return name if name > newest else f"{int(newest) + 1:0{NAME_DIGITS}d}"

    def rewrite(self, name: str) -> None:
        """Make sure of a file that a killed process left; see ``segments.rewrite``."""
        end = self._units_at + self.headers[name].next_unit * UNIT_BYTES
        rewrite(self._files, f"{self.directory}/{name}", 0, min(end, self.shape.file_bytes))
        self._files.sync_dir(self.directory)

    # Looking up

    def find(self, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log positions of messages with this hash and time, newest first, by their files."""
        if self._map is not None:
            self.headers[self._name] = self._header()
        if self._memory is not None:
            yield from reversed(self._memory.get(hashed, ()))
        # Clocks are set back at times: look a little further than asked, the reader compares.
        begin_ms, end_ms = begin_ms - _CLOCK_SLACK_MS, end_ms + _CLOCK_SLACK_MS
        for name, header in reversed(list(self.headers.items())):
            # Older files may have later times. What was stored by a clock that was set back comes
            # before the beginning of its file, so only the end tells.
            if begin_ms <= max(header.begin_timestamp, header.end_timestamp):
                yield from self._find_in_file(name, header, hashed, begin_ms, end_ms)

    def _find_in_file(
        self, name: str, header: IndexHeader, hashed: int, begin_ms: int, end_ms: int
    ) -> Iterator[int]:
        view = self._file_view(name)
        if view is None:
            return
        slot_at = HEADER_BYTES + hashed % self.shape.slots * SLOT_BYTES
        (number,) = _unpack_number(view, slot_at)
        last = header.next_unit
        # Chains lead to ever smaller numbers; one that does not is damaged, and would not end.
        while 0 < number < last:
            unit_hash, position, seconds, following = _unpack_unit(
                view, self._units_at + number * UNIT_BYTES
            )
            # Whole seconds are all a unit has: take those that may match, the reader compares.
            # Those of the first unit count from the end of the file before, and 0 may be any time
            # before the beginning.
            earliest = header.begin_timestamp + seconds * 1000
            if unit_hash == hashed and (
                seconds == 0 or number == 1 or (earliest <= end_ms and begin_ms < earliest + 1000)
            ):
                yield position
            last, number = number, following

    def possible(self, hashes: Sequence[int]) -> list[int]:
        """The places of those hashes that some message has, of any time; most often of none.

        `find` yields nothing for the others. For many keys this takes a tenth of the time.
        """
        places: set[int] = set()
        if self._memory is not None:
            places.update(at for at, hashed in enumerate(hashes) if hashed in self._memory)
        if self._map is not None:
            self.headers[self._name] = self._header()
        for name, header in list(self.headers.items()):
            view = self._file_view(name)
            if view is not None:
                places.update(self._possible_in_file(view, header.next_unit, hashes))
        return sorted(places)

    def _possible_in_file(
        self, view: memoryview, next_unit: int, hashes: Sequence[int]
    ) -> Iterator[int]:
        slots, units_at = self._slots, self._units_at
        for at, hashed in enumerate(hashes):
            (number,) = _unpack_number(view, HEADER_BYTES + hashed % slots * SLOT_BYTES)
            last = next_unit
            while 0 < number < last:
                unit_hash, _, _, following = _unpack_unit(view, units_at + number * UNIT_BYTES)
                if unit_hash == hashed:
                    yield at
                    break
                last, number = number, following

    def _file_view(self, name: str) -> memoryview | None:
        """The bytes of a file; None if it is gone."""
        if name == self._name and self._map is not None:
            return self._view
        return self._maps.view(f"{self.directory}/{name}", self.shape.file_bytes)

    # Flushing and removing

    def take_full_maps(self) -> list[WritableMap]:
        """Files that got full since the last call, to be synced and closed by the caller."""
        full: list[WritableMap] = []
        # One by one: the thread that appends may add another meanwhile.
        while self._full_maps:
            full.append(self._full_maps.popleft())
        return full

    @property
    def current_map(self) -> WritableMap | None:
        """The newest file's map, if it was written to."""
        return self._map

    @property
    def full_timestamp(self) -> int:
        """The time of the last key in the newest full file, and 0 without one."""
        full = self._full_files()
        return full[-1][1].end_timestamp if full else 0

    @property
    def newest_full(self) -> str:
        """The name of the newest full file; empty without one."""
        full = self._full_files()
        return full[-1][0] if full else ""

    def _full_files(self) -> list[tuple[str, IndexHeader]]:
        """Full files that are not written to any more; the thread that flushes asks, too."""
        writing = self._name if self._map is not None else ""
        # The list is made in one step, so changes by the other thread do not matter.
        return [
            (name, header)
            for name, header in list(self.headers.items())
            if header.next_unit >= self._max_units and name != writing
        ]

    @property
    def key_counts(self) -> dict[str, int]:
        """Every file, and the number that its next key gets; the thread that flushes asks, too."""
        return {name: header.next_unit for name, header in list(self.headers.items())}

    @property
    def end_timestamp(self) -> int:
        """The time of the newest key."""
        return self._end_timestamp

    def retire_before(self, log_start: int) -> list[str]:
        """Forget the files that only know messages before ``log_start``; the newest stays.

        Returns their paths, for the caller to remove.
        """
        retired: list[str] = []
        for name, header in list(self.headers.items())[:-1]:
            if header.end_position >= log_start:
                break
            retired.append(self._forget(name))
        return retired

    def remove_from(self, name: str) -> None:
        """Delete ``name`` and all newer files, whose content cannot be trusted."""
        for newer in [other for other in self.headers if other >= name]:
            self._files.remove(self._forget(newer))
        self._name, self._count, self._slots_used = "", 1, 0
        self._begin_timestamp = self._end_timestamp = 0
        self._begin_position = self.end_position = 0
        if self.headers:
            self._take_over(*next(reversed(self.headers.items())))

    def _forget(self, name: str) -> str:
        path = f"{self.directory}/{name}"
        self._maps.forget(path)
        del self.headers[name]
        return path

    def close(self) -> None:
        """Give all files back."""
        for full in self.take_full_maps():
            full.close()
        if self._map is not None:
            self.finish()
            self.headers[self._name] = self._header()
            self._drop_map()

    def _drop_map(self) -> None:
        assert self._map is not None
        self._view = self._words = memoryview(b"")
        self._map.close()
        self._map = None
