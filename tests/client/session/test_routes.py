"""What a session knows of topics and brokers."""

from __future__ import annotations

import pytest

from penstock.client.session.routes import BrokerAddress, RouteTable, template_route
from penstock.model import BrokerRoute, MessageQueue, QueueRoute, TopicRoute
from penstock.model.names import READ, WRITE


def broker(name: str, **addresses: str) -> BrokerRoute:
    return BrokerRoute(name, "cluster", {int(key[1:]): value for key, value in addresses.items()})


def route(*brokers: BrokerRoute, read: int = 2, write: int = 2, permission: int = 6) -> TopicRoute:
    queues = tuple(QueueRoute(b.broker_name, read, write, permission) for b in brokers)
    return TopicRoute(queues, brokers)


A = broker("broker-a", _0="10.0.0.1:10911", _1="10.0.0.2:10911")
B = broker("broker-b", _0="10.0.0.3:10911")
SLAVE_ONLY = broker("broker-c", _2="10.0.0.4:10911")


def table(**routes: TopicRoute) -> RouteTable:
    result = RouteTable()
    for topic, known in routes.items():
        result.put(topic, known)
    return result


def test_a_route_is_news_once() -> None:
    routes = RouteTable()
    assert routes.put("T", route(A, B))
    assert not routes.put("T", route(A, B))
    assert routes.put("T", route(A))


def test_the_order_in_a_name_servers_answer_is_no_news() -> None:
    routes = table(T=route(A, B))
    assert not routes.put("T", route(B, A))


@pytest.mark.spec("S20")
def test_a_consumer_reads_as_many_queues_as_the_route_says() -> None:
    routes = table(T=route(A, read=3, write=1))
    assert routes.subscribe_queues("T") == tuple(MessageQueue("T", "broker-a", n) for n in range(3))
    assert routes.publish_queues("T") == (MessageQueue("T", "broker-a", 0),)


def test_queues_without_permission_or_master_are_left_out() -> None:
    routes = table(R=route(A, permission=READ), W=route(A, permission=WRITE), C=route(SLAVE_ONLY))
    assert routes.publish_queues("R") == ()
    assert len(routes.subscribe_queues("R")) == 2
    assert routes.subscribe_queues("W") == ()
    assert len(routes.publish_queues("W")) == 2
    assert routes.publish_queues("C") == ()
    assert len(routes.subscribe_queues("C")) == 2


def test_an_unknown_topic_has_no_queues() -> None:
    routes = RouteTable()
    assert "T" not in routes
    assert routes.route("T") is None
    assert routes.publish_queues("T") == routes.subscribe_queues("T") == ()
    assert routes.addresses_of("T") == []


@pytest.mark.spec("S44")
def test_the_newest_route_gives_a_brokers_address() -> None:
    routes = table(T=route(A))
    assert routes.master("broker-a") == "10.0.0.1:10911"
    routes.put("U", route(broker("broker-a", _0="10.9.9.9:10911")))
    assert routes.master("broker-a") == "10.9.9.9:10911"


def test_a_replica_is_found_by_its_number_then_by_the_next() -> None:
    routes = table(T=route(A, broker("broker-d", _0="m:1", _2="s:2")))
    assert routes.replica("broker-a", 1) == BrokerAddress("10.0.0.2:10911", 1)
    assert routes.replica("broker-d", 1) == BrokerAddress("s:2", 2)
    assert routes.replica("broker-d", 5) == BrokerAddress("m:1", 0)
    assert routes.replica("broker-d", 5, only_this=True) is None
    assert routes.replica("missing") is None


def test_a_broker_without_a_master_is_still_reachable_for_reading() -> None:
    routes = table(T=route(SLAVE_ONLY))
    found = routes.replica("broker-c")
    assert found == BrokerAddress("10.0.0.4:10911", 2)
    assert not found.is_master
    assert routes.replica("broker-c", only_this=True) is None
    assert routes.master("broker-c") is None


@pytest.mark.spec("S21")
def test_each_broker_of_a_topic_can_be_asked_for_the_members() -> None:
    routes = table(T=route(A, B, SLAVE_ONLY))
    assert routes.addresses_of("T") == ["10.0.0.1:10911", "10.0.0.3:10911", "10.0.0.4:10911"]


def test_topics_out_of_use_and_their_brokers_are_forgotten() -> None:
    routes = table(T=route(A), U=route(B))
    routes.forget(["T"])
    assert "U" not in routes
    assert set(routes.brokers) == {"broker-a"}
    routes.forget([])
    assert not routes.brokers


def test_a_new_topic_gets_the_templates_brokers_and_a_few_queues() -> None:
    made = template_route(route(A, read=8, write=8), 4)
    assert (made.queues[0].read_queues, made.queues[0].write_queues) == (4, 4)
    small = template_route(route(A, read=2, write=8), 4)
    assert (small.queues[0].read_queues, small.queues[0].write_queues) == (2, 2)
