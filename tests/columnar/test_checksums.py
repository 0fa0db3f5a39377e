"""Folded checksums find exactly the bodies that a check of each single body finds."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.checksums import FOLDED, MIN_ROWS, wrong_bodies
from penstock.model.record_layout import CRC_MASK


def stated(bodies: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([zlib.crc32(body) & CRC_MASK for body in bodies], np.int64)


def flipped(body: bytes, bit: int) -> bytes:
    damaged = bytearray(body)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def found(bodies: list[bytes], checksums: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    numbers: list[int] = wrong_bodies(pa.array(bodies, pa.binary()), checksums).tolist()
    return numbers


@given(
    st.integers(0, 1 << 30),
    st.integers(1, 20 * FOLDED),
    st.sampled_from([(0, 0), (5, 5), (40, 40), (0, 200), (100, 140), (1, 3000)]),
    st.integers(0, 5),
)
def test_any_damaged_bodies_are_found_and_no_others(
    seed: int, count: int, lengths: tuple[int, int], damaged: int
) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.randint(*lengths)) for _ in range(count)]
    checksums = stated(bodies)
    expected = sorted(chance.sample(range(count), min(damaged, count)))
    expected = [number for number in expected if bodies[number]]
    for number in expected:
        body = bodies[number]
        bodies[number] = flipped(body, chance.randrange(8 * len(body)))
    assert found(bodies, checksums) == expected


@pytest.mark.parametrize("length", [16, 300])
def test_the_same_damage_to_neighbours_does_not_cancel_out(length: int) -> None:
    bodies = [b"x" * length] * (MIN_ROWS * 4)
    checksums = stated(bodies)
    # Sixteen equal bodies that lost the same bytes, as in a sector of zeros.
    for number in range(100, 116):
        bodies[number] = bytes(length)
    assert found(bodies, checksums) == list(range(100, 116))


def test_a_wrong_stated_checksum_is_found() -> None:
    bodies = [b"%05d" % number for number in range(MIN_ROWS * 2)]
    checksums = stated(bodies)
    checksums[[0, 77, len(bodies) - 1]] ^= 1
    assert found(bodies, checksums) == [0, 77, len(bodies) - 1]


@pytest.mark.parametrize("count", range(MIN_ROWS, MIN_ROWS + FOLDED + 1))
def test_the_last_one_is_checked_for_any_number_of_bodies(count: int) -> None:
    bodies = [b"%05d" % number for number in range(count)]
    checksums = stated(bodies)
    checksums[-1] ^= 1
    assert found(bodies, checksums) == [count - 1]


def test_short_bodies_before_longer_ones_are_checked() -> None:
    bodies = [b"a", b"bc", *(b"%040d" % number for number in range(MIN_ROWS * 2))]
    checksums = stated(bodies)
    checksums[[0, 1]] ^= 1
    assert found(bodies, checksums) == [0, 1]


def test_a_slice_of_an_array_is_checked_alone() -> None:
    bodies = [b"%05d" % number for number in range(MIN_ROWS * 2)]
    checksums = stated(bodies)
    checksums[3] ^= 1
    part = pa.array(bodies, pa.binary())[2:]
    assert wrong_bodies(part, checksums[2:]).tolist() == [1]
    assert wrong_bodies(part[2:], checksums[4:]).tolist() == []


def test_no_bodies_are_none_wrong() -> None:
    assert found([], np.array([], np.int64)) == []
