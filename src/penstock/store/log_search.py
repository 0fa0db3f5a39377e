"""Whole records behind a damaged place: the walk along the log stops there, this goes on.

A torn write is the last thing in a log. Where whole records follow, something else happened: the
bytes changed on the disk, or a machine died that had written them in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.model.record_layout import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from penstock.store.commit_log import CommitLog

_MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_SEARCH_BYTES: Final = 1 << 20


def records_behind(commit_log: CommitLog, position: int) -> Iterator[int]:
    """Where whole records start behind a position, in its segment and in those after it.

    Records inside the body of another one may be among them.
    """
    start = position + 1
    for base in commit_log.bases:
        if base + commit_log.segment_size > start:
            yield from records_in_segment(commit_log, base, max(start - base, 0))


def records_in_segment(commit_log: CommitLog, base: int, start: int) -> Iterator[int]:
    """Where whole records start in a segment, from ``start`` bytes behind its beginning on."""
    for begin, end in commit_log.data_ranges(base, start):
        for at in range(begin, end, _SEARCH_BYTES):
            # Chunks overlap by a head, so that none hides on their border.
            stop = min(end, at + _SEARCH_BYTES) + MIN_RECORD_BYTES
            chunk = commit_log.read_bytes(base, at, stop)
            for found in _magics(chunk):
                place = base + at + found - 4
                if found - 4 < _SEARCH_BYTES and _is_whole(commit_log, place):
                    yield place


def _magics(chunk: bytes) -> Iterator[int]:
    """Where a magic number is, with room for a size before it, in order."""
    places: list[int] = []
    for magic in _MAGICS:
        found = chunk.find(magic, 4)
        while found >= 0:
            places.append(found)
            found = chunk.find(magic, found + 1)
    return iter(sorted(places))


def _is_whole(commit_log: CommitLog, position: int) -> bool:
    """Whether a record starts there whose lengths, position and checksum are right."""
    if commit_log.record_at(position) is None:
        return False
    return next(iter(commit_log.scan(position, position + 1)), None) is not None
