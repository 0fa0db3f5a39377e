"""Registrations, expiry and routes of a name server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from penstock.errors import RequestRefused
from penstock.model import BrokerRoute, MessageQueue, QueueRoute, TopicRoute
from penstock.nameserver.broker_registration import (
    DEFAULT_TIMEOUT_MS,
    BrokerRegistration,
    RegisterOutcome,
    RegisterResult,
)
from penstock.nameserver.routes import UNIT, UNIT_SUBSCRIPTION, RouteTable
from penstock.protocol.bodies.common import DataVersion, TopicList
from penstock.protocol.bodies.routes import BrokerData, BrokerMemberGroup, ClusterInfo, MemberGroup
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable

NOW = 1_700_000_000_000
A = "10.0.0.5:10911"
B = "10.0.0.6:10911"


def topics(
    *names: str,
    version: int = 1,
    state: int | None = 0,
    queues: int = 4,
    perm: int = 6,
    sys_flag: int = 0,
) -> TopicConfigTable:
    return TopicConfigTable(
        {name: TopicConfig(name, queues, queues, perm, topic_sys_flag=sys_flag) for name in names},
        DataVersion(version, NOW, state),
    )


def broker(
    name: str = "broker-a",
    broker_id: int = 0,
    address: str = A,
    table: TopicConfigTable | None = None,
    *,
    cluster: str = "DefaultCluster",
    filter_servers: tuple[str, ...] = (),
    timeout_ms: int | None = None,
    acting: bool | None = False,
    connection: object = None,
) -> BrokerRegistration:
    return BrokerRegistration(
        cluster,
        name,
        broker_id,
        address,
        f"{address.split(':')[0]}:10912",
        topics("T", "U") if table is None else table,
        filter_servers,
        timeout_ms,
        acting,
        None,
        connection,
    )


def routed(table: RouteTable, topic: str) -> TopicRoute:
    route = table.route(topic)
    assert route is not None
    return route


def permission(table: RouteTable, topic: str) -> int:
    (queue,) = routed(table, topic).queues
    return queue.permission


class TestRegistering:
    @pytest.mark.spec("S11")
    def test_a_registered_topic_has_a_route_at_once(self) -> None:
        table = RouteTable()
        assert table.route("T") is None
        assert table.register(broker(), NOW) == RegisterResult(RegisterOutcome.APPLIED)
        route = routed(table, "T")
        assert route.queues == (QueueRoute("broker-a", 4, 4, 6),)
        assert route.brokers == (BrokerRoute("broker-a", "DefaultCluster", {0: A}),)
        assert route.publish_queues("T") == [MessageQueue("T", "broker-a", i) for i in range(4)]

    @pytest.mark.spec("S11")
    def test_a_topic_created_later_is_added_by_itself(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(table=topics("new", version=2)), NOW)
        assert table.topics() == TopicList(("T", "U", "new"))

    def test_topics_that_a_later_registration_leaves_out_are_kept(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(table=topics(version=2)), NOW)
        assert table.topics().topic_list == ("T", "U")

    def test_topics_left_out_can_be_made_to_go(self) -> None:
        table = RouteTable(delete_unmentioned_topics=True)
        table.register(broker(table=topics("T", "U", "V")), NOW)
        table.register(broker(table=topics("W", version=2)), NOW)
        assert table.topics().topic_list == ("T", "U", "V", "W")
        table.register(broker(table=topics("V", "W", version=3)), NOW)
        assert table.topics().topic_list == ("V", "W")

    def test_a_first_registration_with_one_topic_is_refused_without_a_trace(self) -> None:
        table = RouteTable()
        result = table.register(broker(table=topics("T")), NOW)
        assert result.outcome is RegisterOutcome.REFUSED
        assert not result.accepted
        assert table.cluster_info() == ClusterInfo()
        assert table.route("T") is None
        assert table.generation == 0

    def test_4_9_takes_a_first_registration_with_one_topic(self) -> None:
        table = RouteTable(refuse_single_topic_first=False)
        assert table.register(broker(table=topics("T")), NOW).accepted
        assert table.route("T") is not None

    def test_a_first_registration_without_topics_is_taken(self) -> None:
        table = RouteTable()
        assert table.register(broker(table=topics()), NOW).accepted
        assert table.register(broker(table=topics("T", version=2)), NOW).accepted
        assert table.route("T") is not None

    def test_two_brokers_share_a_topic(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("broker-b", 0, B, topics("T", "X", queues=2)), NOW)
        route = routed(table, "T")
        assert [(q.broker_name, q.write_queues) for q in route.queues] == [
            ("broker-a", 4),
            ("broker-b", 2),
        ]
        assert {b.broker_name: b.master for b in route.brokers} == {"broker-a": A, "broker-b": B}
        assert len(routed(table, "X").brokers) == 1

    def test_queue_data_changes_only_with_the_data_version(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", queues=4)), NOW)
        table.register(broker(table=topics("T", "U", "V", queues=8)), NOW)
        assert routed(table, "T").queues[0].write_queues == 4
        assert routed(table, "V").queues[0].write_queues == 8
        table.register(broker(table=topics("T", "U", version=2, queues=8)), NOW)
        assert routed(table, "T").queues[0].write_queues == 8

    def test_a_name_server_of_mixed_releases_compares_versions_of_4_9(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", state=None)), NOW)
        table.register(broker(table=topics("T", "U", queues=8, state=0)), NOW)
        assert routed(table, "T").queues[0].write_queues == 4

    def test_filter_servers_come_and_go_with_the_registration(self) -> None:
        table = RouteTable()
        table.register(broker(filter_servers=("f:1", "f:2")), NOW)
        assert routed(table, "T").filter_servers == {A: ("f:1", "f:2")}
        table.register(broker(), NOW)
        assert routed(table, "T").filter_servers == {}

    def test_an_address_under_a_new_name_leaves_the_old_one(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("renamed", table=topics("T", "W")), NOW)
        assert table.cluster_info().cluster_addr_table == {"DefaultCluster": ("renamed",)}
        assert table.topics().topic_list == ("T", "W")

    def test_one_address_may_be_in_two_clusters(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("broker-x", cluster="Other"), NOW)
        assert table.cluster_info().cluster_addr_table == {
            "DefaultCluster": ("broker-a",),
            "Other": ("broker-x",),
        }
        assert table.unregister("Other", "broker-x", A)
        assert len(routed(table, "T").brokers) == 1


class TestRoles:
    def test_a_slave_learns_its_master(self) -> None:
        table = RouteTable()
        assert table.register(broker(broker_id=1, address=B), NOW).master_address is None
        table.register(broker(), NOW)
        result = table.register(broker(broker_id=1, address=B), NOW)
        assert result == RegisterResult(RegisterOutcome.APPLIED, A, "10.0.0.5:10912")
        assert routed(table, "T").brokers[0].addresses == {0: A, 1: B}

    def test_queue_data_is_the_masters(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(broker_id=1, address=B, table=topics("T", "S", queues=1)), NOW)
        assert routed(table, "T").queues[0].write_queues == 4
        assert table.route("S") is None

    def test_a_slave_of_an_old_release_never_gives_queue_data(self) -> None:
        table = RouteTable()
        table.register(broker(broker_id=1, address=B, acting=None), NOW)
        assert table.route("T") is None
        assert table.cluster_info().broker_addr_table["broker-a"].broker_addrs == {1: B}

    def test_the_slave_with_the_lowest_id_gives_queue_data_while_there_is_no_master(self) -> None:
        table = RouteTable()
        table.register(broker(broker_id=2, address=B), NOW)
        table.register(broker(broker_id=3, address="c:1", table=topics("W", "X")), NOW)
        assert table.topics().topic_list == ("T", "U")
        assert routed(table, "T").publish_queues("T") == []

    def test_a_slave_that_acts_as_master_can_be_read_only(self) -> None:
        table = RouteTable(support_acting_master=True)
        table.register(broker(acting=True), NOW)
        table.register(broker(broker_id=1, address=B, acting=True), NOW)
        assert routed(table, "T").brokers[0].addresses == {0: A, 1: B}
        table.unregister("DefaultCluster", "broker-a", A)
        assert permission(table, "T") == 4
        assert routed(table, "T").brokers[0].addresses == {0: B}
        table.register(
            broker(broker_id=1, address=B, table=topics("T", "U", version=9), acting=True), NOW
        )
        assert permission(table, "T") == 4
        table.register(broker(table=topics("T", "U", version=10), acting=True), NOW)
        assert permission(table, "T") == 6
        assert routed(table, "T").brokers[0].addresses == {0: A, 1: B}

    def test_an_acting_master_is_shown_only_where_that_is_supported(self) -> None:
        table = RouteTable()
        table.register(broker(broker_id=1, address=B, acting=True), NOW)
        assert routed(table, "T").brokers[0].addresses == {1: B}
        assert permission(table, "T") == 4

    def test_a_slave_becomes_master_under_its_address(self) -> None:
        table = RouteTable()
        table.register(broker(broker_id=1, address=B), NOW)
        table.register(broker(broker_id=0, address=B), NOW)
        assert routed(table, "T").brokers[0].addresses == {0: B}
        assert [live.broker_id for live in table.live_brokers()] == [0]

    def test_a_new_address_takes_over_an_id(self) -> None:
        table = RouteTable()
        table.register(broker(filter_servers=("f:1",)), NOW)
        table.register(broker(address=B, table=topics("T", "U", queues=7)), NOW)
        assert routed(table, "T").brokers[0].addresses == {0: B}
        assert routed(table, "T").queues[0].write_queues == 7
        assert not table.heartbeat("DefaultCluster", A, NOW)
        assert routed(table, "T").filter_servers == {}

    def test_an_older_state_does_not_take_over_an_id(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", state=5)), NOW)
        result = table.register(broker(address=B, table=topics("T", "U", state=4)), NOW)
        assert result.outcome is RegisterOutcome.IGNORED
        assert result.accepted
        assert result.master_address is None
        assert routed(table, "T").brokers[0].addresses == {0: A}

    def test_a_slave_that_claims_an_id_with_an_older_state_is_dropped(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", state=5)), NOW)
        table.register(broker(broker_id=1, address=B), NOW)
        table.register(broker(address=B, table=topics("T", "U", state=4)), NOW)
        assert routed(table, "T").brokers[0].addresses == {0: A}

    def test_a_broker_may_move_to_another_cluster(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(address=B, cluster="Other"), NOW)
        assert table.cluster_info().cluster_addr_table == {"Other": ("broker-a",)}
        assert routed(table, "T").brokers[0].cluster == "Other"
        table.unregister("Other", "broker-a", B)
        assert table.cluster_info() == ClusterInfo()


class TestLeaving:
    @pytest.mark.spec("S11")
    def test_a_silent_broker_is_gone_after_120_seconds(self) -> None:
        table = RouteTable()
        table.register(broker(connection="c1"), NOW)
        assert table.expire(NOW + DEFAULT_TIMEOUT_MS) == []
        (lost,) = table.expire(NOW + DEFAULT_TIMEOUT_MS + 1)
        assert (lost.broker_name, lost.address, lost.connection) == ("broker-a", A, "c1")
        assert table.route("T") is None
        assert table.topics() == TopicList()
        assert table.cluster_info() == ClusterInfo()
        assert table.expire(NOW + 10 * DEFAULT_TIMEOUT_MS) == []

    @pytest.mark.parametrize("sign", ["registration", "heartbeat", "version"])
    def test_every_sign_of_life_counts(self, sign: str) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        later = NOW + DEFAULT_TIMEOUT_MS
        if sign == "registration":
            table.register(broker(), later)
        elif sign == "heartbeat":
            assert table.heartbeat("DefaultCluster", A, later)
        else:
            table.query_data_version("DefaultCluster", A, DataVersion(1, NOW, 0), later)
        assert table.expire(later + DEFAULT_TIMEOUT_MS) == []
        assert len(table.expire(later + DEFAULT_TIMEOUT_MS + 1)) == 1

    def test_a_broker_may_bring_its_own_timeout(self) -> None:
        table = RouteTable()
        table.register(broker(timeout_ms=10_000), NOW)
        table.register(broker("broker-b", 0, B, timeout_ms=-1), NOW)
        assert [live.broker_name for live in table.expire(NOW + 10_001)] == ["broker-a"]

    def test_a_heartbeat_of_an_unknown_broker_is_not_a_registration(self) -> None:
        table = RouteTable()
        assert not table.heartbeat("DefaultCluster", A, NOW)
        assert table.live_brokers() == []

    def test_a_lost_connection_removes_the_broker_at_once(self) -> None:
        table = RouteTable()
        first, second = object(), object()
        table.register(broker(connection=first), NOW)
        table.register(broker("broker-b", 0, B, connection=second), NOW)
        assert [live.broker_name for live in table.connection_lost(first)] == ["broker-a"]
        assert [q.broker_name for q in routed(table, "T").queues] == ["broker-b"]
        assert table.connection_lost(first) == []

    def test_the_end_of_an_older_connection_does_not_matter(self) -> None:
        table = RouteTable()
        first, second = object(), object()
        table.register(broker(connection=first), NOW)
        table.register(broker(connection=second), NOW)
        assert table.connection_lost(first) == []
        assert table.route("T") is not None

    def test_a_broker_leaves_with_its_queues(self) -> None:
        table = RouteTable()
        table.register(broker(filter_servers=("f:1",)), NOW)
        table.register(broker("broker-b", 0, B, topics("T", "X")), NOW)
        assert table.unregister("DefaultCluster", "broker-a", A)
        assert table.topics().topic_list == ("T", "X")
        assert not table.unregister("DefaultCluster", "broker-a", A)
        assert not table.unregister("DefaultCluster", "other-name", B)

    def test_a_slave_leaves_without_the_queues_of_its_master(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(broker_id=1, address=B), NOW)
        table.unregister("DefaultCluster", "broker-a", B)
        assert routed(table, "T").brokers[0].addresses == {0: A}

    def test_without_its_master_a_name_keeps_its_queues_for_readers(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker(broker_id=1, address=B), NOW)
        table.unregister("DefaultCluster", "broker-a", A)
        route = routed(table, "T")
        assert route.publish_queues("T") == []
        assert len(route.subscribe_queues("T")) == 4


class TestVersions:
    def test_a_broker_learns_whether_it_must_register_again(self) -> None:
        table = RouteTable()
        version = DataVersion(1, NOW, 0)
        assert table.query_data_version("DefaultCluster", A, version, NOW) == (True, None)
        table.register(broker(), NOW)
        assert table.query_data_version("DefaultCluster", A, version, NOW) == (False, version)
        newer = DataVersion(2, NOW, 0)
        assert table.query_data_version("DefaultCluster", A, newer, NOW) == (True, version)
        assert table.query_data_version("Other", A, version, NOW) == (True, None)

    def test_the_generation_changes_with_what_can_be_seen_and_only_then(self) -> None:
        table = RouteTable()
        seen = {table.generation}

        def changed() -> bool:
            before = len(seen)
            seen.add(table.generation)
            return len(seen) > before

        table.register(broker(), NOW)
        assert changed()
        table.register(broker(), NOW + 1)
        table.register(broker(table=topics("T", "U", version=2)), NOW + 1)
        table.heartbeat("DefaultCluster", A, NOW + 2)
        table.expire(NOW + 3)
        table.register(broker("refused", table=topics("T")), NOW)
        assert not changed()
        table.register(broker(table=topics("V", version=3)), NOW + 1)
        assert changed()
        table.register(broker(table=topics("T", "U", version=4, queues=5)), NOW + 1)
        assert changed()
        table.register(broker(broker_id=1, address=B), NOW)
        assert changed()
        table.register(broker(filter_servers=("f:1",)), NOW)
        assert changed()
        table.wipe_write_permission("broker-a")
        assert changed()
        table.wipe_write_permission("broker-a")
        assert not changed()
        table.delete_topic("V")
        assert changed()
        table.unregister("DefaultCluster", "broker-a", B)
        assert changed()
        table.expire(NOW + 10 * DEFAULT_TIMEOUT_MS)
        assert changed()


class TestOperators:
    def test_write_permission_is_wiped_until_the_next_changed_registration(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", perm=7)), NOW)
        table.register(broker("broker-b", 0, B), NOW)
        assert table.wipe_write_permission("broker-a") == 2
        assert [q.permission for q in routed(table, "T").queues] == [5, 6]
        table.register(broker(table=topics("T", "U", perm=7)), NOW)
        assert [q.permission for q in routed(table, "T").queues] == [5, 6]
        table.register(broker(table=topics("T", "U", perm=7, version=2)), NOW)
        assert [q.permission for q in routed(table, "T").queues] == [7, 6]

    def test_write_permission_is_given_back(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("T", "U", perm=0)), NOW)
        assert table.add_write_permission("broker-a") == 2
        assert permission(table, "T") == 6
        assert table.wipe_write_permission("unknown") == 0

    def test_a_topic_is_deleted_everywhere(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("broker-b", 0, B), NOW)
        assert table.delete_topic("T")
        assert table.route("T") is None
        assert not table.delete_topic("T")

    def test_a_topic_is_deleted_in_one_cluster(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("broker-b", 0, B, cluster="Other"), NOW)
        assert table.delete_topic("T", "Other")
        assert [q.broker_name for q in routed(table, "T").queues] == ["broker-a"]
        assert not table.delete_topic("T", "Unknown")
        assert table.delete_topic("T", "DefaultCluster")
        assert table.route("T") is None

    def test_the_4_9_admin_tool_swaps_topic_and_cluster(self) -> None:
        # Seen on the wire: clusterName=golden-wo, topic=DefaultCluster.
        table = RouteTable()
        table.register(broker(table=topics("golden-wo", "DefaultCluster")), NOW)
        assert table.delete_topic("DefaultCluster", "golden-wo")
        assert table.topics().topic_list == ("DefaultCluster",)

    def test_a_topic_is_registered_for_brokers_that_are_known(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        queue = QueueRoute("broker-a", 2, 2, 6)
        assert table.register_topic("W", [queue])
        assert routed(table, "W").queues == (queue,)
        assert not table.register_topic("X", [queue, QueueRoute("unknown", 1, 1)])
        assert not table.register_topic("X", [])
        assert table.route("X") is None


class TestLists:
    def test_the_cluster_with_its_brokers(self) -> None:
        table = RouteTable()
        table.register(broker(acting=None), NOW)
        table.register(broker(broker_id=1, address=B, acting=None), NOW)
        assert table.cluster_info() == ClusterInfo(
            {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: A, 1: B}, False)},
            {"DefaultCluster": ("broker-a",)},
        )

    def test_the_members_of_a_broker_name(self) -> None:
        table = RouteTable()
        empty = BrokerMemberGroup(MemberGroup("DefaultCluster", "broker-a", {}))
        assert table.member_group("DefaultCluster", "broker-a") == empty
        table.register(broker(broker_id=1, address=B), NOW)
        table.register(broker(), NOW)
        group = table.member_group("DefaultCluster", "broker-a").broker_member_group
        assert group is not None
        assert list(group.broker_addrs.items()) == [(0, A), (1, B)]

    def test_topics_of_a_cluster(self) -> None:
        table = RouteTable()
        table.register(broker(), NOW)
        table.register(broker("broker-b", 0, B, topics("T", "X"), cluster="Other"), NOW)
        assert table.topics_of_cluster("DefaultCluster").topic_list == ("T", "U")
        assert table.topics_of_cluster("Other").topic_list == ("T", "X")
        assert table.topics_of_cluster("Unknown") == TopicList()

    def test_system_topics_name_a_broker_to_ask(self) -> None:
        table = RouteTable()
        assert table.system_topics() == TopicList()
        table.register(broker(), NOW)
        table.register(broker("broker-b", 0, B), NOW)
        assert table.system_topics() == TopicList(("DefaultCluster", "broker-a", "broker-b"), A)

    def test_unit_topics_are_recognized_by_their_flags(self) -> None:
        table = RouteTable()
        table.register(broker(table=topics("unit", "x", sys_flag=UNIT)), NOW)
        table.register(broker(table=topics("both", "y", version=2, sys_flag=3)), NOW)
        table.register(broker(table=topics("sub", "z", version=3, sys_flag=UNIT_SUBSCRIPTION)), NOW)
        assert table.topics_with_flags(UNIT).topic_list == ("unit", "x", "both", "y")
        assert table.topics_with_flags(UNIT_SUBSCRIPTION).topic_list == ("both", "y", "sub", "z")
        assert table.topics_with_flags(UNIT_SUBSCRIPTION, UNIT).topic_list == ("sub", "z")


# Cost and bounds


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the route table are executed: a measure that no other load changes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_globals.get("__name__") == RouteTable.__module__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def crowded(brokers: int) -> RouteTable:
    table = RouteTable()
    for number in range(brokers):
        names = [f"T{number}-{topic}" for topic in range(20)]
        registered = broker(f"b{number}", 0, f"h{number}:1", topics(*names), connection=number)
        assert table.register(registered, NOW).accepted
    return table


def test_a_broker_that_comes_or_goes_costs_no_more_among_many() -> None:
    def costs(table: RouteTable) -> list[int]:
        new = broker("new", 0, "new:1", topics("T", "U"), connection="new")
        return [
            lines_run(lambda: table.register(new, NOW)),
            lines_run(lambda: table.register(new, NOW + 1)),
            lines_run(lambda: table.connection_lost("new")),
            lines_run(lambda: table.connection_lost("unknown")),
            lines_run(lambda: table.unregister("DefaultCluster", "b3", "h3:1")),
            lines_run(lambda: table.wipe_write_permission("b4")),
        ]

    assert costs(crowded(10)) == costs(crowded(400))


def test_the_indexes_are_empty_when_all_brokers_have_left() -> None:
    table = crowded(30)
    for number in range(10):
        assert len(table.connection_lost(number)) == 1
        assert table.connection_lost(number) == []
        assert table.unregister("DefaultCluster", f"b{number + 10}", f"h{number + 10}:1")
    assert len(table.expire(NOW + DEFAULT_TIMEOUT_MS + 1)) == 10
    assert table.topics() == TopicList(())
    assert all(not value for value in vars(table).values() if isinstance(value, dict))


def test_a_broker_that_registers_over_another_connection_belongs_to_that_one() -> None:
    table = RouteTable()
    table.register(broker(connection="first"), NOW)
    table.register(broker(connection="second"), NOW)
    assert table.connection_lost("first") == []
    assert len(table.connection_lost("second")) == 1


def test_brokers_beyond_the_bound_are_refused_and_known_ones_are_heard() -> None:
    table = RouteTable(max_brokers=2)
    table.register(broker("a", address="h1:1"), NOW)
    table.register(broker("b", address="h2:1"), NOW)
    with pytest.raises(RequestRefused, match="no room for broker c at h3:1"):
        table.register(broker("c", address="h3:1"), NOW)
    assert table.register(broker("a", address="h1:1"), NOW).accepted
    table.unregister("DefaultCluster", "b", "h2:1")
    assert table.register(broker("c", address="h3:1"), NOW).accepted


def test_topics_beyond_the_bound_are_refused_and_their_broker_stays() -> None:
    table = RouteTable(max_routes=4)
    table.register(broker("a", address="h1:1", table=topics("T", "U")), NOW)
    with pytest.raises(RequestRefused, match="no room for 3 more topics"):
        table.register(broker("b", address="h2:1", table=topics("T", "V", "W")), NOW)
    assert [live.broker_name for live in table.live_brokers()] == ["a"]
    later = NOW + DEFAULT_TIMEOUT_MS - 1
    with pytest.raises(RequestRefused, match="no room for 3 more topics"):
        table.register(broker("a", address="h1:1", table=topics("T", "V", "W", "X")), later)
    # Its new topics are refused; that it lives is noted.
    assert table.expire(later + DEFAULT_TIMEOUT_MS) == []
    full = topics("T", "U", "V", "W", version=2)
    assert table.register(broker("a", address="h1:1", table=full), later).accepted
    assert table.register(broker("a", address="h1:1", table=full), later).accepted
    with pytest.raises(RequestRefused, match="no room for 1 more topics"):
        table.register_topic("X", [QueueRoute("a", 1, 1, 6)])
    assert table.register_topic("W", [QueueRoute("a", 8, 8, 6)])
    table.delete_topic("W")
    assert table.register_topic("X", [QueueRoute("a", 1, 1, 6)])
