"""Moments and rates as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.times import moment_ms, position
from penstock.errors import InvalidArgument
from penstock.runtime.pacing import Pacer

NOW = datetime(2026, 11, 16, 14, 30, tzinfo=UTC).timestamp()


def at(text: str) -> float:
    return moment_ms(text, option="--from", now=NOW) / 1000


def test_a_moment_with_a_zone_is_that_moment() -> None:
    assert at("2026-11-16T14:30+01:00") == NOW - 3600
    assert at("2026-11-16T14:30:00Z") == NOW


def test_a_moment_without_a_zone_is_local() -> None:
    local = datetime.fromtimestamp(NOW).astimezone().replace(tzinfo=None)
    assert at(local.isoformat()) == NOW
    midnight = local.replace(hour=0, minute=0)
    assert at(midnight.date().isoformat()) == midnight.timestamp()


def test_a_clock_time_is_today() -> None:
    local = datetime.fromtimestamp(NOW).astimezone()
    assert at(f"{local:%H:%M}") == NOW
    assert at("00:00") == local.replace(hour=0, minute=0).timestamp()


@pytest.mark.parametrize("text", ["90m", "-90m", "1h30m", "90m ago", " 90m "])
def test_a_duration_is_so_long_ago(text: str) -> None:
    assert at(text) == NOW - timedelta(minutes=90).total_seconds()


def test_milliseconds_are_milliseconds() -> None:
    assert at("1794839400000") == 1794839400.0


@pytest.mark.parametrize("text", ["", "yesterday", "12", "25:00", "2026-13-01", "10 parsecs"])
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--from .*expected a time such as"):
        at(text)


@pytest.mark.parametrize("text", ["-5", "5 ago", "1.5", "- 5"])
def test_a_number_below_zero_or_with_a_point_needs_a_unit(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"has no unit; expected a time such as"):
        at(text)
    with pytest.raises(InvalidArgument, match=r"^--to .* has no unit; expected first"):
        position(text, option="--to")


class Time:
    """A clock that advances with each sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pacer(self, rate: float | None) -> Pacer:
        return Pacer(rate, clock=lambda: self.now, sleep=self.sleep)


def test_a_rate_spreads_calls_evenly() -> None:
    time = Time()
    pacer = time.pacer(10)
    moments = []
    for _ in range(5):
        pacer.wait()
        moments.append(round(time.now - 100, 3))
    assert moments == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_several_at_once_cost_as_much_as_one_by_one() -> None:
    time = Time()
    pacer = time.pacer(10)
    pacer.wait(20)
    pacer.wait(1)
    assert time.now == pytest.approx(102.0)


def test_a_short_stop_is_made_up_for_and_a_long_one_is_not() -> None:
    time = Time()
    pacer = time.pacer(10)
    pacer.wait()
    time.now += 0.5
    for _ in range(5):
        pacer.wait()
    assert time.now == pytest.approx(100.5)
    time.now += 60
    for _ in range(31):
        pacer.wait()
    assert time.now == pytest.approx(160.5 + 2.0, abs=0.11)


def test_without_a_rate_nothing_waits() -> None:
    time = Time()
    for _ in range(1000):
        time.pacer(None).wait()
    assert time.now == 100.0


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="a rate of"):
        Pacer(rate)
