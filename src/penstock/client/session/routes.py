"""The routes of a session: the queues of topics and the addresses of brokers.

Pure. The addresses of a broker come from the newest route that names it; a broker that no route
names any more is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.model import BrokerRoute, MessageQueue, TopicRoute
from penstock.model.route import MASTER_ID


class BrokerAddress(NamedTuple):
    """The address of one replica of a broker."""

    address: str
    broker_id: int

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


class RouteTable:
    """The routes of all topics in use."""

    __slots__ = ("_brokers", "_publish", "_routes", "_subscribe")

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, BrokerRoute] = {}

    def put(self, topic: str, route: TopicRoute) -> bool:
        """Store a route; return whether it differs from the last one."""
        changed = _ordered(self._routes.get(topic)) != _ordered(route)
        self._routes[topic] = route
        if changed:
            self._publish[topic] = tuple(route.publish_queues(topic))
            self._subscribe[topic] = tuple(route.subscribe_queues(topic))
        for broker in route.brokers:
            self._brokers[broker.broker_name] = broker
        return changed

    def forget(self, topics_in_use: Iterable[str]) -> None:
        """Drop the routes of other topics, and brokers that no route names any more."""
        for topic in self._routes.keys() - set(topics_in_use):
            del self._routes[topic], self._publish[topic], self._subscribe[topic]
        named = {broker.broker_name for route in self._routes.values() for broker in route.brokers}
        for name in self._brokers.keys() - named:
            del self._brokers[name]

    def __contains__(self, topic: object) -> bool:
        return topic in self._routes

    def route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a producer may send to; empty while there is no route."""
        return self._publish.get(topic, ())

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a consumer may pull from; empty while there is no route."""
        return self._subscribe.get(topic, ())

    @property
    def brokers(self) -> Mapping[str, BrokerRoute]:
        """Every known broker by name."""
        return self._brokers

    def master(self, broker_name: str) -> str | None:
        """The address of the master, which takes writes."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.master

    def replica(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> BrokerAddress | None:
        """The replica ``broker_id``; for a missing slave its neighbour; else, if allowed, any."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.addresses:
            return None
        wanted = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
        if not only_this:
            wanted += sorted(broker.addresses)
        for candidate in wanted:
            if candidate in broker.addresses:
                return BrokerAddress(broker.addresses[candidate], candidate)
        return None

    def addresses_of(self, topic: str) -> list[str]:
        """One address of each broker of ``topic``, the master's where there is one."""
        route = self._routes.get(topic)
        found = (self.replica(b.broker_name) for b in route.brokers) if route else ()
        return [replica.address for replica in found if replica is not None]


def _ordered(route: TopicRoute | None) -> TopicRoute | None:
    # Name servers list queues and brokers in any order.
    if route is None:
        return None
    return replace(
        route,
        queues=tuple(sorted(route.queues, key=lambda queue: queue.broker_name)),
        brokers=tuple(sorted(route.brokers, key=lambda broker: broker.broker_name)),
    )


def template_route(route: TopicRoute, max_queues: int) -> TopicRoute:
    """The route of a topic that does not exist yet, derived from the template topic.

    The broker creates the topic with so many queues when its first message arrives.
    """
    return replace(
        route,
        queues=tuple(
            replace(
                queue,
                read_queues=min(max_queues, queue.read_queues),
                write_queues=min(max_queues, queue.read_queues),
            )
            for queue in route.queues
        ),
    )
