"""The laws of the tables under any order of registrations, losses and changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.model import QueueRoute
from penstock.nameserver.broker_registration import (
    DEFAULT_TIMEOUT_MS,
    BrokerRegistration,
    RegisterOutcome,
)
from penstock.nameserver.routes import RouteTable
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.routes import ClusterInfo, TopicRouteData
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable

clusters = st.sampled_from(["c1", "c2"])
names = st.sampled_from(["a", "b", "c"])
addresses = st.sampled_from([f"h{i}:1" for i in range(4)])
topic_names = st.sampled_from(["T", "U", "V", "c1", "a"])
connections = st.integers(0, 3)


class NameServer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now = 0
        self.connections = [object() for _ in range(4)]
        self.seen: dict[int, object] = {}

    @rule(
        cluster=clusters,
        name=names,
        broker_id=st.integers(0, 2),
        address=addresses,
        topics=st.sets(topic_names),
        version=st.integers(0, 3),
        state=st.none() | st.integers(0, 2),
        acting=st.none() | st.booleans(),
        connection=connections,
    )
    def register(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        address: str,
        topics: set[str],
        version: int,
        state: int | None,
        acting: bool | None,
        connection: int,
    ) -> None:
        table = TopicConfigTable(
            {topic: TopicConfig(topic, 1, 1) for topic in sorted(topics)},
            DataVersion(version, 0, state),
        )
        registration = BrokerRegistration(
            cluster,
            name,
            broker_id,
            address,
            topics=table,
            enable_acting_master=acting,
            connection=self.connections[connection],
        )
        result = self.table.register(registration, self.now)
        if result.outcome is RegisterOutcome.APPLIED:
            info = self.table.cluster_info().broker_addr_table[name]
            assert info.broker_addrs[broker_id] == address
            assert info.cluster == cluster
            if broker_id == 0:
                assert all(self.table.route(topic) is not None for topic in topics)

    @rule(seconds=st.integers(0, 100))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1000
        for live in self.table.expire(self.now):
            assert live.heard_ms + DEFAULT_TIMEOUT_MS < self.now

    @rule(cluster=clusters, address=addresses)
    def heartbeat(self, cluster: str, address: str) -> None:
        self.table.heartbeat(cluster, address, self.now)

    @rule(connection=connections)
    def lose_connection(self, connection: int) -> None:
        lost = self.connections[connection]
        self.table.connection_lost(lost)
        assert all(live.connection is not lost for live in self.table.live_brokers())

    @rule(cluster=clusters, name=names, address=addresses)
    def unregister(self, cluster: str, name: str, address: str) -> None:
        self.table.unregister(cluster, name, address)

    @rule(topic=topic_names, cluster=st.none() | clusters)
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)

    @rule(topic=topic_names, name=names)
    def register_topic(self, topic: str, name: str) -> None:
        self.table.register_topic(topic, [QueueRoute(name, 1, 1)])

    @rule(name=names, wipe=st.booleans())
    def change_permission(self, name: str, wipe: bool) -> None:
        change = self.table.wipe_write_permission if wipe else self.table.add_write_permission
        change(name)

    @invariant()
    def a_broker_is_known_exactly_while_it_is_live(self) -> None:
        known = {
            (name, broker_id, address)
            for name, data in self.table.cluster_info().broker_addr_table.items()
            for broker_id, address in data.broker_addrs.items()
        }
        live = [(b.broker_name, b.broker_id, b.address) for b in self.table.live_brokers()]
        assert known == set(live)
        assert len(live) == len(set(live))
        assert all(data.broker_addrs for data in self.cluster_info().broker_addr_table.values())

    @invariant()
    def every_topic_has_a_route_whose_brokers_are_known(self) -> None:
        brokers = self.cluster_info().broker_addr_table
        for topic in self.table.topics().topic_list:
            route = self.table.route(topic)
            assert route is not None
            assert route.queues
            assert [b.broker_name for b in route.brokers] == [q.broker_name for q in route.queues]
            assert all(b.broker_name in brokers for b in route.brokers)
            data = TopicRouteData.from_model(route)
            assert decode_body(TopicRouteData, encode_body(data)) == data

    @invariant()
    def the_same_generation_shows_the_same(self) -> None:
        shown = (
            self.cluster_info().broker_addr_table,
            {topic: self.table.route(topic) for topic in self.table.topics().topic_list},
        )
        assert self.seen.setdefault(self.table.generation, shown) == shown

    def cluster_info(self) -> ClusterInfo:
        return self.table.cluster_info()


TestNameServer = NameServer.TestCase
TestNameServer.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
