"""What brokers, clients and tools say to a name server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.codec import Int32, Int64
from penstock.protocol.headers.routes import GetRouteInfo as GetRouteInfo


@dataclass(slots=True)
class RegisterBroker:
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


@dataclass(slots=True)
class RegisterBrokerResult:
    """What a slave needs to find its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class UnregisterBroker:
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@dataclass(slots=True)
class QueryDataVersion:
    """Whether the name server's copy of a broker's topics is stale; also a sign of life."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@dataclass(slots=True)
class QueryDataVersionResult:
    changed: bool


@dataclass(slots=True)
class BrokerHeartbeat:
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


@dataclass(slots=True)
class GetBrokerMemberGroup:
    """The master and slaves of one broker name."""

    cluster_name: str
    broker_name: str


@dataclass(slots=True)
class GetTopicsByCluster:
    cluster: str


@dataclass(slots=True)
class DeleteTopicInNamesrv:
    topic: str
    cluster_name: str | None = None


@dataclass(slots=True)
class RegisterTopic:
    """Make a topic known before a broker has it; the body is a route."""

    topic: str


@dataclass(slots=True)
class PutKvConfig:
    namespace: str
    key: str
    value: str


@dataclass(slots=True)
class GetKvConfig:
    namespace: str
    key: str


@dataclass(slots=True)
class GetKvConfigResult:
    value: str | None = None


@dataclass(slots=True)
class DeleteKvConfig:
    namespace: str
    key: str


@dataclass(slots=True)
class GetKvList:
    namespace: str


@dataclass(slots=True)
class WipeWritePerm:
    """No more sends to any topic of a broker."""

    broker_name: str


@dataclass(slots=True)
class WipeWritePermResult:
    wipe_topic_count: Int32


@dataclass(slots=True)
class AddWritePerm:
    """The reverse of ``WipeWritePerm``."""

    broker_name: str


@dataclass(slots=True)
class AddWritePermResult:
    add_topic_count: Int32
