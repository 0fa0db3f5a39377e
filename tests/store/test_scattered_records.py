"""Records at equal distances are cut out by one call; the plain way is to take each."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.scattered_records import at_equal_distances


def taken(whole: bytes, positions: list[int], sizes: list[int]) -> bytes:
    first = positions[0]
    return b"".join(
        whole[at - first : at - first + size] for at, size in zip(positions, sizes, strict=True)
    )


@given(
    first=st.integers(0, 1 << 40),
    count=st.integers(2, 200),
    size=st.integers(1, 50),
    gap=st.integers(1, 50),
    changed=st.none() | st.tuples(st.integers(0, 199), st.sampled_from(["at", "size"])),
    by=st.sampled_from([-1, 1, -60, 60]),
)
def test_the_records_are_those_that_the_plain_way_takes(
    first: int, count: int, size: int, gap: int, changed: tuple[int, str] | None, by: int
) -> None:
    positions = [first + n * (size + gap) for n in range(count)]
    sizes = [size] * count
    whole = os.urandom(positions[-1] + size - first)
    if changed is not None:
        # An entry of the queue is wrong; what the reader cut out of the log is as it was.
        (positions if changed[1] == "at" else sizes)[changed[0] % count] += by
    found = at_equal_distances(memoryview(whole), tuple(positions), tuple(sizes))
    if changed is None:
        assert found == taken(whole, positions, sizes)
    elif count > 2 or changed[1] == "size":
        assert found is None
    else:
        assert found is None or found == taken(whole, positions, sizes)


def test_records_side_by_side_or_in_one_place_are_not_cut() -> None:
    whole = memoryview(bytes(100))
    assert at_equal_distances(whole, (0, 50), (50, 50)) is None
    assert at_equal_distances(whole[:50], (0, 0), (50, 50)) is None
    assert at_equal_distances(whole, (50, 0), (50, 50)) is None
    assert at_equal_distances(whole, (0, 100), (0, 0)) is None
