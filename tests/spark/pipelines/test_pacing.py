"""Rows held to a rate, on a clock of their own."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.spark.pipelines.pacing import Pace, check_rate, portion


class Clock:
    """Time that passes only during a sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_rows_pass_at_the_rate_and_not_before_they_are_due() -> None:
    clock = Clock()
    pace = Pace(50.0, clock=clock.time, sleep=clock.sleep)
    passed = []
    for _ in range(11):
        pace.wait(5)
        passed.append(clock.now)
    assert passed[0] == 100.0
    assert passed[-1] == pytest.approx(101.0)


def test_lost_time_is_made_up_for_up_to_one_second() -> None:
    clock = Clock()
    pace = Pace(10.0, clock=clock.time, sleep=clock.sleep)
    pace.wait(1)
    clock.now += 60
    began = clock.now
    for _ in range(30):
        pace.wait(1)
    # Ten of them were due already, the others come ten a second.
    assert clock.now - began == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("rate", "rows"), [(0.5, 1), (5, 1), (100, 10), (50_000, 5000), (1e9, 10_000)]
)
def test_portions_come_often_and_are_never_empty(rate: float, rows: int) -> None:
    assert portion(rate) == rows


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_at_which_nothing_happens_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgument, match="messages a second"):
        check_rate(rate)
