"""``penstock bench``: it measures what it says and leaves nothing behind."""

from __future__ import annotations

import pytest
from tests.cli.running import succeed

from penstock.cli.bench_tests import Load, Measured, percentile_ms
from penstock.testing.embedded import Embedded

TESTS = 5


def check(report: dict[str, object]) -> None:
    results = report["results"]
    assert isinstance(results, list)
    assert len(results) == TESTS
    for row in results:
        assert row["messages"] >= 40
        assert row["messages_per_second"] > 0
        if row["p50_ms"] is not None:
            assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert [row["p50_ms"] is None for row in results] == [False, False, False, True, False]


def test_a_cluster_is_measured_and_left_as_it_was(cluster: Embedded) -> None:
    topics, groups = cluster.admin.topics(internal=True), cluster.admin.groups()
    report = succeed("bench", "-m", "40", "--rate", "200", "--size", "64", "--json").json
    check(report)
    assert (report["broker"], report["body_bytes"]) == (cluster.namesrv, 64)
    # A consumer that just got its queues lets them wait for half a second: not part of it.
    assert report["results"][4]["p50_ms"] < 250
    # Everything that was sent is consumed: one warm-up for each of the three tests that send.
    assert report["results"][3]["messages"] == 3 * 41
    assert cluster.admin.topics(internal=True) == topics
    assert cluster.admin.groups() == groups


def test_without_a_cluster_it_brings_its_own_broker() -> None:
    assert "127.0.0.1:9876" not in succeed("bench", "--help").out
    done = succeed("bench", "-m", "40", "--rate", "200")
    assert "a broker of its own" in done.out
    assert "p99 ms" in done.out
    assert len(done.lines) == TESTS + 2


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    latencies = [n / 1000 for n in range(1, 101)]
    assert percentile_ms(latencies, 0.50) == 50
    assert percentile_ms(latencies, 0.99) == 99
    assert percentile_ms(latencies, 1.0) == 100
    assert percentile_ms([0.001], 0.01) == 1
    assert percentile_ms([], 0.5) is None


def test_a_row_has_rates_of_messages_and_bytes() -> None:
    row = Measured("x", 1000, 2.0).row(size=2000)
    assert row["messages_per_second"] == 500
    assert row["megabytes_per_second"] == pytest.approx(1.0)


def test_slow_tests_are_kept_short() -> None:
    load = Load("t", messages=1_000_000, size=10, in_flight=1, rate=100)
    assert load.one_by_one == 2000
    assert load.end_to_end == 300
    assert Load("t", messages=5, size=10, in_flight=1, rate=100).end_to_end == 5
