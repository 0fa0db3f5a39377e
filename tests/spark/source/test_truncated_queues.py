"""Queues that end too early: waited for, given up, or begun anew."""

from __future__ import annotations

import pytest

from penstock import MessageQueue
from penstock.spark.source import truncated_queues
from penstock.spark.source.data_loss import DataLost
from penstock.spark.source.truncated_queues import Cause, TruncatedQueues

QUEUE = MessageQueue("orders", "broker-a", 0)


class Place:
    """A stream at 20 in a queue that ends before it, for a reason that may change."""

    def __init__(self, *, fail: bool, cause: Cause = Cause.UNKNOWN) -> None:
        self.cause = cause
        self.truncated = TruncatedQueues(fail, lambda queue: self.cause)

    def after(self, end: int | None) -> int | None:
        ends = {} if end is None else {QUEUE: end}
        return self.truncated.resolve({QUEUE: 20}, ends).get(QUEUE)

    @property
    def is_waiting(self) -> bool:
        return self.truncated.waiting == [QUEUE]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Used up at once, by the second look."""
    monkeypatch.setattr(truncated_queues, "SHORT_PATIENCE", 0.0)
    return monkeypatch


@pytest.mark.usefixtures("patience")
def test_a_queue_that_stays_short_is_lost_or_gone_on_with_at_its_end() -> None:
    strict, lenient = Place(fail=True), Place(fail=False)
    for place in (strict, lenient):
        assert place.after(10) == 20
        assert place.is_waiting
    with pytest.raises(DataLost, match="ends at 10, and the stream has read up to 20: was"):
        strict.after(10)
    assert lenient.after(10) == 10
    assert not lenient.is_waiting


@pytest.mark.usefixtures("patience")
def test_a_queue_that_is_as_long_again_was_not_lost() -> None:
    place = Place(fail=True)
    assert [place.after(10), place.after(25), place.after(10)] == [20, 25, 20]


def test_a_queue_begun_anew_needs_no_patience() -> None:
    with pytest.raises(DataLost):
        Place(fail=True, cause=Cause.ANEW).after(10)
    assert Place(fail=False, cause=Cause.ANEW).after(10) == 0


@pytest.mark.usefixtures("patience")
def test_a_replica_is_waited_for_without_end_and_its_master_given_time_anew() -> None:
    place = Place(fail=True, cause=Cause.BEHIND)
    assert [place.after(10), place.after(10), place.after(10)] == [20, 20, 20]
    assert not place.is_waiting, "a run up to what is there ends without it"
    place.cause = Cause.UNKNOWN
    assert place.after(10) == 20
    with pytest.raises(DataLost):
        place.after(10)


@pytest.mark.usefixtures("patience")
def test_a_broker_back_from_an_outage_is_given_time_anew() -> None:
    place = Place(fail=True)
    assert [place.after(10), place.after(None), place.after(10)] == [20, None, 20]
