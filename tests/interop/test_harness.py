"""The pure parts of the interop harness; ``make interop`` runs the rest."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop import go_clients, node_clients, programs, signed_others, toolchain
from tests.interop.go_clients import run_go
from tests.interop.grpc_clients import APACHE, PENSTOCK
from tests.interop.mqadmin import COMMANDS, Row, judge
from tests.interop.node_clients import run_node
from tests.interop.page import page
from tests.interop.programs import REFUSED, run_program
from tests.interop.results import (
    FAIL,
    LIMIT,
    NOT_APPLICABLE,
    PASS,
    SKIP,
    Cell,
    matrix,
    save,
    summary,
)
from tests.interop.run import documented, needs_java, obey_interrupts
from tests.interop.scenarios import SCENARIOS, SEVERAL_BROKERS
from tests.interop.servers import (
    Cluster,
    apache_broker,
    penstock_command,
    penstock_nameserver,
    wait_until_registered,
    write_properties,
)
from tests.interop.store_swap import CONFIG, TOPICS, difference, keys_of, read_store, write_store
from tests.interop.toolchain import HERE, Toolchain, Unavailable, prepare

from penstock import Admin
from penstock.store import MessageStore

# Replaces Java: reports that it has started, and only then becomes a broker.
LATE_BROKER = """\
#!{python}
import os, pathlib, sys
conf = dict(line.split("=", 1) for line in pathlib.Path(sys.argv[-1]).read_text().splitlines())
print("The broker boot success", flush=True)
os.execv({penstock!r}, [{penstock!r}, "broker", "--namesrv=" + conf["namesrvAddr"],
    "--broker-port=" + conf["listenPort"], "--data=" + conf["storePathRootDir"]])
