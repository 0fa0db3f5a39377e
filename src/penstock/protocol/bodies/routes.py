"""What a name server answers: routes, the cluster, the members of a broker name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from penstock.errors import ProtocolError
from penstock.model import BrokerRoute, QueueRoute, TopicRoute
from penstock.protocol.bodies.topics import MAX_QUEUES, QueueCount, TopicQueueMapping
from penstock.protocol.bodies.values import Int32

MAX_ROUTE_QUEUES = 1 << 19
"""Queues of all brokers of a topic, as many as eight brokers can have: a client keeps each."""
_ORDER_ITEM = re.compile(r"[^:]+:([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of a topic under one broker name."""

    broker_name: str
    read_queue_nums: QueueCount
    write_queue_nums: QueueCount
    perm: Int32
    topic_sys_flag: Int32 = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses under one broker name, by broker id."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None
    zone_name: str | None = None

    def broker(self) -> BrokerRoute:
        """The broker as the rest of Penstock knows it."""
        return BrokerRoute(
            self.broker_name,
            self.cluster,
            self.broker_addrs,
            bool(self.enable_acting_master),
            self.zone_name,
        )

    @classmethod
    def from_model(cls, broker: BrokerRoute) -> BrokerData:
        """The wire form of a broker; ids in order, because the Go client takes the first."""
        return cls(
            broker.cluster,
            broker.broker_name,
            dict(sorted(broker.addresses.items())),
            # Written when it is false, too, as 5.x does: the Rust client takes no route without it.
            broker.enable_acting_master,
            broker.zone_name,
        )

    def without_words(self) -> BrokerData:
        """The form of 4.x, for a client that reads Python literals and fails at ``false``."""
        return replace(self, enable_acting_master=None)


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """Where a topic's queues are."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None

    def route(self) -> TopicRoute:
        """The route as the rest of Penstock knows it."""
        count = sum(max(q.read_queue_nums, q.write_queue_nums) for q in self.queue_datas)
        _need_few(count, "queueDatas")
        return TopicRoute(
            tuple(
                QueueRoute(
                    q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag
                )
                for q in self.queue_datas
            ),
            tuple(data.broker() for data in self.broker_datas),
            _checked_order_conf(self.order_topic_conf),
            self.filter_server_table,
        )

    @classmethod
    def from_model(cls, route: TopicRoute) -> TopicRouteData:
        """The wire form of a route."""
        return cls(
            tuple(
                QueueData(
                    q.broker_name, q.read_queues, q.write_queues, q.permission, q.topic_sys_flag
                )
                for q in route.queues
            ),
            tuple(BrokerData.from_model(broker) for broker in route.brokers),
            dict(route.filter_servers),
            route.order_conf,
        )


def _checked_order_conf(conf: str | None) -> str | None:
    """``broker-a:4;broker-b:4``, refused if a producer could not take its queues from it."""
    count = 0
    for item in (conf or "").split(";"):
        match = _ORDER_ITEM.fullmatch(item)
        if item and (match is None or int(match[1]) > MAX_QUEUES):
            raise ProtocolError(
                f"orderTopicConf has {item[:60]!r}",
                expected=f"broker:queues with at most {MAX_QUEUES} queues, joined by ';'",
            )
        count += int(match[1]) if match else 0
    _need_few(count, "orderTopicConf")
    return conf


def _need_few(count: int, where: str) -> None:
    if count > MAX_ROUTE_QUEUES:
        raise ProtocolError(
            f"a route with {count} queues in {where}", expected=f"at most {MAX_ROUTE_QUEUES}"
        )


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Every broker, and which cluster it is in."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """The brokers of one broker name."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: MemberGroup | None = None
