"""The comparison with the peers: its load, its plan and its report; no peer is needed."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers import load, plan
from benchmarks.peers.__main__ import (
    PARTS,
    growth_of,
    java_of,
    main,
    options_of,
    plan_of,
    spark_of,
)
from benchmarks.peers.adapter import Adapter, Setup, Take, ThreadWindow, Window
from benchmarks.peers.growth import SHORT_GROWTH, TINY_GROWTH, fitting, run_growth
from benchmarks.peers.java_client import FULL_JAVA
from benchmarks.peers.rounds import Found, RowFailed, Worker, run_plan
from benchmarks.peers.servers.penstock import Penstock
from benchmarks.peers.servers.server import Unavailable, allocated_bytes, answering, free_ports
from benchmarks.peers.spark.plan import FULL_SPARK
from benchmarks.peers.worker import Task, drain, send

from benchmarks import report

# The load


def test_a_body_has_its_size_and_tells_when_it_was_sent() -> None:
    made = load.body(128, load.COUNTED, 12.5)
    assert len(made) == 128
    assert load.stamp_of(made) == (load.COUNTED, 12.5)


def test_an_overslept_generator_is_not_the_clients_fault() -> None:
    assert load.sent_at(due=10.0, woken=10.3) == 10.3


def test_a_client_that_holds_the_generator_up_pays_for_it() -> None:
    assert load.sent_at(due=10.2, woken=10.0) == 10.2


def test_percentiles_are_ages_that_were_seen() -> None:
    ages = [n / 1000 for n in range(1, 1001)]
    assert load.percentiles(ages) == {"p50_ms": 501.0, "p99_ms": 991.0, "p999_ms": 1000.0}
    assert load.percentiles([0.004]) == {"p50_ms": 4.0, "p99_ms": 4.0, "p999_ms": 4.0}


def test_a_drain_ends_with_the_last_message() -> None:
    found = load.Drain(3, seconds=60)
    assert [found.take(b"") for _ in range(3)] == [False, False, True]
    assert found.count == 3
    assert found.per_second() == pytest.approx(2 / (found.ended - found.began))


def test_a_drain_ends_when_its_time_is_over() -> None:
    found = load.Drain(1000, seconds=0)
    assert [found.take(b""), found.take(b"")] == [False, True]
    assert found.count == 2


def test_messages_that_come_after_the_end_do_not_count() -> None:
    found = load.Drain(2, seconds=60)
    found.take(b"")
    found.take(b"")
    ended = found.ended
    found.take(b"")
    assert (found.count, found.ended) == (2, ended)


def test_warm_up_messages_have_no_age() -> None:
    found = load.Ages(1)
    assert not found.take(load.body(20, load.WARM_UP, 0.0))
    assert found.warm
    assert found.take(load.body(20, load.COUNTED, time.perf_counter()))
    assert len(found.seconds) == 1


def test_sending_ends_at_its_deadline() -> None:
    assert list(load.until(time.perf_counter() - 1, b"x")) == []
    assert next(load.until(time.perf_counter() + 60, b"x")) == b"x"


# Windows


async def test_a_window_waits_for_the_oldest_when_it_is_full() -> None:
    loop = asyncio.get_running_loop()
    window, first, second = Window(2), loop.create_future(), loop.create_future()
    await window.add(first)
    adding = asyncio.create_task(window.add(second))
    await asyncio.sleep(0)
    assert not adding.done()
    first.set_result(None)
    await adding
    assert not second.done()


async def test_a_window_of_one_waits_for_each() -> None:
    future = asyncio.get_running_loop().create_future()
    adding = asyncio.create_task(Window(1).add(future))
    await asyncio.sleep(0)
    assert not adding.done()
    future.set_result(None)
    await adding


async def test_a_refused_message_is_not_overlooked() -> None:
    future = asyncio.get_running_loop().create_future()
    window = Window(10)
    await window.add(future)
    future.set_exception(RuntimeError("refused"))
    with pytest.raises(RuntimeError, match="refused"):
        await window.drain()


def test_a_window_of_threads_asks_for_the_oldest_results() -> None:
    asked: list[int] = []
    window = ThreadWindow(3, asked.append)
    for number in range(4):
        window.add(number)
    assert asked == [0, 1]
    window.drain()
    assert asked == [0, 1, 2, 3]


# The worker


class Memory(Adapter):
    """A client whose server is a list."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.stored: list[bytes] = []

    async def start_sending(self) -> None: ...

    async def submit(self, body: bytes) -> None:
        self.stored.append(body)

    async def drain(self) -> None: ...

    async def start_consuming(self) -> None: ...

    async def consume(self, take: Take) -> None:
        for body in self.stored:
            if take(body):
                return

    async def close(self) -> None: ...


def task(what: str, **more: Any) -> Task:
    return Task("memory", what, {}, "topic", **more)


async def test_what_was_sent_can_be_drained() -> None:
    adapter = Memory(Setup({}, "topic"))
    sent = await send(adapter, task("send", body_bytes=200, seconds=0.01))
    assert sent["stored"] == len(adapter.stored) > sent["messages"] > 0
    assert {len(body) for body in adapter.stored} == {200}
    found = await drain(adapter, task("drain", messages=len(adapter.stored), seconds=60))
    assert found["messages"] == len(adapter.stored)