"""
FIELDS = {"topic": "t-1", "broker": "127.0.0.1:1", "ns": "127.0.0.1:2"}


def cell(status: str, row: str = "send_sync", evidence: str = "seen") -> Cell:
    return Cell("official Java client", row, "java 5.5.0", status, evidence, 1200)


def test_the_matrix_has_a_line_per_row_and_the_evidence_of_failures() -> None:
    text = matrix([cell(PASS), cell(FAIL, "send_async", "3 of\n4 stored")])
    assert "send_sync   " in text
    assert "pass 1.2s" in text
    assert "fail: send_async [java 5.5.0]: 3 of 4 stored" in text


def test_the_summary_counts_each_status() -> None:
    cells = [cell(PASS), cell(PASS), cell(LIMIT), cell(NOT_APPLICABLE)]
    assert summary(cells) == "2 pass, 1 limit, 1 n/a"


def test_results_are_saved_as_json(tmp_path: Path) -> None:
    save(tmp_path / "deep" / "results.json", "penstock", [cell(PASS)])
    content = json.loads((tmp_path / "deep" / "results.json").read_text())
    assert content["target"] == "penstock"
    assert content["cells"][0]["evidence"] == "seen"


def test_an_output_is_checked_for_required_and_forbidden_text() -> None:
    row = Row("topicStatus", "topicStatus -t {topic}", r"{topic}\s+\d+")
    assert judge(row, FIELDS, True, "t-1   7") is None
    assert "nothing matches" in str(judge(row, FIELDS, True, "t-2   7"))
    assert "not finished" in str(judge(row, FIELDS, False, "t-1   7"))
    trace = "t-1 7\njava.lang.IllegalStateException: no\n\tat org.apache.Some.where(Some.java:1)\n"
    assert "the output has" in str(judge(row, FIELDS, True, trace))


def test_a_repeating_command_is_checked_by_its_output_so_far() -> None:
    row = Row("clusterRT", "clusterRT", r"{broker}", repeats=True)
    assert judge(row, FIELDS, False, "at 127.0.0.1:1") is None


def test_row_names_are_unique() -> None:
    names = [row.row for row in COMMANDS]
    assert len(set(names)) == len(names)
    assert len(set(SCENARIOS)) == len(SCENARIOS)


def test_every_scenario_is_registered_on_the_java_side() -> None:
    sources = "".join(path.read_text() for path in (HERE / "java").glob("*.java"))
    names = {*SCENARIOS, SEVERAL_BROKERS}
    assert {name for name in names if f'all.put("{name}"' not in sources} == set()
    assert sources.count("all.put(") == len(names)


def test_a_limit_requires_the_refusal_in_its_evidence() -> None:
    refusal = "MQBrokerException: CODE: 16 DESC: these are not supported by this broker yet; try"
    assert REFUSED.search(refusal)
    assert not REFUSED.search("MQBrokerException: CODE: 1 DESC: oops")
    assert not REFUSED.search("after 60 s: the producer was never asked")


@pytest.mark.parametrize(
    ("target", "client", "evidence", "status"),
    [
        ("apache-4.9.7", "5.5.0", "CODE: 3 DESC: request type 351 not supported", NOT_APPLICABLE),
        ("apache-4.9.7", "4.9.7", "CODE: 3 DESC: request type 351 not supported", FAIL),
        ("penstock", "5.5.0", "CODE: 3 DESC: request type 351 not supported", FAIL),
        ("apache-4.9.7", "5.5.0", "something else", FAIL),
    ],
)
def test_only_new_requests_to_an_old_broker_count_as_not_applicable(
    target: str, client: str, evidence: str, status: str
) -> None:
    assert documented(cell(FAIL, evidence=evidence), target, client).status == status


def test_a_difference_of_apache_s_proxy_is_known_by_the_text_of_its_failure() -> None:
    text = (
        'InternalErrorException: 50001, Cannot invoke "Settings.getClientType()" '
        'because "settings" is null. NullPointerException.'
    )
    known = cell(FAIL, "grpc_send_and_simple_consumer", text)
    assert APACHE.explained("python", known).status == NOT_APPLICABLE
    assert APACHE.explained("java", known).status == FAIL
    assert PENSTOCK.explained("python", known).status == FAIL
    other = cell(FAIL, "grpc_send_and_simple_consumer", "ValueError: not enough values to unpack")
    assert APACHE.explained("python", other) == other


def test_the_page_has_a_table_per_section_and_the_broker_s_reason_for_a_refusal() -> None:
    said = (
        "MQBrokerException: CODE: 13 DESC: no timers yet BROKER: 127.0.0.1:1 For more information"
    )
    text = page([cell(PASS), cell(LIMIT, "timer_message", said)])
    assert "## official Java client" in text
    assert "| `send_sync` | yes |" in text
    assert "| `timer_message` | refused |" in text
    assert "- `timer_message`: no timers yet\n" in text


def test_a_difference_names_the_position_and_the_field() -> None:
    one = {"topic": "t", "queue_id": 0, "queue_offset": 5, "flag": 1}
    assert difference([one], [one]) is None
    assert difference([one], []) == "1 of 1 messages are missing, first ('t', 0, 5)"
    assert difference([], [one]) == "1 messages too many, first ('t', 0, 5)"
    assert difference([one], [one | {"flag": 2}]) == "('t', 0, 5): flag was 1, is 2"


def test_the_store_to_be_exchanged_has_rolled_all_files_and_reads_back(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = write_store(root)
    described, keys = read_store(store), keys_of(store)
    store.close()
    assert len(described) == 1_000 + 640 + 40
    assert {one["topic"] for one in described} == set(TOPICS)
    assert len(keys["shared-7"]) == 20
    assert keys["no-such-key"] == set()
    assert len(list((root / "commitlog").iterdir())) > 3
    assert len(list((root / "index").iterdir())) > 3
    assert len(list((root / "consumequeue" / "swap-batch-swap" / "0").iterdir())) > 1
    with MessageStore(root, CONFIG) as again:
        assert difference(described, read_store(again)) is None
        assert keys_of(again) == keys


def test_settings_are_written_as_a_broker_conf(tmp_path: Path) -> None:
    path = write_properties(
        tmp_path / "conf" / "broker.conf", {"brokerName": "a", "listenPort": "1"}
    )
    assert path.read_text() == "brokerName=a\nlistenPort=1\n"


def test_without_java_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="java is not on PATH"):
        prepare("5.5.0")


def test_without_go_or_node_every_row_is_reported_as_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    cluster = Cluster("127.0.0.1:1", "127.0.0.1:2", "c", "b", Path())
    (go,) = run_go(cluster, ["go_send_sync"])
    assert (go.status, go.evidence) == (SKIP, "go is not on PATH; Go 1.21 or newer is needed")
    cells = list(run_node(cluster, ["node_send_sync"]))
    assert {cell.column.split()[0] for cell in cells} == set(node_clients.libraries())
    assert {cell.status for cell in cells} == {SKIP}
    assert summary([go, *cells]) == "3 skip"


def test_every_scenario_is_registered_on_the_go_and_the_node_side() -> None:
    listed = re.findall(r'^\t"(go_\w+)":', (go_clients.SOURCES / "main.go").read_text(), re.M)
    signing = [f"go_{name}" for name in signed_others.SCENARIOS.values()]
    assert sorted(listed) == sorted([*go_clients.SCENARIOS, *signing])
    exported = [
        line.split(":")[0].strip(" ,")
        for file in ("sending.js", "consuming.js", "signing.js")
        for line in (node_clients.SOURCES / file)
        .read_text()
        .partition("exports = {")[2]
        .split("\n")
    ]
    names = sorted(f"node_{name}" for name in exported if name.isidentifier())
    signing = [f"node_{name}" for name in signed_others.SCENARIOS.values()]
    assert names == sorted([*node_clients.SCENARIOS, *signing])


def test_a_wrong_key_passes_only_if_it_is_refused_for_that_and_nothing_is_stored() -> None:
    said = cell(PASS, signed_others.WRONG_KEY, "CODE: 16  DESC: check signature failed.")
    assert signed_others.judged(said, 0) == said
    assert signed_others.judged(said, 1).status == FAIL
    other = cell(PASS, signed_others.WRONG_KEY, "CODE: 17  DESC: no route")
    assert signed_others.judged(other, 0).status == FAIL
    sent = cell(PASS, signed_others.SIGNED, "20 sent")
    assert signed_others.judged(sent, 20) == sent


def test_a_program_that_ends_early_fails_its_remaining_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "BUILD", tmp_path)
    line = json.dumps({"scenario": "one", "status": "pass", "evidence": "seen", "ms": 3})
    refused = "CODE: 16, DESC: these are not supported by this broker yet; try"
    limit = json.dumps({"scenario": "two", "status": "fail", "evidence": refused, "ms": 3})
    program = [sys.executable, "-c", f"print({line!r}); print({limit!r})"]
    names = ["one", "two", "three"]
    cells = run_program(program, names, "s", "a test", limits={"two": REFUSED, "one": REFUSED})
    assert [(cell.row, cell.status) for cell in cells] == [
        ("one", PASS),
        ("two", LIMIT),
        ("three", FAIL),
    ]


def test_programs_of_a_run_in_the_background_obey_interrupts() -> None:
    """A shell makes commands in the background ignore interrupts, and programs inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        obey_interrupts()
        code = "import signal; print('ready', flush=True); signal.pause()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            program.send_signal(signal.SIGINT)
            try:
                assert program.wait(30) == -signal.SIGINT
            finally:
                program.kill()
    finally:
        signal.signal(signal.SIGINT, before)


