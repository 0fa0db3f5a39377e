"""The text of metrics: escaped, bounded, and read by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.metrics.exposition import (
    OTHER,
    Family,
    Histogram,
    bounded,
    common_labels,
    write,
)


def written(*families: Family | Histogram, common: str = "") -> str:
    return "".join(write(families, common))


@given(st.text(), st.text(), st.integers() | st.floats(allow_nan=False))
def test_any_text_is_a_label(topic: str, cluster: str, value: float) -> None:
    family = Family("f", "gauge", "Help.", ("topic",), [((topic,), value)])
    text = written(family, common=common_labels([("cluster", cluster)]))
    [read] = text_string_to_metric_families(text)
    [sample] = read.samples
    assert sample.value == float(value)

    def kept(label: str) -> str:
        return label.encode("utf-8", "replace").decode()

    assert sample.labels == {"cluster": kept(cluster), "topic": kept(topic)}


def test_a_family_without_series_is_left_out() -> None:
    assert written(Family("f", "gauge", "Help.", ("topic",), [])) == ""


def test_a_histogram_is_cumulative() -> None:
    text = written(Histogram("h", "Help.", (0.1, 1.0), [2, 3, 1], 4.5), common='a="b"')
    [read] = text_string_to_metric_families(text)
    assert read.type == "histogram"
    values = {(s.name, s.labels.get("le")): s.value for s in read.samples}
    assert values == {
        ("h_bucket", "0.1"): 2,
        ("h_bucket", "1.0"): 5,
        ("h_bucket", "+Inf"): 6,
        ("h_sum", None): 4.5,
        ("h_count", None): 6,
    }


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_none_are_written_as_prometheus_has_them(value: float) -> None:
    text = written(Family("f", "gauge", "Help.", (), [((), value)]))
    [read] = text_string_to_metric_families(text)
    assert repr(read.samples[0].value) == repr(value)


@pytest.mark.spec("O6")
def test_beyond_the_bound_the_largest_gauges_stay_and_the_rest_is_a_sum() -> None:
    rows = [((f"g{n}", "false"), n) for n in range(100)]
    family = Family("f", "gauge", "Help.", ("consumer_group", "is_retry"), rows)
    kept, dropped = bounded(family, 10)
    assert dropped == 91
    assert len(kept.rows) == 10
    assert dict(kept.rows)[OTHER, "false"] == sum(range(91))
    assert dict(kept.rows)["g99", "false"] == 99
    latency = Family("f", "gauge", "", ("consumer_group", "is_retry"), rows, rest_is_largest=True)
    assert dict(bounded(latency, 10)[0].rows)[OTHER, "false"] == 90


@pytest.mark.spec("O6")
def test_beyond_the_bound_the_first_counters_stay() -> None:
    rows = [((f"t{n}",), 1) for n in range(30)]
    kept, dropped = bounded(Family("f", "counter", "Help.", ("topic",), rows), 10)
    assert [labels[0] for labels, _ in kept.rows] == [*(f"t{n}" for n in range(9)), OTHER]
    assert (dict(kept.rows)[(OTHER,)], dropped) == (21, 21)
    assert bounded(Family("f", "counter", "Help.", ("topic",), rows), 30)[1] == 0
