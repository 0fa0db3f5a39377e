"""Which recorded gaps may have messages of a time. No Spark here."""

from __future__ import annotations

import logging

import pytest

from penstock.spark.pipelines.archive.gaps import check_gaps, gaps_within
from penstock.spark.pipelines.archive.state import DataFile, State
from penstock.spark.pipelines.spans import Span
from penstock.spark.source.data_loss import DataLost

GAP = Span("broker-a", 0, 10, 20)


def file(from_ms: int, to_ms: int, *spans: Span) -> DataFile:
    return DataFile(f"part-{from_ms}.parquet", "2026-11-16", 10, 1, from_ms, to_ms, spans)


STATE = State(
    "orders",
    gaps=(GAP,),
    files=(
        file(100, 200, Span("broker-a", 0, 0, 10), Span("broker-a", 1, 0, 90)),
        file(300, 400, Span("broker-a", 0, 20, 30)),
        file(500, 600, Span("broker-a", 0, 30, 40), Span("broker-a", 1, 90, 99)),
    ),
)


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "is_within"),
    [
        (None, None, True),
        (None, 100, False),
        (None, 101, True),
        (200, 300, True),
        (400, None, True),
        (401, None, False),
        (500, 600, False),
    ],
)
def test_the_files_beside_a_gap_say_when_it_was(
    start_ms: int | None, end_ms: int | None, is_within: bool
) -> None:
    assert gaps_within(STATE, start_ms, end_ms) == [GAP] * is_within


@pytest.mark.parametrize(
    "files", [(), (file(100, 200),), (file(1, 2, Span("broker-b", 0, 0, 99)),)]
)
def test_a_gap_without_files_of_its_queue_may_be_of_any_time(files: tuple[DataFile, ...]) -> None:
    state = State("orders", gaps=(GAP,), files=files)
    for bounds in ((None, None), (5000, 6000), (None, 1), (9000, None)):
        assert gaps_within(state, *bounds) == [GAP]


def test_a_gap_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLost, match=r"messages 10 to 19 of queue 0 of broker broker-a .*DIR"):
        check_gaps(STATE, "DIR", None, None, fail_on_data_loss=True)
    with caplog.at_level(logging.WARNING):
        check_gaps(STATE, "DIR", None, None, fail_on_data_loss=False)
    assert "messages 10 to 19" in caplog.text
    check_gaps(STATE, "DIR", 500, None, fail_on_data_loss=True)
