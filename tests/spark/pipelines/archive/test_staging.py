"""What was written aside against what was asked for: which messages are really gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.reports import QueueRange
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.archive.staging import (
    Staged,
    check_asked,
    check_gone,
    check_shared,
    doubtful,
    holes,
)
from penstock.spark.pipelines.spans import Span

CHUNK = [Span("a", 0, 10, 20), Span("a", 1, 0, 5)]


def span(start: int, end: int, queue_id: int = 0) -> Span:
    return Span("a", queue_id, start, end)


def held(low: int, high: int) -> list[QueueRange]:
    return [QueueRange("orders", "a", 0, low, high, 0)]


def staged(*spans: Span, rows: int | None = None) -> Staged:
    counts = tuple(one.count if rows is None else rows for one in spans)
    return Staged("part-0.parquet", "2026-11-16", 1, spans, counts, 0, 0)


def test_rows_that_the_driver_does_not_find_are_no_gap_but_a_directory_that_is_not_shared() -> None:
    check_shared("/data", 15, [staged(*CHUNK)])
    with pytest.raises(InvalidArgument, match=r"wrote 15 rows to /data, .* finds 0 .* share") as no:
        check_shared("/data", 15, [])
    assert "allow-gaps" not in str(no.value)


def test_rows_that_were_not_requested_are_refused() -> None:
    check_asked("orders", CHUNK, [staged(span(10, 15)), staged(span(15, 20), span(0, 5, 1))])
    check_asked("orders", CHUNK, [])
    with pytest.raises(StoreDamaged, match=r"from offset 9 to 20 .* expected 10 from 10 to 20"):
        check_asked("orders", CHUNK, [staged(span(9, 20), rows=5)])
    with pytest.raises(StoreDamaged, match="11 rows from offset 10 to 20"):
        check_asked("orders", CHUNK, [staged(span(10, 20), rows=11)])
    with pytest.raises(StoreDamaged, match="were not requested"):
        check_asked("orders", CHUNK, [staged(span(0, 1, 7))])


def test_holes_are_at_the_front_inside_and_at_the_end() -> None:
    there = [span(16, 18), span(12, 15)]
    assert holes(CHUNK, there) == [span(10, 12), span(15, 16), span(18, 20), span(0, 5, 1)]
    assert holes(CHUNK, CHUNK) == []
    assert holes(CHUNK, []) == CHUNK


@given(st.sets(st.integers(0, 30)))
def test_what_is_there_and_the_holes_are_the_whole_chunk(offsets: set[int]) -> None:
    missing = holes([span(0, 31)], [span(one, one + 1) for one in offsets])
    assert sorted(n for one in missing for n in range(one.start, one.end)) == [
        n for n in range(31) if n not in offsets
    ]


def test_only_what_the_queue_begins_behind_was_simply_deleted() -> None:
    assert doubtful("orders", [span(10, 12)], held(12, 20)) == []
    assert doubtful("orders", [span(10, 12)], held(13, 20)) == []
    assert doubtful("orders", [span(10, 12), span(14, 15)], held(12, 20)) == [span(14, 15)]
    assert doubtful("orders", [span(10, 12)], held(11, 20)) == [span(10, 12)]


def test_a_queue_that_became_shorter_has_no_gap_at_its_end() -> None:
    with pytest.raises(
        NotFound, match=r"messages 15 to 19 of queue 0 .* the queue ends at 15"
    ) as no:
        doubtful("orders", [span(15, 20)], held(0, 15))
    assert "allow-gaps" not in str(no.value)
    with pytest.raises(NotFound, match="the queue is not there"):
        doubtful("orders", [span(15, 20)], [])


def test_what_comes_when_it_is_asked_for_once_more_was_never_gone() -> None:
    check_gone("orders", [span(12, 14)], [span(10, 12), span(14, 20), span(0, 20, 1)])
    with pytest.raises(NotFound, match=r"messages 12 to 13 .* the broker has them.* run it again"):
        check_gone("orders", [span(12, 14)], [span(13, 20)])
