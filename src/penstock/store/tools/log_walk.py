"""The log of any store, damaged or live: its files as they are, its records segment by segment.

Opening a store refuses damage; a tool must walk past it. Records never cross segments, so each
segment is walked for itself, and the first thing wrong in one hides nothing in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.model.record_layout import BLANK_HEAD_BYTES
from penstock.protocol.records.codec import decode_record
from penstock.store import layout
from penstock.store.commit_log import CommitLog
from penstock.store.files import FileEntry, FileLayer
from penstock.store.log_scan import Scanned
from penstock.store.log_search import records_in_segment
from penstock.store.note import StoreState
from penstock.store.segments import (
    NAME_DIGITS,
    SegmentList,
    SegmentMaps,
    segment_path,
    usual_size,
)

_OPEN_SEGMENTS = 4


class Damage(NamedTuple):
    """Something wrong, and where."""

    file: str
    position: int
    """In the file, in bytes."""
    what: str


class WalkEnd(NamedTuple):
    """How the walk through one segment ended."""

    base: int
    end: int
    """The log position behind the last record, or the next segment's after a blank."""
    damage: str | None
    has_records: bool
    is_rest_known: bool
    """Whether it was looked for records behind the end, and none was found."""


def segment_files(
    files: FileLayer, directory: str
) -> tuple[list[tuple[int, FileEntry]], list[FileEntry]]:
    """Files named like segments by their position, and all that is named otherwise."""
    named: list[tuple[int, FileEntry]] = []
    others: list[FileEntry] = []
    for entry in files.list_dir(directory):
        is_number = entry.name.isascii() and entry.name.isdigit()
        if entry.is_dir or len(entry.name) != NAME_DIGITS or not is_number:
            others.append(entry)
        else:
            named.append((int(entry.name), entry))
    return sorted(named), sorted(others)


class LogWalk:
    """Walks the segments of a log; remembers what it found wrong."""

    def __init__(self, files: FileLayer, root: str, state: StoreState | None) -> None:
        self._files = files
        self.directory = f"{root}/{layout.COMMIT_LOG}"
        self.damages: list[Damage] = []
        self.files, self.others = segment_files(files, self.directory)
        known = None if state is None else state.sizes.get("commit_log")
        sizes = [entry.size for _, entry in self.files if entry.size]
        self.segment_size = known or (usual_size(sizes) if sizes else 0)
        self.bases = self._usable_bases()
        self._usable = frozenset(self.bases)
        self.log = CommitLog(
            files,
            self.directory,
            SegmentList(self.bases, self.segment_size, []),
            SegmentMaps(files, _OPEN_SEGMENTS),
        )
        self.log.written = (self.end_of_files, 0)
        self.ends: list[WalkEnd] = []

    @property
    def start(self) -> int:
        """Where the oldest segment starts."""
        return self.bases[0] if self.bases else 0

    @property
    def end_of_files(self) -> int:
        """Where the last segment ends."""
        return self.bases[-1] + self.segment_size if self.bases else 0

    @property
    def end(self) -> int:
        """Behind the last record found so far."""
        return max((end.end for end in self.ends if end.has_records), default=self.start)

    def _usable_bases(self) -> list[int]:
        """Segments of the right size; what is missing between them is reported."""
        size = self.segment_size
        bases: list[int] = []
        for number, (base, entry) in enumerate(self.files):
            is_last = number == len(self.files) - 1
            if entry.size != size or base % size:
                if entry.size or not is_last:
                    self._report(base, 0, f"{entry.size} bytes, the others have {size}")
                continue
            if bases and base != bases[-1] + size:
                self._report(base, 0, f"no segment between {bases[-1] + size} and this one")
            bases.append(base)
        return bases

    def _report(self, base: int, position: int, what: str) -> None:
        self.damages.append(Damage(segment_path(self.directory, base), position, what))

    def records(
        self, first_position: int = 0, *, past_damage: bool = False
    ) -> Iterator[tuple[int, memoryview, Iterator[Scanned]]]:
        """Each segment: where it starts, its bytes and its records, to be walked in order.

        With ``past_damage`` a segment comes once more for each stretch of whole records behind
        something damaged.
        """
        for base in self.bases:
            if base + self.segment_size <= first_position:
                continue
            view = self.log.segment_view(base)
            if view is None:
                continue  # retention of a live store was faster
            limit = base + self.segment_size
            start: int | None = base
            has_records = False
            while start is not None:
                scan = self.log.scan(start, limit)
                yield base, view, iter(scan)
                has_records |= scan.last_record >= 0
                start = None
                if past_damage and scan.end < limit:
                    start = self._record_behind(base, scan.end - base)
                if start is not None:
                    self._report_gap(base, scan.end - base, scan.damage)
            self.ends.append(WalkEnd(base, scan.end, scan.damage, has_records, past_damage))
        self._judge_ends()

    def _judge_ends(self) -> None:
        """Tell damage from the end of the log: behind the end there is no record any more."""
        last = max((n for n, end in enumerate(self.ends) if end.has_records), default=-1)
        for number, end in enumerate(self.ends):
            if end.end >= end.base + self.segment_size:
                continue
            at = end.end - end.base
            if number < last:
                self._report(end.base, at, end.damage or "zeros, but records in later segments")
            elif not end.is_rest_known and self._record_behind(end.base, at) is not None:
                self._report_gap(end.base, at, end.damage)

    def _report_gap(self, base: int, at: int, damage: str | None) -> None:
        self._report(base, at, damage or "zeros, but records behind them")

    def check_end(self, vouched: int) -> None:
        """Report a log that ends before where it is known to have been; after the walk."""
        end = self.end
        left = self.segment_size - end % self.segment_size if self.segment_size else 0
        if left < BLANK_HEAD_BYTES:
            end += left
        if end < vouched:
            base = self.bases[-1] if self.bases else 0
            what = f"the log ends at {end}, but was on the disk up to {vouched}"
            self._report(base, max(end - base, 0), what)

    @property
    def torn_tail(self) -> str | None:
        """What follows the last record, if not zeros: a write that a crash cut short."""
        last = [end for end in self.ends if end.has_records]
        rest = [end for end in self.ends if end.damage is not None and not end.has_records]
        tail = [end for end in [*last[-1:], *rest] if end.damage is not None]
        if not tail:
            return None
        return f"log position {tail[0].end}: {tail[0].damage}"

    def _record_behind(self, base: int, at: int) -> int | None:
        """Where the first whole record begins behind a place in a segment; None: nowhere."""
        return next(records_in_segment(self.log, base, at + 1), None)

    def record_at(self, position: int) -> memoryview | None:
        """The record that starts at a position; None if none does, or its file is not usable."""
        base = position - position % self.segment_size if self.segment_size else -1
        return self.log.record_at(position) if base in self._usable else None

    def place(self, position: int) -> tuple[str, int]:
        """The file of a log position, and where it is in that."""
        at = position % self.segment_size
        return segment_path(self.directory, position - at), at

    def is_record(self, position: int) -> bool:
        """Whether a whole record starts at a position."""
        record = self.record_at(position)
        if record is None:
            return False
        try:
            decode_record(record, check_crc=True)
        except ProtocolError:
            return False
        return True

    def close(self) -> None:
        """Give the maps back."""
        self.log.close()
