"""``penstock cluster overview`` against brokers that answer, and one that does not."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.running import PENSTOCK, run, succeed, wait_for

from penstock import Message, Producer
from penstock.admin.plain_rows import broker_row
from penstock.admin.reports import BrokerAddress
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded


def test_an_overview_has_a_line_for_each_broker(cluster: Embedded) -> None:
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("overview", b"1"))
    rows = succeed("cluster", "overview", "--json").json
    assert [(row["broker"], row["role"], row["problem"]) for row in rows] == [
        ("broker-a", "master", None)
    ]
    assert rows[0]["in_today"] == 1
    assert rows[0]["version"][0].isdigit()
    assert 0 <= rows[0]["disk_used"] <= 1
    lines = succeed("cluster", "overview").lines
    assert lines[0] == ["Cluster", "DefaultCluster"]
    assert "problem" not in lines[1]
    assert lines[2][:2] == ["broker-a", rows[0]["address"]]


def test_a_broker_that_does_not_answer_is_a_problem_and_the_others_are_shown(
    running_cluster: Embedded, tmp_path: Path
) -> None:
    namesrv = running_cluster.namesrv
    command = [*PENSTOCK, "broker", "--namesrv", namesrv, "--broker-name", "broker-z"]
    with ChildProcess([*command, "--broker-port", "0", "--data", str(tmp_path)]) as process:
        process.wait_for_line(r"^ready ")
        wait_for(lambda: len(running_cluster.admin.cluster()) == 2)
        assert succeed("cluster", "overview", "-n", namesrv, "--json").json[1]["problem"] is None
        # Its connections stay open, without answers, like a broker that hangs.
        process.send_signal(signal.SIGSTOP)
        try:
            done = run("cluster", "overview", "-n", namesrv)
        finally:
            process.send_signal(signal.SIGCONT)
    assert done.code == 1
    assert [line[0] for line in done.lines[2:]] == ["broker-a", "broker-z"]
    assert done.lines[1][-1] == "problem"
    assert "no answer" in done.out


def test_a_name_server_without_brokers_says_how_to_start_one(tmp_path: Path) -> None:
    command = [*PENSTOCK, "nameserver", "--nameserver-port", "0"]
    with ChildProcess([*command, "--data", str(tmp_path)]) as process:
        namesrv = process.wait_for_line(r"^ready namesrv=(\S+) ")[1]
        done = run("cluster", "overview", "--namesrv", namesrv)
        assert done.code == 1
        assert f"penstock broker --namesrv {namesrv}" in done.err
        done = run("topic", "create", "orders", "--namesrv", namesrv)
        assert done.code == 1
        assert "no broker is registered" in done.err


def test_what_brokers_say_of_themselves_is_read_with_care() -> None:
    broker = BrokerAddress("c", "broker-a", 0, "127.0.0.1:10911")
    row = broker_row(broker, {})
    known = (row["version"], row["in_per_second"], row["in_today"], row["started_ms"])
    assert known == (None, None, None, None)
    assert broker_row(broker, {"brokerVersionDesc": "V4_9_7"})["version"] == "4.9.7"
    for text, rate in (("1.5 2.5 3.5", 1.5), ("", None), ("many", None)):
        assert broker_row(broker, {"putTps": text})["in_per_second"] == rate
    for text, started in (("12", 12), ("1.5", None), ("nan", None), ("inf", None)):
        assert broker_row(broker, {"bootTimestamp": text})["started_ms"] == started
    info = {"msgPutTotalTodayNow": "10", "msgPutTotalTodayMorning": "4"}
    row = broker_row(broker, info)
    assert (row["in_today"], row["out_today"]) == (6, None)
    slave = broker_row(BrokerAddress("c", "broker-a", 1, "127.0.0.1:10921"), {}, "no answer")
    assert (slave["role"], slave["problem"]) == ("slave 1", "no answer")
