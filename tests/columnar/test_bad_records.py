"""Damaged and unreadable records: what is whole is given, and each bad one is reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.columnar.test_decode import record, rows

from penstock.columnar.bad_records import UNKNOWN_OFFSET, BadRecord
from penstock.columnar.checksums import MIN_ROWS
from penstock.columnar.decode import Wanted, to_batches
from penstock.errors import ProtocolError
from penstock.model.record_layout import BODY_POSITION, head_offset
from penstock.protocol.records.compression import Compression, compress
from penstock.protocol.records.sys_flags import SysFlag

COLUMNS = ("offset", "body", "tags")
POISON = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH


def damaged(data: bytes, position: int, bits: int = 0x01) -> bytes:
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


def decode(
    parts: Sequence[bytes], *, positions: bool = False, columns: tuple[str, ...] = COLUMNS
) -> tuple[dict[int, object], list[BadRecord]]:
    """Bodies by offset, and what was reported; from a pull answer, or from positions in a log."""
    reported: list[BadRecord] = []
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    batches = to_batches(
        b"".join(parts),
        broker="b",
        wanted=Wanted(columns=columns),
        positions=starts if positions else None,
        offsets=np.arange(len(parts)) if positions else None,
        on_bad=reported.append,
    )
    return {row["offset"]: row["body"] for row in rows(list(batches))}, reported  # type: ignore[misc]


@pytest.mark.parametrize("count", [5, MIN_ROWS * 2], ids=["few", "many"])
@pytest.mark.parametrize("positions", [False, True], ids=["pulled", "from a log"])
def test_a_flipped_bit_of_a_body_is_reported_and_the_body_is_null(
    count: int, positions: bool
) -> None:
    parts = [record(offset, b"%06d" % offset) for offset in range(count)]
    parts[3] = damaged(parts[3], BODY_POSITION + 2)
    found, reported = decode(parts, positions=positions)
    assert found == {n: None if n == 3 else b"%06d" % n for n in range(count)}
    assert [(bad.queue_offset, bad.is_damaged) for bad in reported] == [(3, True)]
    assert "checksum" in reported[0].why


def test_a_damaged_body_is_an_error_by_default_and_names_the_message() -> None:
    records = record(0) + damaged(record(1), BODY_POSITION)
    with pytest.raises(ProtocolError, match=r"offset 1 is damaged.*checksum"):
        list(to_batches(records, broker="b", wanted=Wanted()))


def test_a_compressed_body_is_checked_as_it_is_stored() -> None:
    flag = Compression.ZLIB.sys_flag
    whole = record(0, compress(b"a" * 500), sys_flag=flag)
    found, reported = decode(
        [whole, damaged(record(1, compress(b"b"), sys_flag=flag), BODY_POSITION)]
    )
    assert found == {0: b"a" * 500, 1: None}
    assert [(bad.queue_offset, bad.is_damaged) for bad in reported] == [(1, True)]


def test_bodies_that_are_not_read_are_not_checked() -> None:
    records = damaged(record(0), BODY_POSITION)
    (batch,) = to_batches(records, broker="b", wanted=Wanted(columns=("offset",)))
    assert batch.num_rows == 1
    wanted = Wanted(columns=("body",), check_bodies=False)
    (batch,) = to_batches(records, broker="b", wanted=wanted)
    assert batch.to_pydict() == {"body": [b"cody"]}


FEW = ("offset", "body")


@pytest.mark.parametrize(
    ("field", "positions", "columns"),
    [
        ("size", False, COLUMNS),
        ("size", False, FEW),
        ("size", True, COLUMNS),
        ("magic", False, COLUMNS),
        ("magic", True, FEW),
        ("body_length", False, COLUMNS),
        ("body_length", True, COLUMNS),
        ("queue_offset", True, COLUMNS),
        ("queue_offset", True, FEW),
    ],
)
def test_a_damaged_head_costs_one_message(
    field: str, positions: bool, columns: tuple[str, ...]
) -> None:
    parts = [record(offset, b"body %d" % offset) for offset in range(8)]
    for byte in range(4):
        broken = list(parts)
        # A size that stays below the end of the answer, and others that do not.
        broken[2] = damaged(parts[2], head_offset(field) + byte, 0x40)
        found, reported = decode(broken, positions=positions, columns=columns)
        missing = {2} - found.keys()
        assert found == {n: b"body %d" % n for n in range(8) if n not in missing}
        assert [bad.queue_offset for bad in reported] == sorted(missing)
        assert missing or (field == "size" and columns == FEW), "the size is not needed there"


def test_the_offset_of_a_damaged_first_record_is_not_guessed() -> None:
    parts = [record(offset) for offset in range(500, 504)]
    parts[0] = damaged(parts[0], head_offset("magic"))
    found, reported = decode(parts)
    assert list(found) == [501, 502, 503]
    assert [bad.queue_offset for bad in reported] == [UNKNOWN_OFFSET]
    with pytest.raises(ProtocolError, match="a message at an unknown offset is damaged"):
        list(to_batches(b"".join(parts), broker="b", wanted=Wanted()))


def test_the_end_of_an_answer_that_is_no_record_is_reported() -> None:
    found, reported = decode([record(0), record(1), b"\x00" * 200])
    assert found == {0: b"body", 1: b"body"}
    assert [(bad.queue_offset, bad.is_damaged) for bad in reported] == [(2, True)]


@pytest.mark.parametrize(
    "inner",
    [
        record(0, b"an earlier one"),
        damaged(record(5, b"of another queue"), head_offset("queue_id") + 3),
    ],
    ids=["earlier", "another queue"],
)
def test_a_record_within_a_damaged_body_is_no_message(inner: bytes) -> None:
    broken = damaged(record(1, inner + inner), head_offset("size") + 1, 0x40)
    found, reported = decode([record(0), broken, record(2)])
    assert found == {0: b"body", 2: b"body"}
    assert len(reported) == 1


@given(st.data())
def test_whatever_is_damaged_the_other_messages_are_given(data: st.DataObject) -> None:
    parts = [record(n, b"body %d" % n * 3) for n in range(6)]
    victim = data.draw(st.integers(0, 5))
    place = data.draw(st.integers(0, len(parts[victim]) - 1))
    parts[victim] = damaged(parts[victim], place, data.draw(st.integers(1, 255)))
    found, reported = decode(parts, positions=True)
    for number in set(range(6)) - {victim}:
        assert found[number] == b"body %d" % number * 3
    # A damaged property or timestamp has no checksum; all else is right or reported.
    assert found.get(victim) == b"body %d" % victim * 3 or [b.queue_offset for b in reported]


def test_a_poison_message_is_one_row_without_a_body() -> None:
    parts = [record(0), record(1, b"no batch at all", sys_flag=POISON), record(2)]
    found, reported = decode(parts)
    assert found == {0: b"body", 1: None, 2: b"body"}
    assert [(bad.queue_offset, bad.is_damaged) for bad in reported] == [(1, False)]
    # By default, too: one sender's mistake must not keep a topic from being read.
    batches = to_batches(b"".join(parts), broker="b", wanted=Wanted())
    assert [(row["offset"], row["body"], row["tags"]) for row in rows(list(batches))] == [
        (0, b"body", "a"),
        (1, None, "a"),
        (2, b"body", "a"),
    ]


def test_a_poison_message_with_a_compressed_body_is_one_row_too() -> None:
    flag = int(POISON) | Compression.ZLIB.sys_flag
    found, reported = decode([record(0, b"neither", sys_flag=flag), record(1)])
    assert found == {0: None, 1: b"body"}
    assert [bad.is_damaged for bad in reported] == [False]


def test_a_damaged_inner_batch_is_damage() -> None:
    found, reported = decode(
        [damaged(record(0, b"x" * 40, sys_flag=POISON), BODY_POSITION), record(1)]
    )
    assert found == {0: None, 1: b"body"}
    assert [bad.is_damaged for bad in reported] == [True]
