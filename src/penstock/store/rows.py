"""Many fixed-width rows of numbers packed at once, and columns of rows that are all alike.

`struct.pack` in a loop costs a call and a dozen objects a row. Here a field of all rows is put in
place by one strided copy for each of its bytes, whatever the number of rows.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final

_WIDTHS: Final = {"i": 4, "q": 8}
_IS_LITTLE: Final = sys.byteorder == "little"


def big_endian(code: str, numbers: Sequence[int]) -> array[int]:
    """Numbers of four ("i") or eight ("q") bytes, with their bytes in the order of files."""
    cells = array(code, numbers)
    if _IS_LITTLE:
        cells.byteswap()
    return cells


def pack_rows(codes: str, columns: Sequence[Sequence[int]]) -> bytearray:
    """What ``struct.pack(">" + codes, *row)`` gives for all rows, one behind the other.

    ``codes`` are "i" and "q"; ``columns`` holds the numbers of each field, of all rows.
    """
    width = sum(_WIDTHS[code] for code in codes)
    rows = bytearray(width * len(columns[0]))
    at = 0
    for code, column in zip(codes, columns, strict=True):
        put_column(rows, at, width, code, column)
        at += _WIDTHS[code]
    return rows


def put_column(rows: bytearray, at: int, width: int, code: str, column: Sequence[int]) -> None:
    """Put the numbers of one field into rows of ``width`` bytes, ``at`` bytes from their start."""
    size = _WIDTHS[code]
    raw = big_endian(code, column).tobytes()
    for place in range(size):
        rows[at + place :: width] = raw[place::size]
