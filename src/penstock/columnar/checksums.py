"""The checksums of many bodies, checked together.

There is no function that computes the checksums of many values at once, and a call for each value
costs more than decoding it. But a CRC is linear: of bodies of one length, the checksum of their
exclusive or is the exclusive or of their checksums (a constant of the length left aside), and zeros
before a body do not change it. So bodies of similar lengths are filled up with zeros and folded,
up to 128 into one, and one call checks all of them. Those that are folded into one are far apart:
damage to neighbours, as by a lost disk sector, shows in many results and cannot cancel itself out.
Only bodies behind a wrong result are checked one by one.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.buffers import offsets_of
from penstock.model.record_layout import CRC_MASK

Numbers = npt.NDArray[np.int64]

Bytes = npt.NDArray[np.uint8]

FOLDED: Final = 128
"""The number of bodies that one call checks, at most."""
MIN_APART: Final = 32
"""Between two bodies that are folded into one there are so many others, less one."""
MIN_ROWS: Final = 4 * MIN_APART
"""For fewer of similar lengths, folding costs more than it saves."""
_SIMILAR_BITS: Final = 6  # bodies of 64 to 127 bytes are folded together, and so on


def wrong_bodies(bodies: pa.Array, stated: Numbers) -> Numbers:
    """The numbers of the bodies whose checksum is not ``stated``, in order."""
    if not len(bodies):
        return np.empty(0, np.int64)
    offsets = offsets_of(bodies).astype(np.int64)
    data = np.frombuffer(bodies.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    width = int(lengths[0])
    if width and len(bodies) >= MIN_ROWS and (lengths == width).all():
        # What most topics have; every step less is felt here.
        rows = data[offsets[0] : offsets[-1]].reshape(-1, width)
        found = _suspects(rows, stated ^ _constant(width))
        return _wrong_among(data, offsets, stated, found) if len(found) else found
    suspects: list[Numbers] = []
    for group in _of_similar_lengths(lengths):
        width = int(lengths[group].max())
        # The window of the first ones would begin before the data.
        is_outside = offsets[group + 1] < width
        inside = group[~is_outside] if is_outside.any() else group
        if len(inside) < MIN_ROWS or not width:
            suspects.append(group)
            continue
        suspects.append(group[is_outside])
        rows = _rows(data, offsets, inside, width)
        suspects.append(inside[_suspects(rows, stated[inside] ^ _constants(lengths[inside]))])
    return _wrong_among(data, offsets, stated, np.sort(np.concatenate(suspects)))


def _of_similar_lengths(lengths: Numbers) -> list[Numbers]:
    """The numbers of the bodies, in groups whose lengths differ little."""
    similar = (lengths >> _SIMILAR_BITS).astype(np.int32)
    if similar.min() == similar.max():
        return [np.arange(len(lengths))]
    order = np.argsort(similar, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(similar[order])) + 1)


def _rows(data: Bytes, offsets: Numbers, numbers: Numbers, width: int) -> Bytes:
    """The bodies as rows of one width, with zeros before the shorter ones."""
    ends = offsets[numbers + 1]
    lengths = ends - offsets[numbers]
    shortest = int(lengths.min())
    windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    rows = windows[ends - width].view(np.uint8).reshape(-1, width)
    # What stands before a shorter body is the end of another.
    filled = width - shortest
    rows[:, :filled] *= np.arange(filled) >= (width - lengths)[:, None]
    return rows


def _constants(lengths: Numbers) -> Numbers | int:
    """What the lengths of bodies add to their checksums."""
    first = int(lengths[0])
    if (lengths == first).all():
        return _constant(first)
    distinct, places = np.unique(lengths, return_inverse=True)
    return np.array([_constant(length) for length in distinct.tolist()], np.int64)[places]


@functools.lru_cache(maxsize=4096)
def _constant(length: int) -> int:
    return zlib.crc32(bytes(length)) & CRC_MASK


def _suspects(rows: Bytes, linear: Numbers) -> Numbers:
    """The places of rows that may be wrong; ``linear`` are their checksums without constants."""
    count = max(MIN_APART, -(-len(rows) // FOLDED))
    width = rows.shape[1]
    folded = _fold(rows, count).tobytes()
    expected: Numbers = _fold(linear.reshape(-1, 1), count).ravel() ^ _constant(width)
    found = np.fromiter(
        (zlib.crc32(folded[at : at + width]) for at in range(0, len(folded), width)),
        np.int64,
        count,
    )
    wrong = np.flatnonzero((found & CRC_MASK) != expected)
    if not len(wrong):
        return wrong
    return np.flatnonzero(np.isin(np.arange(len(rows)) % count, wrong))


def _fold(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """``count`` rows: each the exclusive or of every ``count``-th row."""
    whole = len(rows) // count * count
    each: npt.NDArray[Any] = rows[:whole].reshape(whole // count, -1)
    folded: npt.NDArray[Any] = np.bitwise_xor.reduce(each, axis=0).reshape(count, -1)
    folded[: len(rows) - whole] ^= rows[whole:]
    return folded


def _wrong_among(data: Bytes, offsets: Numbers, stated: Numbers, numbers: Numbers) -> Numbers:
    """Those of the bodies with these numbers that are wrong."""
    content = data.data
    checksums = np.fromiter(
        (
            zlib.crc32(content[start:end])
            for start, end in zip(
                offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True
            )
        ),
        np.int64,
        len(numbers),
    )
    wrong: Numbers = numbers[(checksums & CRC_MASK) != stated[numbers]]
    return wrong
