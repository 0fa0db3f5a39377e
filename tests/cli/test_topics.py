"""``penstock topic`` against a broker."""

from __future__ import annotations

import pytest
from tests.cli.running import fail, run, succeed

from penstock import Message, Producer
from penstock.testing.embedded import Embedded


@pytest.fixture
def orders(cluster: Embedded) -> str:
    """A topic with six messages in two queues."""
    topic = "orders"
    if topic not in cluster.admin.topics():
        cluster.admin.create_topic(topic, 2)
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(6):
                producer.send(Message(topic, str(number).encode()))
    return topic


def test_a_list_says_what_each_topic_holds(orders: str, cluster: Embedded) -> None:
    rows = {row["topic"]: row for row in succeed("topic", "list", "--json").json}
    assert rows[orders]["queues"] == 2
    assert rows[orders]["messages"] == 6
    assert rows[orders]["brokers"] == ["broker-a"]
    assert rows[orders]["last_ms"] > 0
    line = next(line for line in succeed("topic", "list").lines if line[0] == orders)
    assert line[:5] == [orders, "NORMAL", "broker-a", "2", "6"]


def test_a_topic_has_a_message_type(orders: str, cluster: Embedded) -> None:
    cluster.admin.create_topic("typed", 1)
    succeed("topic", "create", "typed", "--type", "delay")
    listed = {row["topic"]: row["message_type"] for row in succeed("topic", "list", "--json").json}
    assert (listed["typed"], listed[orders]) == ("DELAY", "NORMAL")
    line = next(line for line in succeed("topic", "describe", "typed").lines if "DELAY" in line)
    assert line[:5] == ["broker-a", "1", "1", "rw", "DELAY"]
    assert "message.type=FIFO" in fail(
        "topic", "create", "typed", "--type", "DELAY", "--attribute", "message.type=FIFO"
    )


def test_internal_topics_are_listed_when_asked_for(orders: str) -> None:
    assert "SCHEDULE_TOPIC_XXXX" not in succeed("topic", "list", "--names").out
    assert "SCHEDULE_TOPIC_XXXX" in succeed("topic", "list", "--names", "--internal").out
    assert orders in succeed("topic", "list", "--names", "--json").json


def test_topics_are_made_several_at_once(cluster: Embedded) -> None:
    rows = succeed("topic", "create", "made-one", "made-two", "--queues", "3", "--json").json
    assert [(row["topic"], row["write_queues"], row["permission"]) for row in rows] == [
        ("made-one", 3, "rw"),
        ("made-two", 3, "rw"),
    ]
    route = cluster.admin.route("made-two")
    assert [part.write_queues for part in route.queues] == [3]