def test_java_is_needed_for_its_own_rows_and_servers_only() -> None:
    assert not needs_java("penstock", ["go", "node_send_sync"])
    assert not needs_java("penstock", ["signed-others"])
    assert needs_java("penstock", ["go", "send_sync"])
    assert needs_java("penstock", [])
    assert needs_java("apache-5.5.0", ["go"])


def test_a_started_broker_is_awaited_until_its_name_server_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's 5.x may miss its first registration and still print "boot success"."""
    program = tmp_path / "java"
    program.write_text(LATE_BROKER.format(python=sys.executable, penstock=penstock_command()))
    program.chmod(0o755)
    tools = Toolchain("5.5.0", str(program), "no.jar", tmp_path / "classes")
    monkeypatch.setattr(toolchain, "BUILD", tmp_path / "build")
    with (
        penstock_nameserver(tmp_path) as namesrv,
        Admin(namesrv=namesrv) as admin,
        apache_broker(tools, tmp_path, namesrv) as cluster,
    ):
        assert [broker.address for broker in admin.cluster()] == [cluster.broker]


def test_a_broker_that_never_registers_is_reported(tmp_path: Path) -> None:
    with (
        penstock_nameserver(tmp_path) as namesrv,
        pytest.raises(RuntimeError, match=r"does not know the broker 127\.0\.0\.1:1 after 0 s"),
    ):
        wait_until_registered(namesrv, "127.0.0.1:1", wait=0)
