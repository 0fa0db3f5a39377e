r"""Batches with uniform property strings: their keys and their tag, found column by column.

Messages that one program sends in bulk have the same properties in the same places, with values of
one length. Written below each other their property strings form a table: columns of names and
separators that hold the same from top to bottom, and columns of values.

    UNIQ_KEY\1 | 7F0000013A22 | 18B4AAC200000001 | \2TAGS\1t\2WAIT\1 | true | \2
    UNIQ_KEY\1 | 7F0000013A22 | 18B4AAC200000002 | \2TAGS\1t\2WAIT\1 | true | \2
      fixed       head of a key     end of a key          fixed        value  fixed

So properties are searched for in one string only, and usually not even in one of each batch: the
layout of the last batch is tried first. Everything else is done to whole columns, outside of
Python's loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import add
from typing import Final, NamedTuple

from penstock.model.properties import KEYS, TAGS, UNIQUE_KEY, find_value
from penstock.store.bulk.batch_encoding import EncodedBatch
from penstock.store.bulk.rows import cut_rows
from penstock.store.key_hashes import TopicHash

_MARKS: Final = b"\x01\x02"
_END_BYTES: Final = 8
"""Ids of one producer differ in their last characters only (RocketMQ's count milliseconds and
messages there); what is before is hashed once."""
_MAX_LAYOUTS: Final = 256


class BatchKeys(NamedTuple):
    """What the messages of a batch have in common, and the hashes of their keys."""

    tag: bytes
    keys_each: int
    hashes: Sequence[int]
    """Of the first message's keys, then of the second's, and so on."""


class _Key(NamedTuple):
    """The columns of a key."""

    head: int
    """All but its end, if it is long; else -1."""
    end: int
    forbidden: bytes
    """Bytes that would make something else of it."""


class _Layout(NamedTuple):
    """How property strings of one length are cut into columns."""

    columns: int
    row: str
    """As `struct` writes it."""
    fixed: Sequence[tuple[int, bytes]]
    """Columns that hold this in all rows."""
    values: Sequence[int]
    """Columns of values that mean nothing to a store."""
    keys: Sequence[_Key]
    tag: bytes


NO_KEYS: Final = BatchKeys(b"", 0, ())
_layouts: Final[dict[int, _Layout]] = {}
"""The last one for each length."""


def read_batch_keys(batch: EncodedBatch, topic: TopicHash | None) -> BatchKeys | None:
    """The tag and the keys of a batch, without keys if ``topic`` is None; None: not uniform."""
    if batch.is_plain:
        return NO_KEYS
    if not batch.width:
        return None
    known = _layouts.get(batch.width)
    found = None if known is None else _read(known, batch, topic)
    if found is not None:
        return found
    layout = _layout(batch.properties_blob[: batch.width])
    found = None if layout is None else _read(layout, batch, topic)
    if found is not None and layout is not None:
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        _layouts[batch.width] = layout
    return found


# Cutting


def _layout(properties: bytes) -> _Layout | None:
    """The columns of strings like this one; None if it is too odd."""
    first = b"\x02%b\x02" % properties
    tag_at, tag_end = find_value(first, TAGS)
    id_at, id_end = find_value(first, UNIQUE_KEY)
    places = [(id_at, id_end)] if id_at else []
    keys_at, keys_end = find_value(first, KEYS)
    places += _words(first, keys_at, keys_end)
    columns = _Columns(properties)
    keys: dict[int, _Key] = {}
    end = 0
    for entry in first[1:-1].split(b"\x02"):
        name, mark, value = entry.partition(b"\x01")
        if b"\x01" in value:
            return None
        start, end = end + 1 + len(name) + len(mark), end + 1 + len(entry)
        inside = [place for place in places if start <= place[0] < end]
        for key_at, key_end in inside:
            last_at = max(key_at, key_end - _END_BYTES)
            head = columns.add(key_at, last_at) if last_at > key_at else -1
            # A space would make two words of one.
            forbidden = _MARKS if key_at == id_at else _MARKS + b" "
            keys[key_at] = _Key(head, columns.add(last_at, key_end), forbidden)
        # Blanks instead of keys must be blanks in all rows: letters there would be keys.
        if value and not inside and start not in (tag_at, keys_at):
            columns.values.append(columns.add(start, end))
    columns.finish()
    return _Layout(
        len(columns.widths),
        "".join([f"{width}s" for width in columns.widths]),
        columns.fixed,
        columns.values,
        [keys[at] for at, _ in places],
        first[tag_at:tag_end],
    )


def _words(first: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    """Where the words of KEYS are."""
    places: list[tuple[int, int]] = []
    for word in first[start:stop].split(b" "):
        if word:
            places.append((start, start + len(word)))
        start += len(word) + 1
    return places


class _Columns:
    """Cuts a string into columns from left to right; the rest is fixed."""

    # Places count from the separator in front of a string, which is not here.
    _SHIFT: Final = -1

    def __init__(self, properties: bytes) -> None:
        self._said = properties
        self._done = 0
        self.widths: list[int] = []
        self.fixed: list[tuple[int, bytes]] = []
        self.values: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Make a column of these places; return its number."""
        self._skip_to(start + self._SHIFT)
        self._done = end + self._SHIFT
        self.widths.append(end - start)
        return len(self.widths) - 1

    def finish(self) -> None:
        """There are no more."""
        self._skip_to(len(self._said))

    def _skip_to(self, place: int) -> None:
        if place > self._done:
            self.fixed.append((len(self.widths), self._said[self._done : place]))
            self.widths.append(place - self._done)


# Reading


def _read(layout: _Layout, batch: EncodedBatch, topic: TopicHash | None) -> BatchKeys | None:
    """The tag and keys of a batch by this layout; None if one of its strings does not fit."""
    count = len(batch.properties)
    columns = cut_rows(layout.row, count, layout.columns, batch.properties_blob)
    for number, held in layout.fixed:
        if columns[number].count(held) != count:
            return None
    for number in layout.values:
        if _has(columns[number], _MARKS):
            return None
    for key in layout.keys:
        if _has(columns[key.end], key.forbidden):
            return None
        if key.head >= 0 and _has(columns[key.head], key.forbidden):
            return None
    if topic is None or not layout.keys:
        return BatchKeys(layout.tag, 0, ())
    hashes = [_hashes(columns, key, topic) for key in layout.keys]
    if len(hashes) == 1:
        return BatchKeys(layout.tag, 1, hashes[0])
    together = list(chain.from_iterable(zip(*hashes, strict=True)))
    return BatchKeys(layout.tag, len(hashes), together)


def _hashes(columns: Sequence[Sequence[bytes]], key: _Key, topic: TopicHash) -> list[int]:
    ends = columns[key.end]
    if key.head < 0:
        return topic.hash_all(b"", ends)
    heads = columns[key.head]
    if heads.count(heads[0]) == len(heads):
        return topic.hash_all(heads[0], ends)
    return topic.hash_all(b"", list(map(add, heads, ends)))


def _has(column: Sequence[bytes], forbidden: bytes) -> bool:
    """Whether one of these bytes is anywhere in the column."""
    first = column[0]
    properties_blob = first if column.count(first) == len(column) else b"".join(column)
    for byte in forbidden:  # noqa: SIM110  # in half of the time of any()
        if byte in properties_blob:
            return True
    return False
