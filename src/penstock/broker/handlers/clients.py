"""Heartbeats, unregistering, and the members of a group."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.pop.popping import retry_topics
from penstock.broker.state import BrokerState
from penstock.broker.tables.clients import BROADCASTING, ClientChannel
from penstock.broker.tables.topics import READ_WRITE, UNIT_SUB_FLAG
from penstock.errors import ConfigError, ConnectionLost, RequestRefused, SubscriptionIllegal
from penstock.model import Subscription
from penstock.model.names import RETRY_PREFIX, retry_topic
from penstock.model.subscription import SQL92
from penstock.protocol.bodies.clients import (
    CheckClientConfig,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
)
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import POP_RETRY_TOPICS
from penstock.protocol.filters.tags import parse_tags
from penstock.protocol.headers.clients import (
    GetConsumerList,
    HeartbeatResult,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.remoting import Peer
from penstock.remoting.dispatch import Call, handles
from penstock.remoting.promise import error_answer


@handles(RequestCode.HEART_BEAT)
def heartbeat(broker: BrokerState, call: Call) -> Command:
    """Register a client in its groups, with their subscriptions."""
    peer, command = call
    data = call.json(HeartbeatData)
    channel = ClientChannel(
        peer,
        data.client_id,
        command.language.name,
        command.version,
        broker.clock.monotonic(),
        broker.clock.time_ms(),
    )
    for consumer in data.consumer_data_set:
        _register_consumer(broker, channel, consumer, bool(data.without_sub))
    for producer in data.producer_data_set:
        broker.clients.register_producer(producer.group_name, channel)
    # Without heartbeat v2 clients always send their subscriptions.
    header = HeartbeatResult(supports_v2=False, is_subscription_changed=False)
    retries = ",".join(_pop_retry_topics(broker, data))
    extra = {POP_RETRY_TOPICS: retries} if retries else {}
    return Command(0, ext={**encode_header(header), **extra})


def _pop_retry_topics(broker: BrokerState, data: HeartbeatData) -> Iterator[str]:
    """The pop retry topics that exist of the groups and topics in a heartbeat."""
    for consumer in data.consumer_data_set:
        for wanted in consumer.subscription_data_set:
            if not wanted.topic.startswith(RETRY_PREFIX):
                for _, name in retry_topics(broker, consumer.group_name, wanted.topic):
                    yield name


def _register_consumer(
    broker: BrokerState, channel: ClientChannel, data: ConsumerData, without_subscriptions: bool
) -> None:
    group = broker.groups.find_or_create(data.group_name)
    if group is None:
        # As in RocketMQ: the rest of the heartbeat is applied; pulls of the group are refused.
        return
    broker.topics.ensure(
        retry_topic(data.group_name),
        max(1, group.retry_queue_nums),
        READ_WRITE,
        UNIT_SUB_FLAG if data.unit_mode else 0,
    )
    changed = broker.clients.register_consumer(
        data.group_name,
        channel,
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
        subscriptions=None
        if without_subscriptions
        else [_subscription(wanted) for wanted in data.subscription_data_set],
    )
    if changed:
        notify_members(broker, data.group_name)


def _subscription(data: SubscriptionData) -> Subscription:
    """The subscription of a heartbeat; tag codes are computed from the expression."""
    if data.expression_type == SQL92:
        return Subscription(data.topic, data.sub_string, data.sub_version, SQL92)
    try:
        tags, codes = parse_tags(data.sub_string)
    except SubscriptionIllegal:
        tags, codes = frozenset(), frozenset()
    return Subscription(
        data.topic,
        data.sub_string,
        data.sub_version,
        tags=tags,
        tag_codes=codes,
        class_filter_mode=data.class_filter_mode,
    )


def notify_members(broker: BrokerState, group: str) -> None:
    """Notify the members of a group that it changed, so that they rebalance."""
    members = broker.clients.consumer_group(group)
    config = broker.groups.get(group)
    if (
        members is None
        or members.message_model == BROADCASTING
        or not broker.config.notify_consumer_ids_changed_enable
        or (config is not None and not config.notify_consumer_ids_changed_enable)
    ):
        return
    ext = encode_header(NotifyConsumerIdsChanged(group))
    for peer in list(members.channels):
        try:
            peer.oneway(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext=dict(ext)))
        except ConnectionLost:
            # The connection is closing; the other members are still notified.
            continue


def forget_peer(broker: BrokerState, peer: Peer) -> None:
    """Remove a closed connection from its groups, its held pulls and the locks bound to it."""
    broker.held.drop_peer(peer)
    broker.lock_endings.notify_at(broker.locks.connection_closed(peer))
    broker.pop.held.drop_peer(peer)
    broker.pop.notified.drop_peer(peer)
    for group in broker.clients.drop_peer(peer):
        notify_members(broker, group)


@handles(RequestCode.UNREGISTER_CLIENT)
def unregister_client(broker: BrokerState, call: Call) -> Command:
    """Remove a client from a group."""
    if not call.command.ext:
        # The .NET client sends a body that brokers ignore, and then closes its connection.
        return Command(0, ext={})
    ask = decode_header(UnregisterClient, call.command.ext)
    if ask.producer_group:
        broker.clients.unregister_producer(ask.producer_group, call.peer)
    if ask.consumer_group and broker.clients.unregister_consumer(ask.consumer_group, call.peer):
        notify_members(broker, ask.consumer_group)
    return Command(0, ext={})


@handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
def get_consumer_list(broker: BrokerState, ask: GetConsumerList) -> Command:
    """The client ids of a group's members."""
    members = broker.clients.consumer_group(ask.consumer_group)
    if members is None:
        error = RequestRefused(f"no consumer for this group, {ask.consumer_group}")
        return error_answer(error, ext={})
    return Command(0, ext={}, body=encode_body(ConsumerList(tuple(members.client_ids()))))


@handles(RequestCode.CHECK_CLIENT_CONFIG)
def check_client_config(broker: BrokerState, call: Call) -> None:
    """Check the filter expression of a consumer that is about to start."""
    ask = call.json(CheckClientConfig).subscription_data
    if ask.expression_type == SQL92 and not broker.config.enable_property_filter:
        error = ConfigError(
            "The broker does not support consumer to filter message by SQL92",
            hint="set enablePropertyFilter=true on the broker",
        )
        error.code = 1
        raise error
    broker.filters.compile(ask.sub_string, ask.expression_type)
