"""Where records start: runs of one size are found at once, and as one by one."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from penstock.columnar.record_fields import walk
from penstock.errors import ProtocolError
from penstock.protocol.records.codec import encode_record

LENGTHS = (0, 0, 9, 242)


def record(length: int) -> bytes:
    """A record of which the size depends on the length of its body."""
    return encode_record(
        b"orders",
        b"x" * length,
        b"",
        queue_id=0,
        queue_offset=0,
        log_position=0,
        store_timestamp=0,
        born_timestamp=0,
        born_host=bytes(8),
        store_host=bytes(8),
        sys_flag=0,
        reconsume_times=0,
    )


RECORDS = {length: record(length) for length in LENGTHS}


def records(chance: random.Random) -> bytes:
    made: list[bytes] = []
    for _ in range(chance.randrange(1, 12)):
        made += [RECORDS[chance.choice(LENGTHS)]] * chance.choice([1, 1, 2, 3, 64, 65, 66, 200])
    return b"".join(made)


def one_by_one(buffer: bytes) -> list[int]:
    starts, position = [], 0
    while position < len(buffer):
        starts.append(position)
        position += struct.unpack_from(">i", buffer, position)[0]
    return starts


@pytest.mark.parametrize("seed", range(200))
def test_starts_are_those_of_a_walk_record_by_record(seed: int) -> None:
    buffer = records(random.Random(seed))
    found = walk(memoryview(buffer))
    assert found.dtype == np.int64
    assert found.tolist() == one_by_one(buffer)


def test_nothing_has_no_starts() -> None:
    assert walk(memoryview(b"")).tolist() == []


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_run_that_ends_within_a_size_is_refused(left: int) -> None:
    buffer = RECORDS[9] * 100 + RECORDS[9][:left]
    with pytest.raises(ProtocolError):
        walk(memoryview(buffer))


@pytest.mark.parametrize("size", [-1, 0, 3])
def test_a_size_that_is_none_is_refused_after_a_run(size: int) -> None:
    buffer = RECORDS[9] * 100 + struct.pack(">i", size) + RECORDS[9][4:] + RECORDS[9] * 10
    with pytest.raises(ProtocolError):
        walk(memoryview(buffer))


def test_a_cut_last_record_of_a_run_is_listed_for_the_reader_to_refuse() -> None:
    buffer = RECORDS[9] * 99 + RECORDS[9][:-5]
    assert walk(memoryview(buffer)).tolist() == one_by_one(buffer)
