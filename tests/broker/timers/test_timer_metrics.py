"""Counts of waiting timer messages by topic."""

from __future__ import annotations

from penstock.broker.timers.timer_metrics import TimerMetrics


def test_deleted_topics_leave_the_file_when_nothing_waits_for_them() -> None:
    topics = {"kept", "deleted"}
    metrics = TimerMetrics(lambda: 1000, topics.__contains__)
    metrics.add({"kept": 1, "deleted": 2})
    metrics.add({"kept": -1, "deleted": -1})
    topics.remove("deleted")
    metrics.dump()
    assert {topic: row.count for topic, row in metrics.table().timing_count.items()} == {
        "kept": 0,
        "deleted": 1,
    }
    metrics.add({"deleted": -1})
    loaded = TimerMetrics(lambda: 2000, topics.__contains__)
    loaded.load(metrics.dump())
    assert loaded.table().timing_count.keys() == {"kept"}