def test_a_topic_takes_all_its_settings(cluster: Embedded) -> None:
    flags = ["--read-queues", "4", "--permission", "r", "--order", "--broker", "broker-a"]
    more = ["--attribute", "+message.type=FIFO"]
    succeed("topic", "create", "made-special", "--queues", "2", *flags, *more)
    config = cluster.admin.topic_config("made-special")["broker-a"]
    assert (config.write_queue_nums, config.read_queue_nums) == (2, 4)
    assert (config.perm, config.order) == (4, True)
    assert config.attributes is not None
    assert "FIFO" in config.attributes.values()
    shown = succeed("topic", "describe", "made-special", "--json").json["settings"][0]
    assert shown["permission"] == "r"
    assert shown["message_type"] == "FIFO"
    assert shown["order"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "a b"),
        (["x" * 200], "127"),
        (["fine", "--broker", "broker-z"], "broker-a"),
        (["fine", "--attribute", "nonsense"], "KEY=VALUE"),
        (["fine", "--queues", "100000000"], "queues"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_topic_that_cannot_be_is_one_sentence(arguments: list[str], said: str) -> None:
    assert said in fail("topic", "create", *arguments)


def test_a_topic_is_described_with_queues_and_groups(orders: str, cluster: Embedded) -> None:
    cluster.admin.create_group("readers-of-orders")
    cluster.admin.reset_offsets("readers-of-orders", orders, "first")
    found = succeed("topic", "describe", orders, "--json").json
    assert found["topic"] == orders
    assert [queue["messages"] for queue in found["queues"]] == [3, 3]
    assert found["groups"] == ["readers-of-orders"]
    shown = succeed("topic", "describe", orders)
    assert "Consumed by: readers-of-orders" in shown.out
    assert ["broker-a", "1", "0", "3", "3"] in [line[:5] for line in shown.lines]


def test_a_topic_that_is_not_there_suggests_the_nearest(orders: str) -> None:
    assert "did you mean orders?" in fail("topic", "describe", "ordres")
    assert "penstock topic create zebra" in fail("topic", "describe", "zebra")


def test_deleting_asks_and_deletes_nothing_without_a_yes(orders: str, cluster: Embedded) -> None:
    cluster.admin.create_topic("to-go", 1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        producer.send(Message("to-go", b"1"))
    said = fail("topic", "delete", "to-go", stdin="y\n")
    assert "1 message at" in said
    assert "--yes" in said
    assert "to-go" in cluster.admin.topics()
    assert succeed("topic", "delete", "to-go", "--yes").out == "Deleted to-go.\n"
    assert "to-go" not in cluster.admin.topics()


def test_deleting_what_is_not_there_does_not_propose_to_create_it(cluster: Embedded) -> None:
    refused = fail("topic", "delete", "zzz-nosuch", "--yes")
    assert "create" not in refused
    assert "penstock topic list --names" in refused


def test_a_typing_error_in_the_last_name_deletes_nothing(cluster: Embedded) -> None:
    cluster.admin.create_topic("to-stay", 1)
    assert "to-sty" in fail("topic", "delete", "to-stay", "to-sty", "--yes")
    assert "to-stay" in cluster.admin.topics()
    done = succeed("topic", "delete", "to-stay", "--yes", "--json")
    assert [(row["topic"], row["deleted"]) for row in done.json] == [("to-stay", True)]


def test_an_empty_cluster_says_how_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock import embedded

    with embedded() as empty:
        done = run("topic", "list", "--namesrv", empty.namesrv)
        assert (done.code, done.out) == (0, "")
        assert "penstock topic create" in done.err
        assert succeed("topic", "list", "--namesrv", empty.namesrv, "--json").json == []


def test_a_namespace_is_the_users_own_view(cluster: Embedded) -> None:
    succeed("topic", "create", "mine", "--namespace", "tenant", "--queues", "1")
    assert succeed("topic", "list", "--names", "--namespace", "tenant").out == "mine\n"
    assert "tenant%mine" in cluster.admin.topics()


def test_a_topic_that_exists_is_left_as_it_is(cluster: Embedded) -> None:
    cluster.admin.create_topic("made-before", 3, permission=4, order=True)
    done = succeed("topic", "create", "made-before")
    assert "topic made-before existed: nothing was changed" in done.err
    assert done.lines[1] == ["made-before", "broker-a", "3", "3", "r"]
    config = cluster.admin.topic_config("made-before")["broker-a"]
    assert (config.write_queue_nums, config.perm, config.order) == (3, 4, True)
    rows = succeed("topic", "create", "made-before", "made-now", "--json").json
    assert [(row["write_queues"], row["existed"]) for row in rows] == [(3, True), (8, False)]


def test_what_changes_of_a_topic_is_said(cluster: Embedded) -> None:
    cluster.admin.create_topic("made-to-change", 2)
    done = succeed("topic", "create", "made-to-change", "--queues", "4")
    assert "topic made-to-change existed: 2 -> 4 queues\n" in done.err
    # Nothing is in them, so nothing is lost.
    done = succeed("topic", "create", "made-to-change", "--queues", "1", "--read-queues", "3")
    assert "existed: 4 -> 1 queues to write, 4 -> 3 queues to read\n" in done.err
    flags = ["--permission", "w", "--order", "--attribute", "message.type=FIFO"]
    done = succeed("topic", "create", "made-to-change", *flags)
    assert "existed: permission rw -> w, ordered, message.type=FIFO\n" in done.err
    config = cluster.admin.topic_config("made-to-change")["broker-a"]
    assert (config.write_queue_nums, config.read_queue_nums) == (1, 3)


def test_messages_that_could_not_be_read_any_more_are_asked_about(cluster: Embedded) -> None:
    cluster.admin.create_topic("made-full", 4)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        for number in range(8):
            producer.send(Message("made-full", str(number).encode()))
    said = fail("topic", "create", "made-unmade", "made-full", "--queues", "1")
    assert "4 -> 1 queues" in said
    assert "6 messages in the queues that go would no longer be read" in said
    assert "--yes" in said
    assert cluster.admin.topic_config("made-full")["broker-a"].read_queue_nums == 4
    assert "made-unmade" not in cluster.admin.topics()
    succeed("topic", "create", "made-full", "--queues", "1", "--read-queues", "4")
    succeed("topic", "create", "made-full", "--queues", "1", "--yes")
    assert cluster.admin.topic_config("made-full")["broker-a"].read_queue_nums == 1
