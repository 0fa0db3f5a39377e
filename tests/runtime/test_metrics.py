"""Counters, gauges, histograms and their text."""

from __future__ import annotations

import math

import pytest

from penstock.errors import InvalidArgument
from penstock.runtime.metrics import OTHER, Registry


def test_the_text_is_what_prometheus_reads() -> None:
    registry = Registry()
    messages = registry.counter("rocketmq_messages_in_total", "Messages in.", ("topic", "type"))
    messages.labels("orders", "normal").value += 3
    messages.labels("orders", "delay").value += 0.5
    registry.gauge("rocketmq_broker_permission", "Permission bits.").labels().value = 6
    assert registry.text() == (
        "# HELP rocketmq_messages_in_total Messages in.\n"
        "# TYPE rocketmq_messages_in_total counter\n"
        'rocketmq_messages_in_total{topic="orders",type="normal"} 3\n'
        'rocketmq_messages_in_total{topic="orders",type="delay"} 0.5\n'
        "# HELP rocketmq_broker_permission Permission bits.\n"
        "# TYPE rocketmq_broker_permission gauge\n"
        "rocketmq_broker_permission 6\n"
    )


def test_a_series_is_made_once_and_kept() -> None:
    family = Registry().counter("x_total", "X.", ("topic",))
    assert family.labels("a") is family.labels("a")
    assert family.labels("a") is not family.labels("b")
    assert len(family) == 2


def test_a_histogram_counts_below_each_bound() -> None:
    registry = Registry()
    latency = registry.histogram("latency_seconds", "L.", ("topic",), bounds=(0.1, 1, 10))
    series = latency.labels("t")
    for value in (0.05, 0.1, 0.5, 5, 50):
        series.observe(value)
    assert series.count == 5
    assert registry.text().splitlines()[2:] == [
        'latency_seconds_bucket{topic="t",le="0.1"} 2',
        'latency_seconds_bucket{topic="t",le="1"} 3',
        'latency_seconds_bucket{topic="t",le="10"} 4',
        'latency_seconds_bucket{topic="t",le="+Inf"} 5',
        'latency_seconds_sum{topic="t"} 55.65',
        'latency_seconds_count{topic="t"} 5',
    ]


def test_a_gauge_may_be_asked_when_scraped() -> None:
    registry = Registry()
    now = [1.0]
    registry.gauge("lag", "Lag.").labels().function = lambda: now[0]
    assert "lag 1\n" in registry.text()
    now[0] = math.inf
    assert "lag +Inf\n" in registry.text()
    now[0] = -math.inf
    assert "lag -Inf\n" in registry.text()
    now[0] = math.nan
    assert "lag NaN\n" in registry.text()


def test_label_values_are_escaped() -> None:
    registry = Registry()
    registry.counter("x_total", "back\\slash\nand line", ("topic",)).labels('a"b\\c\nd').value = 1
    assert registry.text() == (
        "# HELP x_total back\\\\slash\\nand line\n"
        "# TYPE x_total counter\n"
        'x_total{topic="a\\"b\\\\c\\nd"} 1\n'
    )


def test_labels_are_bounded_and_the_rest_counted_together() -> None:
    family = Registry(max_series=3).counter("x_total", "X.", ("topic",))
    for number in range(100):
        family.labels(f"topic-{number}").value += 1
    assert len(family) == 4
    assert family.labels(OTHER).value == 97
    assert family.labels("topic-0").value == 1


def test_series_of_what_is_gone_are_removed() -> None:
    registry = Registry()
    family = registry.counter("x_total", "X.", ("topic",))
    family.labels("old").value += 1
    family.labels("kept").value += 1
    family.remove(lambda values: values[0] == "old")
    assert "old" not in registry.text()
    assert "kept" in registry.text()


def test_wrong_names_labels_and_bounds_are_refused() -> None:
    registry = Registry()
    family = registry.counter("x_total", "X.", ("topic",))
    with pytest.raises(InvalidArgument, match="one value each for topic"):
        family.labels("a", "b")
    with pytest.raises(InvalidArgument, match="registered twice"):
        registry.gauge("x_total", "Again.")
    with pytest.raises(InvalidArgument, match="is no metric name"):
        registry.counter("9lives", "No.")
    with pytest.raises(InvalidArgument, match="is no label name"):
        registry.counter("y_total", "Y.", ("a-b",))
    for bounds in ((), (2, 1), (1, 1)):
        with pytest.raises(InvalidArgument, match="numbers that grow"):
            registry.histogram("h", "H.", bounds=bounds)
