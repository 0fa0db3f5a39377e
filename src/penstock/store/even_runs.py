"""Runs whose property strings are all alike: their keys and their tag, found column by column.

Messages that one program sends in bulk have the same properties in the same places, and values
that differ in some characters. Written below each other their property strings form a table. Most
of its columns hold one character from top to bottom; if the others are inside of values, what is
found in the first string is in the same place in all of them. Hashes of keys are then sums over
columns, of all messages at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.store.key_hashes import MAX_SHORT_KEY, POWERS, TopicHash
from penstock.store.marked import KEYS, TAGS, UNIQUE_KEY, find_value
from penstock.store.runs import FEW, TAIL_HEAD_BYTES, Run

_LANE: Final = 8
"""Bytes a sum has; one term takes at most five, so no sum runs into its neighbour."""
_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000
_SPACE: Final = 0x20


class EvenRun(NamedTuple):
    """What the messages of a run have in common, and the hashes of their keys."""

    tag: bytes
    keys_each: int
    hashes: list[int]
    """Of the first message's keys, then of the second's, and so on."""


NO_KEYS: Final = EvenRun(b"", 0, [])


class _Table(NamedTuple):
    """Property strings below each other, marked."""

    first: bytes
    rows: int
    varying: dict[int, bytes]
    """Columns that do not hold the same from top to bottom, by their place in ``first``."""


def read_even_run(run: Run, topic: TopicHash | None) -> EvenRun | None:
    """The tag and the keys of a run, without keys if there is no ``topic``; None: not even."""
    if run.is_plain:
        return NO_KEYS
    table = _table(run)
    if table is None:
        return None
    start, stop = find_value(table.first, TAGS)
    if any(start <= place < stop for place in table.varying):
        return None
    tag = table.first[start:stop]
    if topic is None:
        return EvenRun(tag, 0, [])
    places = _key_places(table)
    if places is None:
        return None
    hashes = [0] * (len(places) * table.rows)
    for number, place in enumerate(places):
        hashes[number :: len(places)] = _hashes(table, topic, *place)
    return EvenRun(tag, len(places), hashes)


def _table(run: Run) -> _Table | None:
    """The strings of a run, if they differ in nothing but characters of values."""
    width, count = run.tail_bytes, len(run.sizes)
    if not width or count < FEW:
        return None
    said = run.said
    varying: dict[int, bytes] = {}
    for at in range(TAIL_HEAD_BYTES, width):
        column = said[at::width]
        if column.count(column[0]) != count:
            # A mark here and none there would make other properties of the rest.
            if 1 in column or 2 in column:
                return None
            varying[at - TAIL_HEAD_BYTES + 1] = column
    first = b"\x02%b\x02" % said[TAIL_HEAD_BYTES:width]
    start = 1
    for entry in first[1:-1].split(b"\x02"):
        name, _, _ = entry.partition(b"\x01")
        if any(start <= place < start + len(name) for place in varying):
            return None
        start += len(entry) + 1
    return _Table(first, count, varying)


def _key_places(table: _Table) -> list[tuple[int, int]] | None:
    """Where the keys are that messages are indexed by; None if that, or their hash, differs."""
    places: list[tuple[int, int]] = []
    start, stop = find_value(table.first, UNIQUE_KEY)
    if start:
        places.append((start, stop))
    start, stop = find_value(table.first, KEYS)
    if any(start <= place < stop and _SPACE in table.varying[place] for place in table.varying):
        return None
    for word in table.first[start:stop].split(b" "):
        if word:
            places.append((start, start + len(word)))
        start += len(word) + 1
    for start, stop in places:
        if stop - start > MAX_SHORT_KEY or not table.first[start:stop].isascii():
            return None
        if not all(table.varying.get(at, b"").isascii() for at in range(start, stop)):
            return None
    return places


def _hashes(table: _Table, topic: TopicHash, start: int, stop: int) -> Sequence[int]:
    """What ``TopicHash.of`` gives for the key in these columns of each message."""
    count, length = table.rows, stop - start
    fixed = topic.of_topic * POWERS[length]
    sums = 0
    for at in range(start, stop):
        factor = POWERS[stop - 1 - at]
        column = table.varying.get(at)
        if column is None:
            fixed += table.first[at] * factor
        else:
            lanes = bytearray(_LANE * count)
            lanes[::_LANE] = column
            sums += int.from_bytes(lanes, "little") * factor
    fixed &= _MASK
    totals = struct.unpack(f"<{count}Q", sums.to_bytes(_LANE * count, "little"))
    hashes = [fixed + total & _MASK for total in totals]
    # Absolute values; the smallest number has none and counts as 0.
    return [value if value < _SIGN else -value & (_SIGN - 1) for value in hashes]
