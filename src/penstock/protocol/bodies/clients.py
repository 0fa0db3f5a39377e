"""Requests of a client to a broker: heartbeats, locks, the check of a filter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from penstock.model import MessageQueue
from penstock.model.java_hash import java_hash
from penstock.protocol.bodies.codec import encode_body, wire
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)


@dataclass(frozen=True, slots=True)
class ProducerData:
    """A producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A consumer group of a client; what clients leave out is what nearly all of them say."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """Every group of a client.

    ``heartbeat_fingerprint`` and ``without_sub`` are heartbeat v2 (5.1.3); None is left out, as
    4.9 does. ``without_sub`` never means that the client unsubscribed.
    """

    client_id: str = field(metadata=wire("clientID"))
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None

    def fingerprint(self) -> int:
        """A number that changes with the groups and their subscriptions only.

        It is Java's hash of the text that fastjson would write, with everything taken out that
        differs from one client or moment to the next.
        """
        bare = dataclasses.replace(
            self,
            client_id="",
            heartbeat_fingerprint=0,
            without_sub=False,
            consumer_data_set=tuple(_without_versions(data) for data in self.consumer_data_set),
        )
        return java_hash(encode_body(bare).decode())


def _without_versions(data: ConsumerData) -> ConsumerData:
    subscriptions = tuple(
        dataclasses.replace(subscription, sub_version=0)
        for subscription in data.subscription_data_set
    )
    return dataclasses.replace(data, subscription_data_set=subscriptions)


@dataclass(frozen=True, slots=True)
class ConsumerList:
    """The client ids of a group's members."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockBatch:
    """The queues a member wants to lock, renew or unlock."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool | None = None


@dataclass(frozen=True, slots=True)
class LockBatchReply:
    """The queues the member holds now."""

    locked: tuple[MessageQueue, ...] = field(default=(), metadata=wire("lockOKMQSet"))


@dataclass(frozen=True, slots=True)
class CheckClientConfig:
    """A filter expression to be checked before it is used."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None
