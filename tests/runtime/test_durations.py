"""Durations as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.errors import InvalidArgument
from penstock.runtime.durations import milliseconds, seconds


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (3, 3.0),
        (0.5, 0.5),
        (0, 0.0),
        (timedelta(minutes=2), 120.0),
        ("10s", 10.0),
        ("500ms", 0.5),
        ("2h", 7200.0),
        ("1m", 60.0),
        ("3d", 259_200.0),
        ("1h30m", 5400.0),
        ("1h 30m 5s", 5405.0),
        ("1.5h", 5400.0),
        (" 10 s ", 10.0),
        ("10S", 10.0),
        ("15", 15.0),
        ("0.25", 0.25),
    ],
)
def test_every_form_gives_seconds(written: float | str | timedelta, meant: float) -> None:
    assert seconds(written) == pytest.approx(meant)


@pytest.mark.parametrize(
    "written",
    ["", "soon", "10x", "s", "1h-5m", "-5s", -1, float("nan"), float("inf"), "1" * 100 + "s",
     True, None, b"10s", "10s!", timedelta(seconds=-1), "1e5"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(InvalidArgument, match="is not a duration; expected seconds"):
        seconds(written)  # type: ignore[arg-type]  # the point of the test


def test_a_bad_duration_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="soon"):
        seconds("soon")


def test_negative_ones_only_where_they_make_sense() -> None:
    assert seconds("-1h30m", allow_negative=True) == -5400.0
    assert seconds(-5, allow_negative=True) == -5.0
    assert seconds("-5", allow_negative=True) == -5.0


def test_milliseconds_are_whole() -> None:
    assert milliseconds("1.5s") == 1500
    assert milliseconds(0.0015) == 2
    assert milliseconds(timedelta(hours=1)) == 3_600_000
