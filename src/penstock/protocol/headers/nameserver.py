"""Requests of brokers, clients and tools to a name server."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header, Int32, Int64
from penstock.protocol.headers.routes import GetRouteInfo as GetRouteInfo


class RegisterBroker(Header):
    """A broker and its topics; an absent ``enable_acting_master`` marks a 4.9 broker.

    ``body_crc32`` is the CRC of the body as sent, without its top bit; 0 is not checked.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResult(Header):
    """What a slave needs to find its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Header):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Header):
    """Whether the name server's copy of a broker's topics is stale; also a sign of life."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResult(Header):
    changed: bool


class BrokerHeartbeat(Header):
    """A sign of life in acting-master mode; a plain master sends the first three alone."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    # Spelled unlike the field of RegisterBroker, and it is so on the wire.
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class GetBrokerMemberGroup(Header):
    """The master and slaves of one broker name."""

    cluster_name: str
    broker_name: str


class GetTopicsByCluster(Header):
    cluster: str


class DeleteTopicInNamesrv(Header):
    topic: str
    cluster_name: str | None = None


class RegisterTopic(Header):
    """Make a topic known before a broker has it; the body is a route."""

    topic: str


class PutKvConfig(Header):
    namespace: str
    key: str
    value: str


class GetKvConfig(Header):
    namespace: str
    key: str


class GetKvConfigResult(Header):
    value: str | None = None


class DeleteKvConfig(Header):
    namespace: str
    key: str


class GetKvList(Header):
    namespace: str


class WipeWritePerm(Header):
    """No more sends to any topic of a broker."""

    broker_name: str


class WipeWritePermResult(Header):
    wipe_topic_count: Int32


class AddWritePerm(Header):
    """The reverse of ``WipeWritePerm``."""

    broker_name: str


class AddWritePermResult(Header):
    add_topic_count: Int32
