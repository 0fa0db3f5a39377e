"""Many rows of one binary layout, packed or cut by one call of ``struct`` for all of them.

A loop in Python over 32 rows costs several times as much. The layout of very many rows would take
memory, so these are packed row by row, still without a loop in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Final

MOST_AT_ONCE: Final = 64
_MAX_LAYOUTS: Final = 512


def pack_rows(
    row: str,
    count: int,
    same: list[int | bytes],
    columns: Mapping[int, Sequence[int | bytes]],
    before: bytes = b"",
) -> bytes:
    """``count`` rows, one behind the other, behind what comes ``before``.

    ``row`` is the layout of one row as ``struct`` writes it, without the byte order. ``same`` has
    the values that all rows share; ``columns`` replaces some of them, by place, with a value for
    each row.
    """
    width = len(same)
    if count > MOST_AT_ONCE:
        values = [columns.get(place) or repeat(same[place]) for place in range(width)]
        return b"".join(chain((before,), map(_layout(row, 1).pack, *values)))
    cells = same * count
    for place, column in columns.items():
        cells[place::width] = column
    return before + _layout(row, count).pack(*cells)


def cut_rows(row: str, count: int, width: int, data: bytes | memoryview) -> list[tuple[bytes, ...]]:
    """The ``width`` columns of ``count`` rows."""
    if count > MOST_AT_ONCE:
        return list(zip(*_layout(row, 1).iter_unpack(data), strict=True))
    cells = _layout(row, count).unpack(data)
    return [cells[number::width] for number in range(width)]


@lru_cache(_MAX_LAYOUTS)
def _layout(row: str, count: int) -> Struct:
    return Struct(">" + row * count)
