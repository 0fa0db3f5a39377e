"""Topics: created, changed, listed, deleted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from penstock.broker.handlers.table_requests import (
    MAX_LIST_BYTES,
    answer_when_saved,
    page_of,
    table_text,
)
from penstock.broker.state import BrokerState
from penstock.broker.tables.attributes import TOPIC_ATTRIBUTES, changed_attributes, parse_changes
from penstock.broker.tables.topics import TOPICS_FILE, check_queue_count
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from penstock.protocol.bodies.common import GroupList, TopicList
from penstock.protocol.bodies.stats import TopicOffset, TopicStats
from penstock.protocol.bodies.topics import (
    MAX_QUEUES,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicFilterType,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import (
    DeleteTopic,
    GetAllTopicConfig,
    GetAllTopicConfigResult,
    GetTopicConfig,
    GetTopicStats,
    QueryTopicConsumers,
    UpdateTopic,
)
from penstock.protocol.validation import check_topic
from penstock.remoting import Promise
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.remoting.long_answers import STEP, Steps

_MAX_PERM = 7


@handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
def update_topic(broker: BrokerState, ask: UpdateTopic) -> Promise:
    """Create a topic, or change it."""
    try:
        filter_type = TopicFilterType(ask.topic_filter_type)
    except ValueError:
        filter_type = TopicFilterType.SINGLE_TAG
    _put(
        broker,
        TopicConfig(
            ask.topic,
            ask.read_queue_nums,
            ask.write_queue_nums,
            ask.perm,
            filter_type,
            ask.topic_sys_flag or 0,
            ask.order,
            parse_changes(ask.attributes or ""),
        ),
    )
    return _when_known(broker, [ask.topic])


@handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
def update_topics(broker: BrokerState, call: Call) -> Promise:
    """Create or change several topics."""
    configs = call.json(TopicConfigList, MAX_LIST_BYTES).topic_config_list
    for config in configs:
        _checked(broker, config)
    for config in configs:
        _put(broker, config)
    return _when_known(broker, [config.topic_name or "" for config in configs])


def _put(broker: BrokerState, config: TopicConfig) -> None:
    broker.topics.put(_checked(broker, config))


def _checked(broker: BrokerState, config: TopicConfig) -> TopicConfig:
    """The topic with its attributes changed; a request brings changes of attributes."""
    name = config.topic_name or ""
    if name not in broker.topics:
        # Names that the broker created itself (for pop, for light queues) need not be legal.
        check_topic(name)
    if broker.topics.is_system(name):
        raise InvalidArgument(
            f"The topic[{name}] is conflict with system topic.", expected="a topic of your own"
        )
    check_queue_count(config.read_queue_nums, config.write_queue_nums)
    if config.read_queue_nums > MAX_QUEUES or config.write_queue_nums > MAX_QUEUES:
        raise InvalidArgument(
            f"{max(config.read_queue_nums, config.write_queue_nums)} queues for {name}",
            expected=f"at most {MAX_QUEUES}",
        )
    if not 0 <= config.perm <= _MAX_PERM:
        raise InvalidArgument(f"perm {config.perm} of topic {name}", expected=f"0 to {_MAX_PERM}")
    before = broker.topics.get(name)
    attributes = changed_attributes(
        None if before is None else before.attributes, config.attributes, TOPIC_ATTRIBUTES
    )
    return dataclasses.replace(config, attributes=attributes)


def _when_known(broker: BrokerState, topics: Collection[str]) -> Promise:
    """Answer when the topics are on the disk and, as in RocketMQ, have a route.

    Also if nothing changed: an operator may have deleted the route at a name server.
    """
    promise = Promise()

    def saved() -> None:
        broker.when_topics_known(lambda: promise.resolve(Command(0)), topics)

    broker.tables.when_saved(TOPICS_FILE, saved, promise.fail)
    return promise


@handles(RequestCode.DELETE_TOPIC_IN_BROKER)
def delete_topic(broker: BrokerState, ask: DeleteTopic) -> Promise:
    """Delete a topic: its settings, its messages and the offsets committed in it."""
    topic = ask.topic
    if not topic.strip():
        raise InvalidArgument("The specified topic is blank.")
    if broker.topics.is_system(topic):
        raise InvalidArgument(f"The topic[{topic}] is conflict with system topic.")
    config = broker.topics.get(topic)
    if config is None:
        # Tools ask every broker of a cluster. Do not record a deletion of an unknown topic.
        return answer_when_saved(broker, TOPICS_FILE)
    queues = max(config.read_queue_nums, config.write_queue_nums)
    for group, name in _pop_retry_topics(broker, topic):
        if _is_shared(broker, name, (group, topic)):
            _skip_retries(broker, group, name)
            continue
        _forget(broker, name)
        broker.storage.delete_topic(name, lambda: None, lambda error: None)
    _forget(broker, topic)
    promise = Promise()
    broker.storage.delete_topic(
        topic, lambda: answer_when_saved(broker, TOPICS_FILE, promise), promise.fail
    )
    broker.topic_epochs.refresh()
    for queue_id in range(queues):
        broker.held.wake((topic, queue_id))
    broker.pop.held.wake_group(topic)
    broker.pop.notified.wake_group(topic)
    return promise


def _forget(broker: BrokerState, topic: str) -> None:
    """Remove a topic from all tables."""
    broker.pop.finish_all(topic=topic)
    broker.pop.modes.remove(topic=topic)
    broker.topics.remove(topic)
    broker.offsets.remove_topic(topic)
    broker.stats.forget_topic(topic)


def _pop_retry_topics(broker: BrokerState, topic: str) -> list[tuple[str, str]]:
    """Groups, and the topics in which they get unfinished messages of a topic again."""
    names = [
        (group, name)
        for group in broker.offsets.groups_of_topic(topic)
        for name in (pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic))
    ]
    return [(group, name) for group, name in names if name in broker.topics]


def _is_shared(broker: BrokerState, name: str, owner: tuple[str, str]) -> bool:
    """Whether a retry topic also belongs to another group and topic.

    In the first spelling topic a_T of group G and topic T of group G_a share one.
    """
    parts = name.removeprefix(RETRY_PREFIX).split("_")
    pairs = [("_".join(parts[:i]), "_".join(parts[i:])) for i in range(1, len(parts))]
    return any(
        pair != owner and pair[0] in broker.groups and pair[1] in broker.topics for pair in pairs
    )


def _skip_retries(broker: BrokerState, group: str, name: str) -> None:
    """End what a group has in a retry topic that others need."""
    broker.pop.finish_all(group=group, topic=name)
    for queue_id in range(broker.topics.require(name).read_queue_nums):
        end = broker.storage.max_offset(name, queue_id)
        broker.offsets.commit(group, name, queue_id, end, "deletion of its topic")


@handles(RequestCode.GET_ALL_TOPIC_CONFIG)
def get_all_topics(broker: BrokerState, ask: GetAllTopicConfig) -> Steps:
    """The topic table, or a page of it."""
    table = broker.topics.table()
    page = page_of(table.topic_config_table, ask.topic_seq, ask.max_topic_num)
    header = None
    if page is not None:
        header = GetAllTopicConfigResult(len(table.topic_config_table))
        table = TopicConfigTable(page, table.data_version)
    text = yield from table_text(_with_mappings(table), len(table.topic_config_table))
    return Reply(header, text)


def _with_mappings(table: TopicConfigTable) -> TopicConfigTable:
    """Add the members that tools of 5.x read without a check."""
    return dataclasses.replace(
        table,
        mapping_data_version=table.data_version,
        topic_queue_mapping_detail_map={},
        topic_queue_mapping_info_map={},
    )


@handles(RequestCode.GET_TOPIC_CONFIG)
def get_topic(broker: BrokerState, ask: GetTopicConfig) -> Reply:
    """One topic."""
    return Reply(body=broker.topics.require(ask.topic))


@handles(RequestCode.GET_TOPIC_STATS_INFO)
def get_topic_stats(broker: BrokerState, ask: GetTopicStats) -> Steps:
    """The ends of a topic's queues."""
    config = broker.topics.require(ask.topic)
    store = broker.storage.store
    table: dict[MessageQueue, TopicOffset] = {}
    for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
        if queue_id % STEP == 0:
            yield None
        low, high = store.min_offset(ask.topic, queue_id), store.max_offset(ask.topic, queue_id)
        last = store.store_time_at(ask.topic, queue_id, high - 1) if high > low else 0
        queue = MessageQueue(ask.topic, broker.config.broker_name, queue_id)
        table[queue] = TopicOffset(low, high, max(0, last))
    return Reply(body=TopicStats(table, broker.rate_sampler.topic_put_tps(ask.topic)))


@handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
def get_system_topics(broker: BrokerState) -> Reply:
    """The topics that come with the broker."""
    return Reply(body=TopicList(tuple(broker.topics.system_names())))


@handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
def query_topic_consumers(broker: BrokerState, ask: QueryTopicConsumers) -> Reply:
    """The groups that consume a topic, connected or not."""
    online = broker.clients.groups_of_topic(ask.topic)
    offline = broker.offsets.groups_of_topic(ask.topic)
    return Reply(body=GroupList(tuple(dict.fromkeys([*online, *offline]))))


@handles(RequestCode.CLEAN_UNUSED_TOPIC)
def clean_unused_topics(broker: BrokerState) -> Promise:
    """Remove the queues of topics that are no longer in the table."""
    promise = Promise()

    def is_unused(topic: str) -> bool:
        return topic not in broker.topics and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))

    def done() -> None:
        broker.topic_epochs.refresh()
        promise.resolve(Command(0))

    broker.storage.delete_topics(is_unused, done, promise.fail)
    return promise


@handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
@handles(RequestCode.DELETE_EXPIRED_COMMITLOG)
def clean_expired(broker: BrokerState) -> None:
    """Let the next rounds of cleaning delete expired segments at any hour."""
    broker.storage.store.request_clean()
