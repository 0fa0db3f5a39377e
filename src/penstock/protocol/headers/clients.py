"""Registration of clients, and the requests that brokers send to them."""

from __future__ import annotations

from msgspec import field

from penstock.protocol.headers.codec import Header, Int32, Int64


class HeartbeatResult(Header):
    """Whether the broker takes heartbeats without subscriptions; absent before 5.1.3."""

    supports_v2: bool | None = field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    is_subscription_changed: bool | None = field(default=None, name="IS_SUB_CHANGE")


class UnregisterClient(Header):
    """A client leaves one group."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerList(Header):
    """The members of a consumer group."""

    consumer_group: str


class NotifyConsumerIdsChanged(Header):
    """Members came or went: time to rebalance."""

    consumer_group: str


class ResetOffset(Header):
    """Move a group to a time (-1: the end) or an offset; to a broker (222) or a client (220)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatus(Header):
    """Where the members of a group stand; to a broker (223) or a client (221).

    ``client_addr`` is a client id; empty or absent means all members.
    """

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Header):
    """The state of a consumer; sent to a broker, which forwards it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectly(Header):
    """Have a consumer handle one message now and return the result."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
