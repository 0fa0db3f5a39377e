"""The record of a virtual run."""

from __future__ import annotations

from penstock.testing.virtual_time.trace import Trace


def test_equal_traces_have_equal_digests() -> None:
    one, other = Trace(), Trace()
    for trace in (one, other):
        trace.record(0.0, "connect", 1, "10.0.0.1")
    assert one.digest() == other.digest()
    other.record(1.0, "data", 1, 5)
    assert one.digest() != other.digest()


def test_old_events_are_dropped_but_still_count() -> None:
    small, other = Trace(limit=10), Trace(limit=10)
    for number in range(1000):
        small.record(float(number), "data", number)
        other.record(float(number), "data", number if number else -1)
    assert len(small) == len(other) == 1000
    assert len(small.events) <= 10
    assert small.events[-1] == (999.0, "data", 999)
    assert small.events == other.events
    assert small.digest() != other.digest()


def test_the_digest_does_not_depend_on_the_limit() -> None:
    small, large = Trace(limit=4), Trace(limit=4000)
    for number in range(100):
        for trace in (small, large):
            trace.record(float(number), "timer", number)
    assert small.digest() == large.digest()


def test_events_are_found_by_name() -> None:
    trace = Trace()
    trace.record(0.0, "connect", 1)
    trace.record(0.0, "timer", 2)
    trace.record(1.0, "closed", 1)
    assert trace.named("connect", "closed") == [(0.0, "connect", 1), (1.0, "closed", 1)]
