"""Many records of one queue, taken from among those of other queues: a fast path of `reading`.

Queues that are filled in turns by one kind of message leave records of one size at equal distances,
and `struct` cuts out all of them in one call. Others take the plain path, which is the
specification: `Reader._pieces`. The bytes are the same.
"""

from __future__ import annotations

from itertools import chain
from struct import Struct


def at_equal_distances(
    whole: memoryview, positions: tuple[int, ...], sizes: tuple[int, ...]
) -> bytes | None:
    """The records one behind the other; None if they are not alike.

    ``whole`` begins with the first record and ends with the last one.
    """
    first, size, count = positions[0], sizes[0], len(positions)
    distance = positions[1] - first
    last_at = distance * (count - 1)
    if (
        not 0 < size < distance
        or len(whole) != last_at + size
        or sizes.count(size) != count
        or positions != tuple(range(first, first + last_at + 1, distance))
    ):
        return None
    others = Struct(f"{size}s{distance - size}x").iter_unpack(whole[:last_at])
    return b"".join([*chain.from_iterable(others), whole[last_at:]])
