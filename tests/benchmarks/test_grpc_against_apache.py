"""What `benchmarks.grpc_against_apache` does without Java: rows, targets, latencies."""

from __future__ import annotations

import pytest
from benchmarks.against_apache import report
from benchmarks.client_rounds import nameserver
from benchmarks.grpc_against_apache import KINDS, PROGRAMS, REMOTING, ROWS, Row, parse_row, targets
from benchmarks.processes import broker
from benchmarks.sends_beside import compare_latencies


def test_rows_name_a_client_and_its_work() -> None:
    assert parse_row("java-send-64-128") == Row("java", "send-64-128")
    assert parse_row(REMOTING) is None
    assert [parse_row(text) for text in ROWS]


@pytest.mark.parametrize(
    "text", ["", "java", "go-send-1-1", "java-pull-1-1", "java-send-0-128", "java-send-1", "x-y-z"]
)
def test_a_row_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="java-send-64-128"):
        parse_row(text)


def test_both_programs_know_every_kind() -> None:
    for name in ("GrpcLoad.java", "grpc_load.py"):
        text = (PROGRAMS / name).read_text()
        assert all(f'"{kind}"' in text for kind in KINDS)


def test_rates_have_a_target_and_the_cores_have_none() -> None:
    found = {
        "penstock": {"a:messages_per_second": [30.0, 20.0, 10.0], "a:server_cores": [1.0]},
        "apache": {"a:messages_per_second": [10.0, 10.0, 40.0], "a:server_cores": [2.0]},
    }
    (rate,) = targets(report(found), None)
    assert (rate["reached"], rate["met"]) == (2.0, True)
    _, p99 = targets(report(found), {"p99_ratio": 2.5})
    assert (p99["reached"], p99["met"]) == (2.5, False)


def test_sends_are_timed_alone_and_beside_a_load() -> None:
    loads: list[bool] = []
    with broker("--grpc-port", "off") as server:
        found = compare_latencies(nameserver(server), lambda: loads.append(True), 1, 0.02)
    assert loads
    assert found["alone"]["messages"] == found["beside"]["messages"] == 20
    assert found["p99_ratio"] > 0


def test_a_load_that_fails_ends_the_row() -> None:
    def fail() -> None:
        raise RuntimeError("no load")

    with (
        broker("--grpc-port", "off") as server,
        pytest.raises(RuntimeError, match="no load"),
    ):
        compare_latencies(nameserver(server), fail, 1, 0.02)
