"""Offset ids and unique ids."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.model.hosts import pack_host
from penstock.protocol.records.message_ids import (
    UniqueId,
    UniqueIds,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
    unique_id_time,
)

IP = bytes([10, 0, 0, 5])
DAY_MS = 86_400_000


def ms(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("ip", "expected"),
    [
        ("10.0.0.5", "0A00000500002A9F0000000000000400"),
        ("2001:db8::1", "20010DB800000000000000000000000100002A9F0000000000000400"),
    ],
)
def test_the_published_offset_ids_are_made_and_read(ip: str, expected: str) -> None:
    host = pack_host(ip, 10911)
    assert offset_message_id(host, 1024) == expected
    assert parse_offset_message_id(expected) == (host, 1024)
    assert parse_offset_message_id(expected.lower()) == (host, 1024)


@given(
    st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_offset_ids_are_read_back(host: bytes, log_position: int) -> None:
    assert parse_offset_message_id(offset_message_id(host, log_position)) == (host, log_position)


def test_the_published_unique_id_is_made() -> None:
    ids = UniqueIds(IP, 4660, 0x18B4AAC2)
    start = ms(2023, 11, 1)
    for _ in range(7):
        ids.next(start)
    assert ids.next(start + 123456789) == "0A000005123418B4AAC2075BCD150007"


def test_a_unique_id_is_read() -> None:
    parsed = parse_unique_id("0A000005123418B4AAC2075BCD150007")
    assert parsed == UniqueId(IP, 4660, 0x18B4AAC2, 123456789, 7)
    assert unique_id_time(parsed, ms(2023, 11, 20)) == ms(2023, 11, 1) + 123456789


def test_an_id_from_later_in_the_month_than_now_is_of_the_month_before() -> None:
    parsed = UniqueId(IP, 1, 1, 25 * DAY_MS, 0)
    assert unique_id_time(parsed, ms(2024, 1, 3)) == ms(2023, 12, 26)


def test_the_counter_makes_ids_of_one_millisecond_differ_and_wraps() -> None:
    ids = UniqueIds(IP, 1, 1)
    now = ms(2024, 5, 5)
    made = [ids.next(now) for _ in range(65537)]
    assert len(set(made)) == 65536
    assert made[0] == made[65536]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ms(2024, 1, 31, 23), ms(2024, 2, 1)),
        (ms(2023, 12, 31, 23), ms(2024, 1, 1)),
        (ms(2024, 2, 29, 23), ms(2024, 3, 1)),
    ],
)
def test_the_time_starts_again_with_each_month(before: int, after: int) -> None:
    ids = UniqueIds(IP, 1, 1)
    assert parse_unique_id(ids.next(before)).elapsed_ms > 20 * DAY_MS
    assert parse_unique_id(ids.next(after)).elapsed_ms == 0
    # The clock may also be set back.
    assert parse_unique_id(ids.next(before)).elapsed_ms > 20 * DAY_MS


def test_the_month_starts_at_local_midnight() -> None:
    ids = UniqueIds(IP, 1, 1, utc_offset_seconds=8 * 3600)
    made = parse_unique_id(ids.next(ms(2024, 1, 31, 17)))
    assert made.elapsed_ms == 3_600_000
    assert unique_id_time(made, ms(2024, 1, 31, 18), 8 * 3600) == ms(2024, 1, 31, 17)


def test_pid_and_constant_are_cut_to_their_room() -> None:
    parsed = parse_unique_id(UniqueIds(bytes(16), 0x12345, -1).next(ms(2024, 1, 1)))
    assert (parsed.ip, parsed.process_id, parsed.constant) == (bytes(16), 0x2345, 0xFFFF_FFFF)


@given(
    st.binary(min_size=4, max_size=4), st.integers(0, 1 << 40), st.integers(0, 4_000_000_000_000)
)
def test_unique_ids_are_read_back(ip: bytes, number: int, now_ms: int) -> None:
    ids = UniqueIds(ip, number, number)
    made = ids.next(now_ms)
    assert len(made) == ids.length
    assert len(made) == 32
    assert made == made.upper()
    parsed = parse_unique_id(made)
    assert (parsed.ip, parsed.counter) == (ip, 0)
    assert parsed.constant == number & 0xFFFF_FFFF
    assert unique_id_time(parsed, now_ms) == now_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0A",
        " " * 32,
        "é" * 32,
        "0A00000500002A9F00000000000004",
        "0A00000500002A9F00000000000004zz",
        "0A00000500002A9F000000000000040",
        "0A00 0500002A9F0000000000000400 ",
    ],
)
def test_texts_that_are_no_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="hexadecimal"):
        parse_offset_message_id(text)
    with pytest.raises(InvalidArgument, match="hexadecimal"):
        parse_unique_id(text)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="of 5 bytes"):
        UniqueIds(b"12345", 1, 1)


def test_several_ids_are_as_good_as_one_by_one() -> None:
    ids = UniqueIds(b"\x7f\x00\x00\x01", 1234, 5678)
    now_ms = 1_700_000_000_000
    made = [ids.next(now_ms), *ids.several(now_ms, 3), ids.next(now_ms)]
    counters = [parse_unique_id(one).counter for one in made]
    assert counters == [0, 1, 2, 3, 4]
    assert {parse_unique_id(one).elapsed_ms for one in made} == {
        parse_unique_id(made[0]).elapsed_ms
    }
    assert ids.several(now_ms, 0) == []
