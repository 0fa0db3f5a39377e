"""``penstock group`` against a broker, with and without connected members."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.cli.running import PENSTOCK, fail, run, succeed, wait_for

from penstock import Message, MessageQueue, Producer, PushConsumer
from penstock.admin import QueueLag
from penstock.cli import output
from penstock.cli.group_lag import Standing, show
from penstock.cli.times import position
from penstock.errors import InvalidArgument
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded

TOPIC = "bills"
COUNT = 10


@pytest.fixture
def bills(cluster: Embedded) -> str:
    """A topic with ten messages in two queues."""
    if TOPIC not in cluster.admin.topics():
        cluster.admin.create_topic(TOPIC, 2)
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, str(number).encode()))
    return TOPIC


@pytest.fixture
def connected(bills: str, cluster: Embedded) -> Iterator[threading.Semaphore]:
    """Group billing, connected; the semaphore counts what it has handled."""
    handled = threading.Semaphore(0)
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on(bills)
    def bill(message: object) -> None:
        handled.release()

    with consumer:
        for _ in range(COUNT):
            assert handled.acquire(timeout=60)
        yield handled
    cluster.admin.delete_group("billing")


@pytest.fixture
def idle(bills: str, cluster: Embedded) -> Iterator[str]:
    """A group that is at the end of the topic, without connected members."""
    cluster.admin.create_group("idle")
    cluster.admin.reset_offsets("idle", bills, "last")
    yield "idle"
    if "idle" in cluster.admin.groups():
        cluster.admin.delete_group("idle")


def committed(cluster: Embedded, group: str) -> list[int]:
    return [row.committed for row in cluster.admin.group_lag(group, topic=TOPIC)]


@pytest.mark.usefixtures("connected")
def test_a_list_says_who_is_connected_and_how_far_behind(cluster: Embedded) -> None:
    wait_for(lambda: committed(cluster, "billing") == [5, 5])
    rows = {row["group"]: row for row in succeed("group", "list", "--json").json}
    assert rows["billing"]["members"] == 1
    assert rows["billing"]["lag"] == 0
    assert rows["billing"]["topics"] == [TOPIC]
    assert "billing" in succeed("group", "list", "--names").out.splitlines()
    assert "billing" in succeed("group", "list", "--names", "--json").json
    assert "TOOLS_CONSUMER" in succeed("group", "list", "--names", "--internal").out
    line = next(line for line in succeed("group", "list").lines if line[0] == "billing")
    assert line[1] == "1"


def test_a_list_counts_retries_and_names_what_was_subscribed_to(
    idle: str, cluster: Embedded
) -> None:
    cluster.admin.create_topic(f"%RETRY%{idle}", 1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message(f"%RETRY%{idle}", b"once more"))
    wait_for(lambda: any(q.topic.startswith("%") for q in cluster.admin.group_lag(idle)))
    [row] = [row for row in succeed("group", "list", "--json").json if row["group"] == idle]
    assert (row["topics"], row["lag"]) == ([TOPIC], 1)


@pytest.mark.usefixtures("connected")
def test_a_group_is_described_with_members_and_subscriptions() -> None:
    found = succeed("group", "describe", "billing", "--json").json
    assert len(found["members"]) == 1
    assert {"topic": TOPIC, "expression": "*", "type": "TAG"} in found["subscriptions"]
    assert found["settings"][0]["max_retries"] == 16
    shown = succeed("group", "describe", "billing").out
    assert found["members"][0]["client_id"] in shown
    assert "Group billing" in shown


@pytest.mark.usefixtures("connected")
def test_the_member_that_holds_a_queue_is_shown() -> None:
    found = succeed("group", "describe", "billing", "--json").json
    [member] = found["members"]
    assert member["queues"] == [f"{TOPIC}@broker-a:0", f"{TOPIC}@broker-a:1"]
    assert (member["orderly"], member["release"]) == (False, "5.3.3")
    described = succeed("group", "describe", "billing").out
    assert f"{TOPIC}@broker-a:0-1" in described
    assert "5.3.3" in described
    rows = succeed("group", "lag", "billing", "--topic", TOPIC, "--json").json
    assert [row["members"] for row in rows] == [[member["client_id"]]] * 2
    lines = succeed("group", "lag", "billing", "--topic", TOPIC).lines
    assert lines[0] == [TOPIC, "on", "broker-a"]
    assert lines[1][-1] == "member"
    assert [line[-1] for line in lines[2:4]] == ["1", "1"]
    assert lines[4] == ["member", "1:", member["client_id"]]


def test_a_member_that_consumes_orderly_says_so(bills: str, cluster: Embedded) -> None:
    consumer = PushConsumer("in-order", namesrv=cluster.namesrv, orderly=True)
    consumer.on(bills)(lambda message: None)
    with consumer:
        wait_for(lambda: len(consumer.assignment()) == 2)
        [member] = succeed("group", "describe", "in-order", "--json").json["members"]
        assert member["orderly"] is True
    cluster.admin.delete_group("in-order")


def test_members_share_queues_and_each_is_named(bills: str, cluster: Embedded) -> None:
    consumers = [
        PushConsumer("shared", namesrv=cluster.namesrv, instance=f"m{number}", start_from="first")
        for number in range(2)
    ]
    with contextlib.ExitStack() as stack:
        for consumer in consumers:
            consumer.on(bills)(lambda message: None)
            stack.enter_context(consumer)
        wait_for(lambda: all(len(consumer.assignment()) == 1 for consumer in consumers))
        wait_for(lambda: committed(cluster, "shared") == [5, 5])
        rows = succeed("group", "lag", "shared", "--topic", TOPIC, "--json").json
        holders = [row["members"] for row in rows]
        assert sorted(map(len, holders)) == [1, 1]
        assert holders[0] != holders[1]
    cluster.admin.delete_group("shared")


def test_lag_is_watched_until_ctrl_c(cluster: Embedded) -> None:
    cluster.admin.create_topic("watched", 1)
    cluster.admin.create_group("watcher")
    cluster.admin.reset_offsets("watcher", "watched", "last")
    watching = ChildProcess(
        (*PENSTOCK, "group", "lag", "watcher", "--every", "0.1s", "--json", "-n", cluster.namesrv)
    )
    with watching as child:
        first = json.loads(child.wait_for_line(r"^\{.*$")[0])
        assert (first["lag"], first["arrived_per_second"]) == (0, None)
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            producer.send(Message("watched", b"one more"))
        grown = json.loads(child.wait_for_line(r'^\{.*"lag":1,"arrived_per_second":\d.*$')[0])
        assert [row["lag"] for row in grown["queues"]] == [1]
        assert grown["arrived_per_second"] > 0
        assert grown["consumed_per_second"] == 0
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


def test_a_watch_without_a_pause_is_refused(idle: str) -> None:
    assert "at least 0.1 seconds" in fail("group", "lag", idle, "--every", "0s")


def test_a_group_without_members_says_so(idle: str) -> None:
    done = run("group", "describe", idle)
    assert done.code == 0
    assert "No member is connected." in done.err


def test_lag_is_reported_queue_by_queue(idle: str, cluster: Embedded) -> None:
    cluster.admin.reset_offsets(idle, TOPIC, 2, queue=MessageQueue(TOPIC, "broker-a", 1))
    rows = succeed("group", "lag", idle, "--topic", TOPIC, "--json").json
    assert [(row["queue_id"], row["committed"], row["lag"]) for row in rows] == [
        (0, 5, 0),
        (1, 2, 3),
    ]
    done = succeed("group", "lag", idle)
    assert "3 behind in 2 queues" in done.err
    assert done.lines[0] == [TOPIC, "on", "broker-a"]
    assert ["1", "2", "5", "3"] in [line[:4] for line in done.lines]


NOW_MS = time.time_ns() // 1_000_000
LONG_AGO_MS = 1_000_000_000_000


def lag_of(topic: str, broker: str, queue_id: int, last_ms: int = NOW_MS) -> QueueLag:
    return QueueLag(topic, broker, queue_id, 1_234_567, 1_246_912, 12_345, last_ms)


def test_the_lag_of_usual_names_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    queues = [lag_of("orders", f"broker-{name}", number) for name in "ab" for number in range(4)]
    queues.append(lag_of("%RETRY%billing", "broker-a", 0, LONG_AGO_MS))
    alone, shared = ("192.168.178.101@31415#271828182845904", "192.168.178.102@27182#3")
    found = Standing(
        0.0,
        queues,
        {
            MessageQueue("orders", "broker-a", 0): [alone],
            MessageQueue("orders", "broker-b", 3): [shared, alone],
        },
    )
    show(found, "billing")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    # A heading for each topic, one for its columns, a line for each queue, and the members.
    assert len(lines) == (2 + 8) + 1 + (2 + 1) + 1 + 2
    assert lines[0] == "orders"
    assert lines[2].split()[-1] == "1"
    assert lines[9].split()[-2:] == ["2,", "1"]
    assert lines[11] == "%RETRY%billing on broker-a"
    assert lines[12].split()[0] == "queue"
    assert lines[15:] == [f"member 1: {alone}", f"member 2: {shared}"]
    # This year's times go without it.
    assert f"  {output.local_time(NOW_MS)[5:]}" in lines[2]
    assert output.local_time(LONG_AGO_MS) in lines[13]


def test_a_group_that_is_not_there_suggests_the_nearest(idle: str) -> None:
    for verb in ("lag", "describe", "delete"):
        assert "did you mean idle?" in fail("group", verb, "idel")
    assert "penstock group create zebra" in fail("group", "lag", "zebra")
    refused = fail("group", "delete", "zebra")
    assert "create" not in refused
    assert "penstock group list --names" in refused


def test_a_group_is_made_with_its_settings(cluster: Embedded) -> None:
    row = succeed("group", "create", "made", "--max-retries", "3", "--orderly", "--json").json[0]
    assert row == {"group": "made", "broker": "broker-a", "max_retries": 3, "orderly": True}
    assert cluster.admin.group_config("made")["broker-a"].retry_max_times == 3


def test_a_preview_changes_nothing(idle: str, cluster: Embedded) -> None:
    rows = succeed("group", "reset", idle, "--to", "earliest", "--dry-run", "--json").json
    assert [(row["committed"], row["target"], row["change"], row["lag"]) for row in rows] == [
        (5, 0, -5, 5),
        (5, 0, -5, 5),
    ]
    shown = succeed("group", "reset", idle, "--to", "earliest", "--dry-run")
    assert [TOPIC, "broker-a", "0", "5", "0", "-5", "5"] in shown.lines
    assert committed(cluster, idle) == [5, 5]


def test_a_reset_shows_the_change_and_is_refused_without_a_yes(
    idle: str, cluster: Embedded
) -> None:
    done = run("group", "reset", idle, "--to", "earliest", stdin="y\n")
    assert done.code == 1
    assert [TOPIC, "broker-a", "0", "5", "0", "-5", "5"] in done.lines
    assert "This delivers 10 messages again" in done.err
    assert "--yes" in done.err
    assert committed(cluster, idle) == [5, 5]


def test_a_reset_goes_to_either_end(idle: str, cluster: Embedded) -> None:
    assert "Moved idle in 2 queues" in succeed("group", "reset", idle, "--to", "earliest", "-y").out
    assert committed(cluster, idle) == [0, 0]
    rows = succeed("group", "reset", idle, "--to", "latest", "-y", "--json").json
    assert [row["target"] for row in rows] == [5, 5]
    assert committed(cluster, idle) == [5, 5]


def test_a_reset_goes_to_a_time(idle: str, cluster: Embedded) -> None:
    succeed("group", "reset", idle, "--to", "2000-01-01", "--yes")
    assert committed(cluster, idle) == [0, 0]
    later = datetime.fromtimestamp(datetime.now(UTC).timestamp() + 3600).astimezone().isoformat()
    succeed("group", "reset", idle, "--to", later, "--yes")
    assert committed(cluster, idle) == [5, 5]


def test_a_reset_goes_to_an_offset_of_one_queue(idle: str, cluster: Embedded) -> None:
    said = fail("group", "reset", idle, "--to", "3", "--yes")
    assert "--queue broker-a:0" in said
    assert "0 to 5" in fail("group", "reset", idle, "--to", "6", "--queue", "broker-a:1")
    succeed("group", "reset", idle, "--to", "3", "--queue", "broker-a:1", "--yes")
    assert committed(cluster, idle) == [5, 3]
    succeed("group", "reset", idle, "--to", "earliest", "--queue", "broker-a:0", "--yes")
    assert committed(cluster, idle) == [0, 3]


def test_a_queue_that_is_not_there_is_one_sentence(idle: str) -> None:
    for queue in ("broker-a:9", "broker-z:0", "1", "broker-a:x"):
        said = fail("group", "reset", idle, "--to", "earliest", "--queue", queue)
        assert "broker-a:0, broker-a:1" in said


def test_an_unknown_group_gets_offsets_only_if_that_is_meant(idle: str, cluster: Embedded) -> None:
    done = run("group", "reset", "idel", "--topic", TOPIC, "--to", "earliest")
    assert done.code == 1
    assert "No broker knows group idel yet" in done.err
    assert "No broker knows" not in run("group", "reset", idle, "--to", "earliest").err


def test_connected_consumers_follow_a_reset(
    connected: threading.Semaphore, cluster: Embedded
) -> None:
    wait_for(lambda: committed(cluster, "billing") == [5, 5])
    succeed("group", "reset", "billing", "--to", "earliest", "--yes")
    for _ in range(COUNT):
        assert connected.acquire(timeout=60)


def test_the_topic_must_be_given_when_there_are_several(idle: str, cluster: Embedded) -> None:
    cluster.admin.create_topic("other-bills", 1)
    cluster.admin.reset_offsets(idle, "other-bills", "last")
    said = fail("group", "reset", idle, "--to", "earliest")
    assert "2 topics" in said
    assert "--topic" in said
    assert "did you mean bills?" in fail(
        "group", "reset", idle, "--to", "earliest", "--topic", "bill"
    )
    succeed("group", "reset", idle, "--to", "earliest", "--topic", TOPIC, "--yes")
    assert committed(cluster, idle) == [0, 0]


def test_a_deleted_group_is_gone(idle: str, cluster: Embedded) -> None:
    assert "--yes" in fail("group", "delete", idle)
    assert idle in cluster.admin.groups()
    assert succeed("group", "delete", idle, "--yes").out == "Deleted idle.\n"
    assert idle not in cluster.admin.groups()


@pytest.mark.usefixtures("connected")
def test_deleting_a_connected_group_warns_that_it_comes_back() -> None:
    said = fail("group", "delete", "billing")
    assert "1 member connected" in said
    done = succeed("group", "delete", "billing", "--yes")
    assert "the group comes back" in done.err


@pytest.mark.parametrize(
    ("text", "goal"),
    [("earliest", "first"), ("LATEST", "last"), (" first ", "first"), ("0", 0), ("120", 120)],
)
def test_where_to_go_is_an_end_or_an_offset(text: str, goal: object) -> None:
    assert position(text, option="--to") == goal


def test_where_to_go_is_a_moment() -> None:
    local = datetime(2026, 11, 16, 1, 40).astimezone()
    assert position("2026-11-16T01:40", option="--to") == local
    assert position("2026-11-16T01:40+00:00", option="--to") == datetime(
        2026, 11, 16, 1, 40, tzinfo=UTC
    )
    ago = position("2h", option="--to")
    assert isinstance(ago, datetime)
    assert 7100 < (datetime.now(UTC) - ago).total_seconds() < 7300


@pytest.mark.parametrize("text", ["", "soon", "-", "2026-13-01", "12x", "9" * 30])
def test_anything_else_is_nowhere(text: str) -> None:
    with pytest.raises(InvalidArgument, match="first, last"):
        position(text, option="--to")
