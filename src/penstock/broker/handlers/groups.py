"""Consumer groups: created, changed, listed, deleted; their members and subscriptions."""

from __future__ import annotations

import dataclasses

from penstock.broker.handlers.table_requests import (
    MAX_LIST_BYTES,
    answer_when_saved,
    page_of,
    table_text,
)
from penstock.broker.state import BrokerState
from penstock.broker.tables.attributes import GROUP_ATTRIBUTES, changed_attributes
from penstock.broker.tables.clients import ClientChannel
from penstock.broker.tables.groups import GROUPS_FILE
from penstock.errors import ConsumerNotOnline, GroupNotFound, InvalidArgument, RequestRefused
from penstock.model.names import retry_topic
from penstock.protocol.bodies.common import (
    Connection,
    ConsumeFromWhere,
    ConsumerConnections,
    ConsumeType,
    GroupSubscription,
    MessageModel,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
    TopicList,
)
from penstock.protocol.bodies.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from penstock.protocol.bodies.topics import MAX_QUEUES
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import (
    DeleteGroup,
    GetAllGroupConfig,
    GetAllGroupConfigResult,
    GetConsumerConnections,
    GetGroupConfig,
    GetProducerConnections,
    QuerySubscription,
    QueryTopicsByConsumer,
)
from penstock.protocol.validation import check_group
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.remoting.long_answers import Steps


@handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
def update_group(broker: BrokerState, call: Call) -> Promise:
    """Create a group, or change it."""
    _put(broker, call.json(SubscriptionGroupConfig))
    return answer_when_saved(broker, GROUPS_FILE)


@handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
def update_groups(broker: BrokerState, call: Call) -> Promise:
    """Create or change several groups."""
    configs = call.json(SubscriptionGroupList, MAX_LIST_BYTES).group_config_list
    for config in configs:
        _checked(broker, config)
    for config in configs:
        _put(broker, config)
    return answer_when_saved(broker, GROUPS_FILE)


def _put(broker: BrokerState, config: SubscriptionGroupConfig) -> None:
    broker.groups.put(_checked(broker, config))


def _checked(broker: BrokerState, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """The group with its attributes changed; a request brings changes of attributes."""
    check_group(config.group_name)
    # 0 is legal: RocketMQ then drops the messages that the group sends back.
    if config.retry_queue_nums > MAX_QUEUES:
        raise InvalidArgument(
            f"{config.retry_queue_nums} retry queues for {config.group_name}",
            expected=f"at most {MAX_QUEUES}",
        )
    before = broker.groups.get(config.group_name)
    attributes = changed_attributes(
        None if before is None else before.attributes, config.attributes, GROUP_ATTRIBUTES
    )
    return dataclasses.replace(config, attributes=attributes)


@handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
def delete_group(broker: BrokerState, ask: DeleteGroup) -> Promise:
    """Delete a group, and its offsets if the request says so."""
    broker.pop.finish_all(group=ask.group_name)
    broker.pop.modes.remove(group=ask.group_name)
    broker.groups.remove(ask.group_name)
    broker.locks.drop_group(ask.group_name)
    broker.stats.forget_group(ask.group_name)
    if ask.clean_offset or ask.remove_offset:
        broker.offsets.remove_group(ask.group_name)
    return answer_when_saved(broker, GROUPS_FILE)


@handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
def get_all_groups(broker: BrokerState, ask: GetAllGroupConfig) -> Steps:
    """The group table, or a page of it."""
    table = broker.groups.table()
    page = page_of(table.subscription_group_table, ask.group_seq, ask.max_group_num)
    header = None
    if page is not None:
        header = GetAllGroupConfigResult(len(table.subscription_group_table))
        table = SubscriptionGroupTable(page, table.data_version, table.forbidden_table)
    text = yield from table_text(table, len(table.subscription_group_table))
    return Reply(header, text)


@handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
def get_group(broker: BrokerState, ask: GetGroupConfig) -> Reply:
    """One group."""
    config = broker.groups.get(ask.group)
    if config is None:
        raise GroupNotFound(f"No group in this broker. group: {ask.group}")
    return Reply(body=config)


@handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
def get_consumer_connections(broker: BrokerState, ask: GetConsumerConnections) -> Reply:
    """The members of a consumer group that are connected."""
    members = broker.clients.consumer_group(ask.consumer_group)
    if members is None:
        raise ConsumerNotOnline(f"the consumer group[{ask.consumer_group}] not online")
    return Reply(
        body=ConsumerConnections(
            tuple(_connection(channel) for channel in members.channels.values()),
            {t: SubscriptionData.from_model(s) for t, s in members.subscriptions.items()},
            ConsumeType(members.consume_type),
            MessageModel(members.message_model),
            ConsumeFromWhere(members.consume_from_where),
        )
    )


@handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
def get_producer_connections(broker: BrokerState, ask: GetProducerConnections) -> Reply:
    """The members of a producer group that are connected."""
    channels = broker.clients.producer_group(ask.producer_group)
    if not channels:
        raise RequestRefused(f"the producer group[{ask.producer_group}] not exist")
    return Reply(body=ProducerConnections(tuple(_connection(channel) for channel in channels)))


@handles(RequestCode.GET_ALL_PRODUCER_INFO)
def get_all_producers(broker: BrokerState) -> Reply:
    """The connected members of all producer groups."""
    return Reply(
        body=ProducerTable(
            {
                group: tuple(
                    ProducerInfo(
                        channel.client_id,
                        channel.peer.remote,
                        channel.language,
                        channel.version,
                        channel.last_seen_ms,
                    )
                    for channel in channels
                )
                for group, channels in broker.clients.producer_groups().items()
            }
        )
    )


def _connection(channel: ClientChannel) -> Connection:
    return Connection(channel.client_id, channel.peer.remote, channel.language, channel.version)


@handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
def query_topics_by_consumer(broker: BrokerState, ask: QueryTopicsByConsumer) -> Reply:
    """The topics a group committed offsets in."""
    topics = [t for t in broker.offsets.of_group(ask.group) if t != retry_topic(ask.group)]
    return Reply(body=TopicList(tuple(topics), broker.address))


@handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
def query_subscription(broker: BrokerState, ask: QuerySubscription) -> Reply:
    """The subscription of a group to a topic; none if the group has no members."""
    members = broker.clients.consumer_group(ask.group)
    subscription = None if members is None else members.subscriptions.get(ask.topic)
    return Reply(
        body=GroupSubscription(
            ask.group,
            ask.topic,
            None if subscription is None else SubscriptionData.from_model(subscription),
        )
    )