def test_a_worker_that_dies_fails_its_row_with_its_last_words() -> None:
    with (
        pytest.raises(RowFailed, match=r"No module named .*nobody"),
        Worker(Path(sys.executable), Task("nobody", "send", {}, "topic")) as worker,
    ):
        worker.result(60)


# The plan


def test_another_one_begins_in_each_round() -> None:
    assert [plan.rotated("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert plan.rotated([], 3) == []


def test_clients_are_chosen_by_their_own_name_their_servers_or_both() -> None:
    assert [str(pair) for pair in plan.chosen(["aiokafka"])] == ["aiokafka on kafka"]
    assert [pair.client for pair in plan.chosen(["apache"])] == [
        "penstock",
        "rocketmq-python-client",
        "rocketmq",
    ]
    assert [str(pair) for pair in plan.chosen(["penstock@apache"])] == ["penstock on apache"]


def test_an_unknown_name_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(["--only", "pulsar"])
    assert "no client or server pulsar" in capsys.readouterr().err


def test_every_pair_has_a_module_for_its_client() -> None:
    clients = Path(plan.__file__).with_name("clients")
    assert {pair.module for pair in plan.PAIRS} == {file.stem for file in clients.glob("*.py")}


def test_options_change_what_they_name_and_nothing_else() -> None:
    options = options_of(["--full", "--rounds", "2", "--rates", "50", "60", "--backlogs", "7"])
    made = plan_of(options)
    assert (made.rounds, made.rates, made.seconds) == (2, (50, 60), 10.0)
    assert growth_of(options).backlogs == (7,)
    assert growth_of(options_of([])) == SHORT_GROWTH
    assert java_of(options) == replace(FULL_JAVA, rounds=2)
    assert spark_of(options) == replace(FULL_SPARK, rounds=2)
    assert options_of([]).parts == PARTS


def test_a_part_that_breaks_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--tiny", "--parts", "growth", "java", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "- java was skipped: java is not on PATH" in text
    for curve in ("queues", "timers", "receipts", "streams", "console_topics"):
        assert f"## Growth: {curve}" in text
        assert (tmp_path / f"growth-{curve}.svg").is_file()
    assert "A tiny run" in text


# Servers


def test_a_server_is_ready_when_it_answers(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    program = (
        f"import socket; s = socket.create_server(('127.0.0.1', {port}))\n"
        "while True:\n c, _ = s.accept(); c.sendall(c.recv(9)); c.close()"
    )
    with answering([sys.executable, "-c", program], tmp_path, port, b"hello") as seconds:
        assert seconds > 0


def test_a_server_that_ends_tells_why(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "raise SystemExit('no disk')"]
    with (
        pytest.raises(RuntimeError, match="no disk"),
        answering(command, tmp_path, port, b"hello"),
    ):
        pass


def test_holes_take_no_room_on_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "ahead").open("wb") as file:
        file.truncate(1 << 24)
    assert allocated_bytes(tmp_path) < 1 << 20
    (tmp_path / "written").write_bytes(b"x" * (1 << 20))
    assert allocated_bytes(tmp_path) >= 1 << 20


def test_a_server_that_is_not_installed_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers.servers.redis import Redis

    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="redis-server"):
        Redis().prepare()


# All of it, with our own client on our own broker


def test_a_plan_is_run_row_by_row(tmp_path: Path) -> None:
    small = plan.Plan(
        rounds=1,
        seconds=0.05,
        rates=(400,),
        synced_rounds=0,
        pairs=plan.chosen(["penstock@penstock"]),
    )
    shown: list[Found] = []
    found = run_plan(small, {"penstock": Penstock()}, tmp_path / "no-python", shown.append)
    assert shown == [found]
    assert found.failures == []
    (rows,) = found.rows["async"].values()
    assert set(rows) == {
        "send_single_128",
        "send_128",
        "send_1024",
        "consume_128",
        "disk_128",
        "latency_400",
    }
    (sent,), (read,) = rows["send_128"]["stored"], rows["consume_128"]["messages"]
    assert 1 < read <= sent
    assert rows["latency_400"]["messages"] == [20]
    assert rows["disk_128"]["bytes_per_message"][0] > 128
    assert found.servers["penstock"]["idle_resident_bytes"][0] > 0


def test_a_backlog_the_disk_has_no_room_for_is_left_out() -> None:
    growth = replace(TINY_GROWTH, backlogs=(1000, 1_000_000))
    fits, too_large = fitting(growth, 100_000_000)
    assert (fits.backlogs, too_large) == ((1000,), [1_000_000])
    assert fitting(growth, 1_000_000_000) == (growth, [])


def test_a_broker_is_watched_while_it_grows() -> None:
    curves = run_growth(TINY_GROWTH)
    assert [point["queues"] for point in curves["queues"]] == list(TINY_GROWTH.queues)
    assert [point["consumers"] for point in curves["consumers"]] == list(TINY_GROWTH.consumers)
    (point,) = curves["backlog"]
    assert point["disk_bytes_per_message"] > 128
    assert point["sends_per_second"] > 0


# The report


def full_document() -> report.Document:
    """What three rounds of two clients might have come to."""
    found = Found()
    ours, theirs, third = (
        plan.chosen([name])[0] for name in ("penstock@penstock", "aiokafka", "kafka-python")
    )
    for number in (1, 2, 3):
        for pair, rate in ((ours, 4000 * number), (theirs, 1000 * number)):
            costs = {"client_microseconds": 9.0, "server_microseconds": 7.0}
            for row in ("send_128", "consume_128"):
                found.row("async", pair, row, {"per_second": rate, **costs})
            ages = {"p50_ms": 1.0 * number, "p99_ms": 2.0, "p999_ms": 3.0, "per_second": 999.0}
            found.row("async", pair, "latency_1000", ages)
            found.row("async", pair, "disk_128", {"bytes_per_message": 250.0})
        found.server("penstock", {"ready_seconds": 0.5, "idle_resident_bytes": 48e6})
    found.row("fsync", ours, "send_128", {"per_second": 321.0})
    found.failed("async", third, "send_128", "ended with 1")
    points = [
        {"queues": n, "sends_per_second": 9, "sends_per_second_low": 8, "sends_per_second_high": 10}
        for n in (1, 10)
    ]
    return {
        "machine": {
            "system": "Linux",
            "cores": 2,
            "processor": "a processor",
            "load_before": [0.1],
            "python": "3.11",
        },
        "plan": {"rounds": 3, "seconds": 3.0},
        "versions": {"servers": {"kafka": "4.1.1"}},
        "skipped": [{"what": "redis", "why": "redis-server is not on PATH"}],
        "failures": found.failures,
        "servers": found.servers,
        "rows": found.rows,
        "growth": {"queues": points},
    }


def test_ratios_are_taken_round_by_round() -> None:
    assert report.ratio([10, 40, 90], [10, 20, 30]) == {"median": 2, "low": 1, "high": 3}


def test_a_promise_is_kept_or_not_and_a_mere_comparison_is_neither() -> None:
    rows = {
        report.OURS[0]: {"send_128": {"per_second": [900.0]}},
        "rocketmq-python-client on apache": {"send_128": {"per_second": [100.0]}},
        "aiokafka on kafka": {"send_128": {"per_second": [100.0]}},
        "confluent-kafka on kafka": {"send_128": {"per_second": [1800.0]}},
    }
    found = {one["beside"]: (one["median"], one["met"]) for one in report.compared(rows)}
    assert found == {
        "rocketmq-python-client on apache": (9.0, False),
        "aiokafka on kafka": (9.0, True),
        "confluent-kafka on kafka": (0.5, None),
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [(123_456, "123,000"), (999.4, "999"), (12.345, "12.3"), (0.012345, "0.0123"), (0, "0")],
)
def test_numbers_have_three_digits_that_mean_something(value: float, shown: str) -> None:
    assert report.count(value) == shown


def test_a_cell_shows_the_spread_where_there_is_one() -> None:
    assert report.cell([3.0, 1.0, 2.0]) == "2 (1 to 3)"
    assert report.cell([5.0]) == "5"
    assert report.cell(None) == "-"


def test_the_report_has_tables_plots_and_what_is_missing(tmp_path: Path) -> None:
    written = report.write_report(full_document(), tmp_path)
    assert all(path.stat().st_size for path in written)
    text = (tmp_path / "report.md").read_text()
    assert "| penstock on penstock | 8,000 (4,000 to 12,000) |" in text
    assert "| send 128 | penstock | aiokafka on kafka | 4 (4 to 4) | 1 | yes |" in text
    assert "- redis was skipped: redis-server is not on PATH" in text
    assert "- kafka-python on kafka, send_128 failed: ended with 1" in text
    for plot in ("peers-rates", "peers-latency", "peers-servers", "growth-queues"):
        assert f"({plot}.svg)" in text
        assert (tmp_path / f"{plot}.svg").read_text().rstrip().endswith("</svg>")
    kept = json.loads((tmp_path / "report.json").read_text())["peers"]
    assert kept["summary"]["rows"]["async"]["penstock on penstock"]["send_128"]["per_second"] == {
        "median": 8000,
        "low": 4000,
        "high": 12000,
    }


def test_the_same_figures_make_the_same_report(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in report.write_report(full_document(), tmp_path)]
    assert [path.read_bytes() for path in report.make_report(tmp_path)] == first


def test_the_report_takes_in_what_the_other_benchmarks_found(tmp_path: Path) -> None:
    target = {"name": "sends", "reached": 5, "target": 10, "met": False}
    latest = {"benchmarks": {"broker_send": {"targets": [target]}}}
    row = {"penstock_runs": [2.0], "apache_runs": [1.0], "ratio": 2.0}
    (tmp_path / "latest.json").write_text(json.dumps(latest))
    (tmp_path / "apache.json").write_text(json.dumps({"apache": "5.5.0", "rows": {"sync": row}}))
    report.make_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| sends | 5 | 10 | no |" in text
    assert "| sync | 2 | 1 | 2.0 |" in text
