"""The properties of many messages, parsed for all of them at once.

    key 0x01 value 0x02 key 0x01 value 0x02 ...           (see ``model.properties``)

The property texts are concatenated; the positions of both separators then give the keys and values.
The rules are those of ``parse_properties``: entries without a key, a separator or a value are
skipped, of a repeated key the last value counts, bytes that are no UTF-8 become U+FFFD.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.schema import ARROW_TYPES
from penstock.model.properties import parse_properties

Numbers = npt.NDArray[np.int64]

_VALUE_MARK: Final = 1
_END_MARK: Final = 2
_FIRST_NON_ASCII: Final = 0x80
_WORD: Final = 8
_MASKS: Final = np.array(
    [int.from_bytes(b"\xff" * length, "little") for length in range(_WORD + 1)], np.uint64
)
# One bit for each kind of key must fit a signed number.
_MAX_KINDS: Final = 62
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)


class Pieces:
    """Parts of one buffer, from ``starts`` to ``ends``, to be copied out together.

    They are every other element of an array whose offsets are starts and ends in turn; the
    elements between them, which may be invalid, are never read.
    """

    def __init__(self, data: pa.Buffer, starts: Numbers, ends: Numbers) -> None:
        self._count = len(starts)
        bounds = np.empty(2 * self._count + 1, np.int32)
        bounds[0:-1:2], bounds[1::2] = starts, ends
        # The parts may be in any order, but Arrow refuses an end before the beginning.
        bounds[-1] = ends.max(initial=0)
        self._array = pa.Array.from_buffers(
            pa.binary(), 2 * self._count, [None, pa.py_buffer(bounds), data]
        )

    def all(self) -> pa.BinaryArray:
        """Every part, in order."""
        return self.every(0, 1)

    def every(self, first: int, step: int) -> pa.BinaryArray:
        """The parts from ``first`` on, ``step`` apart."""
        return self._array.take(_steps(2 * first, 2 * self._count, 2 * step))

    def first(self, count: int) -> pa.BinaryArray:
        """The first ``count`` parts."""
        return self._array.take(_steps(0, 2 * count, 2))

    def at(self, where: npt.NDArray[np.int32]) -> pa.BinaryArray:
        """The parts with these numbers; null for -1."""
        return self._array.take(pa.array(2 * where, mask=where < 0))


@functools.lru_cache(maxsize=64)
def _steps(first: int, end: int, step: int) -> pa.Array:
    """Indices to take; batches of the same size use the same ones."""
    return pa.array(np.arange(first, end, step, dtype=np.int32))


@functools.lru_cache(maxsize=8)
def _repeated_keys(keys: tuple[bytes, ...], rows: int) -> pa.StringArray:
    """These keys, one row after the other."""
    where = np.tile(np.arange(len(keys), dtype=np.int32), rows)
    return text(pa.array(keys, pa.binary()).take(pa.array(where)))


def text(array: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; what is no UTF-8 becomes U+FFFD. ``array`` must be freshly made."""
    content = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if not len(content) or content.max() < _FIRST_NON_ASCII:
        return array.view(pa.string())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [
            None if item is None else str(item, "utf-8", "replace") for item in array.to_pylist()
        ]
        return pa.array(decoded, pa.string())


