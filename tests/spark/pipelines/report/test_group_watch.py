"""What looks at consumer groups tell: lag over time, and which messages were consumed when."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.spark.pipelines.report.data import Point, Sample
from penstock.spark.pipelines.report.group_watch import Consumed, GroupWatch, consumed, lag_series


def sample(at: int, queue: int, committed: int, lag: int, before: int, group: str = "g") -> Sample:
    return Sample(at, group, "orders", "a", queue, committed, lag, before)


def test_messages_were_consumed_between_the_looks_that_found_them_so() -> None:
    looks = [sample(100, 0, 5, 3, 100), sample(100, 1, 0, 0, 100), sample(200, 0, 8, 0, 150)]
    assert consumed(looks) == [Consumed("g", "orders", "a", 0, 5, 8, 150, 200)]


def test_a_group_that_was_set_back_consumes_again_from_there() -> None:
    looks = [sample(1, 0, 9, 0, 1), sample(2, 0, 4, 5, 1), sample(3, 0, 6, 3, 2)]
    assert consumed(looks) == [Consumed("g", "orders", "a", 0, 4, 6, 2, 3)]


def test_lag_is_that_of_all_queues_and_lasts_until_it_changes() -> None:
    looks = [
        sample(1000, 0, 0, 10, 1000),
        sample(1000, 1, 0, 5, 1000),
        sample(2000, 0, 8, 2, 1500),
        sample(3000, 0, 0, 1, 3000, group="other"),
    ]
    series = lag_series(looks, points=2)
    assert series == {
        "g": [Point(1000, 15), Point(2000, 7), Point(3000, 7)],
        "other": [Point(3000, 1)],
    }


def test_a_watch_without_time_between_looks_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="interval 0"):
        GroupWatch(interval=0)
