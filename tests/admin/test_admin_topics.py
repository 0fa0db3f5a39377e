"""Admin and topics, against real brokers."""

from __future__ import annotations

import pytest

from penstock import Admin, Message, Producer
from penstock.errors import (
    IllegalName,
    InvalidArgument,
    RequestRefused,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model.names import READ, WRITE
from penstock.testing.embedded import Embedded, embedded


def test_a_new_topic_has_its_queues_on_every_broker_and_is_routed_at_once(mq: Embedded) -> None:
    route = mq.admin.create_topic("orders")
    assert [(q.broker_name, q.read_queues, q.write_queues) for q in route.queues] == [
        ("broker-a", 8, 8),
        ("broker-b", 8, 8),
    ]
    assert mq.admin.route("orders") == route
    assert mq.admin.topics() == ["orders"]


def test_queues_are_counted_per_broker(mq: Embedded) -> None:
    route = mq.admin.create_topic("orders", queues=3)
    assert len(route.publish_queues("orders")) == 6


def test_a_topic_can_be_on_some_brokers_only(mq: Embedded) -> None:
    route = mq.admin.create_topic("orders", 2, brokers=["broker-b"])
    assert [q.broker_name for q in route.queues] == ["broker-b"]
    with pytest.raises(ServiceNotAvailable, match=r"'broker-z'.*broker-a, broker-b"):
        mq.admin.create_topic("orders", 2, brokers=["broker-z"])


def test_a_topic_can_be_changed(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 4)
    mq.admin.create_topic(
        "orders", 2, read_queues=4, permission=READ, attributes={"message.type": "NORMAL"}
    )
    config = mq.admin.topic_config("orders")
    assert set(config) == {"broker-a", "broker-b"}
    changed = config["broker-a"]
    assert (changed.read_queue_nums, changed.write_queue_nums, changed.perm) == (4, 2, READ)
    assert changed.attributes == {"message.type": "NORMAL"}
    assert mq.admin.route("orders").publish_queues("orders") == []


def test_an_ordered_topic_is_announced_as_one(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 4, order=True)
    assert mq.admin.topic_config("orders")["broker-a"].order
    # Brokers learn it again from the name servers, regardless of their own table.
    mq.admin.create_topic("orders", 4, order=False)
    mq.clock.advance("1m")
    assert mq.admin.topic_config("orders")["broker-a"].order
    mq.admin.delete_topic("orders")
    mq.admin.create_topic("orders", 4)
    mq.clock.advance("1m")
    assert not mq.admin.topic_config("orders")["broker-a"].order


def test_internal_topics_are_listed_when_asked_for(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    every = mq.admin.topics(internal=True)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster", "orders"} <= set(every)
    assert every == sorted(every)


def test_a_deleted_topic_is_gone_with_its_messages(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("orders", b"1", keys=["o-1"]))
    mq.admin.delete_topic("orders")
    mq.clock.advance("1m")
    assert mq.admin.topics() == []
    with pytest.raises(TopicNotFound, match=f"'orders'.*{mq.namesrv}"):
        mq.admin.route("orders")
    mq.admin.create_topic("orders", 1)
    assert [row.count for row in mq.admin.topic_stats("orders")] == [0, 0]


def test_a_topic_that_is_not_there_is_an_error_that_names_it(mq: Embedded) -> None:
    for ask in (
        mq.admin.delete_topic,
        mq.admin.route,
        mq.admin.topic_config,
        mq.admin.topic_stats,
        mq.admin.topic_groups,
    ):
        with pytest.raises(TopicNotFound, match="'nothing'"):
            ask("nothing")


@pytest.mark.parametrize("queues", [0, -1, 65_537])
def test_an_impossible_number_of_queues_is_refused(mq: Embedded, queues: int) -> None:
    with pytest.raises(InvalidArgument, match=r"'orders'.*1 to 65536"):
        mq.admin.create_topic("orders", queues)


def test_illegal_names_and_permissions_are_refused_before_anything_is_sent(mq: Embedded) -> None:
    with pytest.raises(IllegalName):
        mq.admin.create_topic("or ders")
    with pytest.raises(InvalidArgument, match="permission 8"):
        mq.admin.create_topic("orders", permission=8)


def test_system_topics_cannot_be_made_or_deleted(mq: Embedded) -> None:
    with pytest.raises(RequestRefused, match=r"UPDATE_AND_CREATE_TOPIC.*'TBW102'"):
        mq.admin.create_topic("TBW102")
    with pytest.raises(RequestRefused, match="'TBW102'"):
        mq.admin.delete_topic("TBW102")


def test_the_ends_of_queues_are_returned(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 2)
    with Producer("shop", namesrv=mq.namesrv) as producer:
        receipts = [producer.send(Message("orders", b"x")) for _ in range(10)]
    rows = mq.admin.topic_stats("orders")
    assert [(row.broker_name, row.queue_id) for row in rows] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
        ("broker-b", 1),
    ]
    assert sum(row.count for row in rows) == 10
    for row in rows:
        sent = [r for r in receipts if r.queue == ("orders", row.broker_name, row.queue_id)]
        assert (row.topic, row.min_offset, row.max_offset) == ("orders", 0, len(sent))
        assert bool(row.last_timestamp) == bool(sent)


def test_a_namespace_hides_what_others_have(mq: Embedded) -> None:
    mq.admin.create_topic("orders", 1)
    with Admin(namesrv=mq.namesrv, namespace="blue") as blue:
        assert blue.topics() == []
        blue.create_topic("orders", 2)
        assert blue.topics() == ["orders"]
        assert [row.topic for row in blue.topic_stats("orders")] == ["orders"] * 4
        assert mq.admin.topics() == ["blue%orders", "orders"]
        blue.delete_topic("orders")
        mq.clock.advance("1m")
        assert mq.admin.topics() == ["orders"]


def test_a_read_only_broker_does_not_hold_a_new_topic_up() -> None:
    with embedded() as mq:
        mq.admin.update_broker_config("broker-a", {"brokerPermission": "4"})
        route = mq.admin.create_topic("orders", 2, permission=READ | WRITE)
        assert [(q.write_queues, q.permission & WRITE) for q in route.queues] == [(2, 0)]