class PropertyTable:
    """The pairs of all rows, one after the other."""

    def __init__(self, raw: pa.BinaryArray) -> None:
        """Parse ``raw``, one property text a row; it must start where its buffer does."""
        self._raw = raw = _ended(raw)
        row_ends = _bounds(raw)
        self._data = raw.buffers()[2] or pa.py_buffer(b"")
        content = np.frombuffer(self._data, np.uint8)[: row_ends[-1]]
        starts, marks, ends = _entries(content)
        offsets = _even_offsets(ends, row_ends)
        if offsets is None:
            offsets = np.searchsorted(ends, row_ends)
        is_pair = (marks > starts) & (ends > marks + 1)
        if not is_pair.all():
            kept = np.zeros(len(ends) + 1, np.int64)
            np.cumsum(is_pair, out=kept[1:])
            offsets = kept[offsets]
            starts, marks, ends = starts[is_pair], marks[is_pair], ends[is_pair]
        self._offsets = offsets
        self._lengths = marks - starts
        # The first eight bytes of each key as a number.
        padded = np.concatenate((content, np.zeros(_WORD, np.uint8)))
        self._words = np.ndarray((len(content) + 1,), "<u8", padded, strides=(1,))
        self._heads = self._words[starts] & _MASKS[np.minimum(self._lengths, _WORD)]
        self._starts, self._marks = starts, marks
        self._keys = Pieces(self._data, starts, marks)
        self._values = Pieces(self._data, marks + 1, ends)
        self._rows: Numbers | None = None
        self._width = self._regular_width()

    def _regular_width(self) -> int:
        """The number of pairs a row, if all rows seem to have the same keys in the same order.

        Most messages of one queue do, and then no search is needed. Keys count as the same here if
        their lengths and first eight bytes are.
        """
        rows = len(self._raw)
        width = len(self._heads) // rows if rows else 0
        if not width or not np.array_equal(self._offsets, np.arange(0, rows * width + 1, width)):
            return 0
        heads, lengths = self._heads.reshape(rows, width), self._lengths.reshape(rows, width)
        is_regular = (heads == heads[0]).all() and (lengths == lengths[0]).all()
        return width if is_regular else 0

    @property
    def _row_of_pair(self) -> Numbers:
        if self._rows is None:
            self._rows = np.repeat(np.arange(len(self._raw)), np.diff(self._offsets))
        return self._rows

    def values(self, key: str) -> pa.StringArray:
        """The value of ``key`` (at most 8 ASCII characters) in each row, null where it has none."""
        name = key.encode()
        word = np.uint64(int.from_bytes(name, "little"))
        width, rows = self._width, len(self._raw)
        if width:
            first = (self._heads[:width] == word) & (self._lengths[:width] == len(name))
            if not first.any():
                return pa.nulls(rows, pa.string())
            last = int(np.flatnonzero(first)[-1])
            return text(self._values.every(last, width))
        found = np.flatnonzero((self._heads == word) & (self._lengths == len(name)))
        where = np.full(rows, -1, np.int32)
        # A row that has the key twice is assigned twice; the last one stays.
        where[self._row_of_pair[found]] = found
        return text(self._values.at(where))

    def maps(self) -> pa.MapArray:
        """All pairs of each row as a map."""
        kind = ARROW_TYPES["properties"]
        if self._may_repeat_keys():
            return pa.array([list(parse_properties(row).items()) for row in self._raw_rows()], kind)
        offsets = pa.array(self._offsets.astype(np.int32))
        keys = self._same_keys()
        if keys is None:
            keys = text(self._keys.all())
        return pa.MapArray.from_arrays(offsets, keys, text(self._values.all()), kind)

    def _same_keys(self) -> pa.StringArray | None:
        """The keys of all pairs, if every row certainly has those of the first.

        Then they come from a cache, since the batch before had them, too. A word from either end
        identifies a key of up to sixteen bytes.
        """
        width = self._width
        lengths = self._lengths[:width]
        if not width or lengths.max() > 2 * _WORD:
            return None
        for place in np.flatnonzero(lengths > _WORD).tolist():
            tails = self._words[self._marks[place::width] - _WORD]
            if (tails != tails[0]).any():
                return None
        first = self._keys.first(width).to_pylist()
        return _repeated_keys(tuple(first), len(self._raw))

    def _raw_rows(self) -> list[bytes]:
        rows: list[bytes] = self._raw.to_pylist()
        return rows

    def _may_repeat_keys(self) -> bool:
        """Whether some row may have a key twice; Spark would find the first, not the last.

        Keys that differ only in their middle count as the same here: more rows than needed may
        take the plain path, but none is missed.
        """
        if not len(self._heads):
            return False
        width = self._width
        if width:
            kinds = zip(self._heads[:width].tolist(), self._lengths[:width].tolist(), strict=True)
            if len(set(kinds)) == width:
                return False
        codes = self._heads * _MIX + self._lengths.astype(np.uint64)
        tails = self._words[np.maximum(self._marks - _WORD, self._starts)]
        codes += np.where(self._lengths > _WORD, tails * _MIX * _MIX, np.uint64(0))
        encoded = pc.dictionary_encode(pa.array(codes))
        codes = np.asarray(encoded.indices).astype(np.int64)
        if len(encoded.dictionary) > _MAX_KINDS:
            places = self._row_of_pair * len(encoded.dictionary) + codes
            return len(np.unique(places)) < len(codes)
        bits = np.int64(1) << codes
        # Empty rows would make reduceat take an element of the next row.
        firsts = self._offsets[:-1][self._offsets[:-1] < self._offsets[1:]]
        return not np.array_equal(
            np.add.reduceat(bits, firsts), np.bitwise_or.reduceat(bits, firsts)
        )


def _even_offsets(ends: Numbers, row_ends: Numbers) -> Numbers | None:
    """Where each row's entries begin, if every row has as many; each row ends with an entry."""
    rows = len(row_ends) - 1
    width = len(ends) // rows if rows else 0
    if not width or width * rows != len(ends):
        return None
    if not np.array_equal(ends[width - 1 :: width] + 1, row_ends[1:]):
        return None
    return np.arange(0, rows * width + 1, width)


def _bounds(array: pa.BinaryArray) -> Numbers:
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1].astype(np.int64)


def _ended(raw: pa.BinaryArray) -> pa.BinaryArray:
    """The texts with an end mark each: in some releases the last pair has none."""
    bounds = _bounds(raw)
    ends = bounds[1:][bounds[1:] > bounds[:-1]]
    if not len(ends):
        return raw
    content = np.frombuffer(raw.buffers()[2], np.uint8)
    if (content[ends - 1] == _END_MARK).all():
        return raw
    # A second mark makes an entry without a key, which is skipped.
    return pc.binary_join_element_wise(raw, b"", b"\x02")


def _entries(content: npt.NDArray[np.uint8]) -> tuple[Numbers, Numbers, Numbers]:
    """Start, first value mark and end of each entry; one without a mark has it at its start."""
    marks_and_ends = np.flatnonzero(content <= _END_MARK)
    kinds = content[marks_and_ends]
    if (kinds[0::2] == _VALUE_MARK).all() and (kinds[1::2] == _END_MARK).all():
        marks, ends = marks_and_ends[0::2], marks_and_ends[1::2]
        return _starts(ends), marks, ends
    marks, ends = marks_and_ends[kinds == _VALUE_MARK], marks_and_ends[kinds == _END_MARK]
    starts = _starts(ends)
    if not len(marks):
        return starts, starts, ends
    first = np.searchsorted(marks, starts)
    found = marks[np.minimum(first, len(marks) - 1)]
    return starts, np.where((first < len(marks)) & (found < ends), found, starts), ends


def _starts(ends: Numbers) -> Numbers:
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    return starts
