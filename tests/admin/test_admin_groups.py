"""Admin and groups: who there is, where they stand, moving them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock import Admin, Message, MessageQueue, Producer, PushConsumer, StoredMessage
from penstock.admin import QueueLag
from penstock.errors import GroupNotFound, IllegalName, InvalidArgument, RequestRefused
from penstock.testing.embedded import Embedded


def consumer_of(
    mq: Embedded, got: list[bytes], *, fails: bool = False, tags: str = "*"
) -> PushConsumer:
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first")

    @consumer.on("orders", tags=tags)
    def bill(message: StoredMessage) -> None:
        got.append(message.body)
        if fails:
            raise ValueError("no")

    return consumer


def send(mq: Embedded, count: int, **fields: str) -> None:
    with Producer("shop", namesrv=mq.namesrv) as producer:
        for number in range(count):
            producer.send(Message("orders", b"%d" % number, **fields))  # type: ignore[arg-type]  # a test's shorthand


def total(rows: list[QueueLag], topic: str = "orders") -> tuple[int, int, int]:
    of_topic = [row for row in rows if row.topic == topic]
    return (
        sum(row.committed for row in of_topic),
        sum(row.latest for row in of_topic),
        sum(row.lag for row in of_topic),
    )


def test_groups_are_made_listed_and_deleted(mq: Embedded) -> None:
    assert mq.admin.groups() == []
    mq.admin.create_group("billing", retry_max_times=3, retry_queue_nums=2)
    assert mq.admin.groups() == ["billing"]
    assert {"TOOLS_CONSUMER", "billing"} <= set(mq.admin.groups(internal=True))
    config = mq.admin.group_config("billing")
    assert set(config) == {"broker-a", "broker-b"}
    assert (config["broker-a"].retry_max_times, config["broker-b"].retry_queue_nums) == (3, 2)
    mq.admin.create_group("billing", consume_enable=False)
    assert not mq.admin.group_config("billing")["broker-b"].consume_enable
    mq.admin.delete_group("billing")
    assert mq.admin.groups() == []


def test_an_unknown_group_is_an_error_that_names_it(mq: Embedded) -> None:
    for ask in (mq.admin.group_config, mq.admin.group_lag, mq.admin.delete_group):
        with pytest.raises(GroupNotFound, match=f"{mq.namesrv}.*'nobody'"):
            ask("nobody")
    with pytest.raises(IllegalName):
        mq.admin.create_group("no body")


def test_no_connection_is_an_empty_list(mq: Embedded) -> None:
    assert mq.admin.clients("nobody") == []
    assert mq.admin.producers("nobody") == []
    assert mq.admin.subscriptions("nobody") == []
    assert mq.admin.connections("nobody") == {}
    assert mq.admin.dead_letters("nobody") == []


def test_clients_are_seen_once_however_many_brokers_see_them(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with consumer_of(mq, [], tags="a || b") as consumer:
        mq.clock.advance("1m")
        [client] = mq.admin.clients("billing")
        assert client.client_id == consumer.client_id
        assert client.language == "PYTHON"
        assert client.broker_names == ("broker-a", "broker-b")
        wanted = {s.topic: s.expression for s in mq.admin.subscriptions("billing")}
        assert wanted == {"orders": "a || b", "%RETRY%billing": "*"}
        seen = mq.admin.connections("billing")
        assert set(seen) == {"broker-a", "broker-b"}
        with Producer("shop", namesrv=mq.namesrv) as producer:
            producer.send(Message("orders", b"1"))
            producer.send(Message("orders", b"2"))
            mq.clock.advance("1m")
            assert [c.client_id for c in mq.admin.producers("shop")] == [producer.client_id]


def test_lag_is_reported_queue_by_queue(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 2)
    got: list[bytes] = []
    with consumer_of(mq, got):
        send(mq, 8)
        mq.clock.advance("1m")
    assert len(got) == 8
    assert total(mq.admin.group_lag("billing")) == (8, 8, 0)
    send(mq, 5)
    rows = mq.admin.group_lag("billing")
    assert total(rows) == (8, 13, 5)
    ours = [(row.broker_name, row.queue_id) for row in rows if row.topic == "orders"]
    assert ours == [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
    assert all(row.lag == row.latest - row.committed for row in rows)
    assert any(row.last_timestamp for row in rows)
    assert mq.admin.topic_groups("orders") == ["billing"]
    assert {row.topic for row in mq.admin.group_lag("billing", topic="orders")} == {"orders"}
    assert mq.admin.group_lag("billing", topic="other") == []


def test_lag_counts_retries_and_needs_no_route_of_theirs(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    got: list[bytes] = []
    with consumer_of(mq, got, fails=True):
        send(mq, 1)
        mq.clock.advance("30s")
    assert len(got) == 2
    mq.clock.advance("1m")
    assert total(mq.admin.group_lag("billing"), "%RETRY%billing") == (1, 2, 1)
    mq.admin.delete_topic("%RETRY%billing")
    assert total(mq.admin.group_lag("billing"))[2] == 0


def test_a_group_can_be_moved_to_the_start_the_end_and_a_time(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with consumer_of(mq, []):
        send(mq, 6)
        mq.clock.advance("1m")
    middle = datetime.fromtimestamp(mq.clock.time(), UTC)
    mq.clock.advance("1m")
    send(mq, 4)
    assert total(mq.admin.group_lag("billing")) == (6, 10, 4)
    moved = mq.admin.reset_offsets("billing", "orders", "first")
    assert set(moved.values()) == {0}
    assert list(moved) == sorted(moved)
    assert total(mq.admin.group_lag("billing")) == (0, 10, 10)
    mq.admin.reset_offsets("billing", "orders", "last")
    assert total(mq.admin.group_lag("billing")) == (10, 10, 0)
    mq.admin.reset_offsets("billing", "orders", middle)
    assert total(mq.admin.group_lag("billing")) == (6, 10, 4)
    mq.admin.reset_offsets("billing", "orders", middle.isoformat())
    assert total(mq.admin.group_lag("billing")) == (6, 10, 4)


def test_a_group_can_be_moved_in_one_queue(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with consumer_of(mq, []):
        send(mq, 8)
        mq.clock.advance("1m")
    queue = MessageQueue("orders", "broker-a", 0)
    assert mq.admin.reset_offsets("billing", "orders", 1, queue=queue) == {queue: 1}
    lags = {(row.topic, row.broker_name): row.lag for row in mq.admin.group_lag("billing")}
    assert lags["orders", "broker-a"] == 3
    assert lags["orders", "broker-b"] == 0
    assert mq.admin.reset_offsets("billing", "orders", "last", queue=queue) == {queue: 4}
    assert mq.admin.reset_offsets("billing", "orders", "first", queue=queue) == {queue: 0}
    # Without force a group is never moved past what it has not seen.
    assert mq.admin.reset_offsets("billing", "orders", "last", queue=queue, force=False) == {
        queue: 0
    }


def test_a_connected_group_is_moved_and_consumes_again(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    got: list[bytes] = []
    with consumer_of(mq, got):
        send(mq, 4)
        mq.clock.advance("1m")
        assert len(got) == 4
        mq.admin.reset_offsets("billing", "orders", "first")
        mq.clock.advance("1m")
        assert len(got) == 8
        queue = MessageQueue("orders", "broker-a", 0)
        mq.admin.reset_offsets("billing", "orders", 1, queue=queue)
        mq.clock.advance("1m")
        assert len(got) == 9
    assert total(mq.admin.group_lag("billing")) == (4, 4, 0)


def test_an_impossible_place_is_refused(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    queue = MessageQueue("orders", "broker-a", 0)
    with pytest.raises(InvalidArgument, match=r"offset 3 for every queue.*queue="):
        mq.admin.reset_offsets("billing", "orders", 3)
    with pytest.raises(InvalidArgument, match="0 to 0"):
        mq.admin.reset_offsets("billing", "orders", 3, queue=queue)
    with pytest.raises(InvalidArgument, match="broker-z"):
        mq.admin.reset_offsets("billing", "orders", 3, queue=MessageQueue("orders", "broker-z", 0))
    with pytest.raises(InvalidArgument, match="is not a time"):
        mq.admin.reset_offsets("billing", "orders", "yesterday")


def test_a_consumer_tells_what_it_is_doing(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with consumer_of(mq, []) as consumer:
        send(mq, 2)
        mq.clock.advance("1m")
        info = mq.admin.running_info("billing", consumer.client_id)
        assert {queue.topic for queue in info.mq_table} >= {"orders"}
        assert {s.topic for s in info.subscription_set} >= {"orders"}
        assert info.stack_trace is None
        assert mq.admin.running_info("billing", consumer.client_id, stacks=True).stack_trace
        with pytest.raises(RequestRefused, match=r"'10\.9\.9\.9@x' of group 'billing'"):
            mq.admin.running_info("billing", "10.9.9.9@x")


def test_a_consumer_handles_a_stored_message_on_request(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    got: list[bytes] = []
    with Producer("shop", namesrv=mq.namesrv) as producer:
        receipt = producer.send(Message("orders", b"1"))
    with consumer_of(mq, got) as consumer:
        mq.clock.advance("1m")
        assert got == [b"1"]
        result = mq.admin.consume_directly("billing", consumer.client_id, receipt.msg_id)
        assert result.consume_result.value == "CR_SUCCESS"
        assert got == [b"1", b"1"]


def test_a_deleted_group_takes_its_topics_with_it(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with consumer_of(mq, [], fails=True):
        send(mq, 1)
        mq.clock.advance("30s")
    assert "%RETRY%billing" in mq.admin.topics(internal=True)
    mq.admin.delete_group("billing")
    mq.clock.advance("1m")
    assert "%RETRY%billing" not in mq.admin.topics(internal=True)
    assert mq.admin.groups() == []
    with pytest.raises(GroupNotFound):
        mq.admin.group_lag("billing")


def test_a_namespace_is_part_of_groups_too(mq: Embedded) -> None:
    with Admin(namesrv=mq.namesrv, namespace="blue") as blue:
        blue.create_group("billing")
        assert blue.groups() == ["billing"]
        assert mq.admin.groups() == ["blue%billing"]
        assert blue.group_lag("billing") == []
