"""Rules: what a request needs, read from its ext fields and its body.

Needs are read from the raw fields, before a handler decodes them. `FREE` asks for a known user
only, `SUPER` for a super user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.auth.model import Action, ResourceType
from penstock.auth.needs import (
    GET,
    MAX_LIST_BYTES,
    PUB,
    SUB,
    SUB_GET,
    UPDATE,
    Ask,
    Need,
    Rule,
    any_of,
    group_need,
    retry_group,
    retry_topic_needs,
    topic_need,
)
from penstock.errors import HeaderFieldError, NoPermission, PenstockError
from penstock.model.names import (
    DEFAULT_TOPIC,
    RETRY_PREFIX,
    TOOLS_GROUP,
    TRACE_TOPIC,
    reply_topic,
)
from penstock.protocol.bodies.clients import CheckClientConfig, HeartbeatData, LockBatch
from penstock.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from penstock.protocol.bodies.pop import BatchAck, QueryAssignment, SetRequestMode
from penstock.protocol.bodies.topics import TopicConfigList
from penstock.protocol.headers.pull import PullFlag
from penstock.protocol.records.message_ids import parse_offset_message_id

_REPLY_SUFFIX: Final = reply_topic("")

# Rules for a kind of resource


def on_cluster(actions: frozenset[Action]) -> Rule:
    return lambda ask: (Need(ResourceType.CLUSTER, ask.facts.cluster, actions),)


def named_cluster(ask: Ask) -> Iterable[Need]:
    """A broker names the cluster that it registers with."""
    return (Need(ResourceType.CLUSTER, ask.ext.get("clusterName") or ask.facts.cluster, UPDATE),)


def on_topic(actions: frozenset[Action], field: str = "topic") -> Rule:
    return lambda ask: (topic_need(ask.field(field), actions),)


def on_group(actions: frozenset[Action], field: str = "consumerGroup") -> Rule:
    return lambda ask: (group_need(ask.field(field), actions),)


def on_both(actions: frozenset[Action], group: str = "consumerGroup", topic: str = "topic") -> Rule:
    """The same right on a topic and on a group."""

    def needs(ask: Ask) -> Iterator[Need]:
        yield group_need(ask.field(group), actions)
        name = ask.field(topic)
        if name.startswith(RETRY_PREFIX):
            yield from retry_topic_needs(name, ask.field(group), actions, ask.facts)
        else:
            yield topic_need(name, actions)

    return needs


def pull(ask: Ask) -> Iterator[Need]:
    """SUB on topic and group. Tools read a topic with RocketMQ's group for tools, and without
    committing: there the right on the topic is enough.
    """
    topic = ask.field("topic")
    if (
        ask.field("consumerGroup") == TOOLS_GROUP
        and not _number(ask, "sysFlag") & PullFlag.COMMIT_OFFSET
        and not topic.startswith(RETRY_PREFIX)
    ):
        yield topic_need(topic, SUB)
    else:
        yield from on_both(SUB)(ask)


def on_sent(
    actions: frozenset[Action], *, topics: tuple[str, ...] = (), groups: tuple[str, ...] = ()
) -> Rule:
    """The right on each of the topics and groups that are sent."""

    def needs(ask: Ask) -> Iterator[Need]:
        found = False
        for field in topics:
            for name in filter(None, ask.ext.get(field, "").split(";")):
                found = True
                yield topic_need(name, actions)
        for field in groups:
            for name in filter(None, ask.ext.get(field, "").split(",")):
                found = True
                yield group_need(name, actions)
        if not found:
            yield Need(ResourceType.CLUSTER, ask.facts.cluster, actions)

    return needs


# Rules of one request


def _free(ask: Ask) -> Iterable[Need]:
    return ()


FREE: Final[Rule] = _free


def _super(ask: Ask) -> Iterable[Need]:
    raise NoPermission("a super user is needed")


SUPER: Final[Rule] = _super


def send(topic_field: str) -> Rule:
    def needs(ask: Ask) -> Iterator[Need]:
        topic = ask.field(topic_field)
        # Traces are written by every client, and nothing can be learnt from writing.
        if topic == TRACE_TOPIC:
            return
        yield topic_need(topic, PUB)
        if not topic.startswith(RETRY_PREFIX) and not ask.facts.has_topic(topic):
            yield Need(ResourceType.TOPIC, topic, any_of(Action.CREATE), creates=True)

    return needs


def reply(topic_field: str) -> Rule:
    def needs(ask: Ask) -> Iterable[Need]:
        topic, replies = ask.field(topic_field), reply_topic(ask.facts.cluster)
        # Free for every user, so it is no way to write to a topic or to create one.
        if topic != replies:
            raise NoPermission(f"a reply to topic {topic[:255]}", expected=f"topic {replies}")
        return ()

    return needs


def send_back(ask: Ask) -> Iterator[Need]:
    group = ask.field("group")
    yield group_need(group, SUB)
    topic = ask.facts.topic_at(_number(ask, "offset"))
    if topic is not None:
        yield from _read_needs(ask, group, topic)


def view(ask: Ask) -> Iterator[Need]:
    position = _number(ask, "offset")
    topic = ask.facts.topic_at(position)
    if topic is not None:
        # Positions can be guessed: a refusal would tell which topics there are.
        yield topic_need(topic, SUB_GET)._replace(hidden_at=position)


def heartbeat(ask: Ask) -> Iterator[Need]:
    for consumer in ask.json(HeartbeatData).consumer_data_set:
        yield group_need(consumer.group_name, SUB)
        for subscription in consumer.subscription_data_set:
            if not subscription.topic.startswith(RETRY_PREFIX):
                yield Need(ResourceType.TOPIC, subscription.topic, SUB)


def unregister(ask: Ask) -> Iterable[Need]:
    group = ask.ext.get("consumerGroup")
    return (group_need(group, SUB),) if group else ()


def _member_needs(ask: Ask, group: str, topics: Iterable[str]) -> Iterator[Need]:
    """What a member needs that reads topics; those of its own retries come with the group."""
    yield group_need(group, SUB)
    for topic in dict.fromkeys(topics):
        yield from _read_needs(ask, group, topic)


def _read_needs(ask: Ask, group: str, topic: str) -> Iterator[Need]:
    if topic.startswith(RETRY_PREFIX):
        yield from retry_topic_needs(topic, group, SUB, ask.facts)
    else:
        yield topic_need(topic, SUB)


def lock(ask: Ask) -> Iterable[Need]:
    body = ask.json(LockBatch)
    return _member_needs(ask, body.consumer_group, (queue.topic for queue in body.mq_set))


def check_subscription(ask: Ask) -> Iterable[Need]:
    body = ask.json(CheckClientConfig)
    return _member_needs(ask, body.group, (body.subscription_data.topic,))


def assignment(ask: Ask) -> Iterable[Need]:
    body = ask.json(QueryAssignment)
    return _member_needs(ask, body.consumer_group, (body.topic,))


def batch_ack(ask: Ask) -> Iterator[Need]:
    for ack in ask.json(BatchAck).acks:
        yield from _member_needs(ask, ack.consumer_group, (ack.topic,))


def request_mode(ask: Ask) -> Iterator[Need]:
    body = ask.json(SetRequestMode)
    yield group_need(body.consumer_group, UPDATE)
    yield topic_need(body.topic, UPDATE)


def create_topic(ask: Ask) -> Iterable[Need]:
    return (_topic_change(ask, ask.field("topic")),)


def create_topics(ask: Ask) -> Iterator[Need]:
    for config in ask.json(TopicConfigList, MAX_LIST_BYTES).topic_config_list:
        yield _topic_change(ask, config.topic_name or "")


def _topic_change(ask: Ask, topic: str) -> Need:
    return Need(ResourceType.TOPIC, topic, _change(exists=ask.facts.has_topic(topic)))


def create_group(ask: Ask) -> Iterable[Need]:
    return (_group_change(ask, ask.json(SubscriptionGroupConfig).group_name),)


def create_groups(ask: Ask) -> Iterator[Need]:
    for config in ask.json(SubscriptionGroupList, MAX_LIST_BYTES).group_config_list:
        yield _group_change(ask, config.group_name)


def _group_change(ask: Ask, group: str) -> Need:
    return group_need(group, _change(exists=ask.facts.has_group(group)))


def _change(*, exists: bool) -> frozenset[Action]:
    return any_of(Action.CREATE, Action.UPDATE) if exists else any_of(Action.CREATE)


def clone(ask: Ask) -> Iterator[Need]:
    yield group_need(ask.field("srcGroup"), GET)
    yield group_need(ask.field("destGroup"), UPDATE)
    yield topic_need(ask.field("topic"), UPDATE)


def correction(ask: Ask) -> Iterator[Need]:
    yield from on_sent(GET, topics=("topic",), groups=("filterGroups", "compareGroup"))(ask)


def running_info(ask: Ask) -> Iterator[Need]:
    yield group_need(ask.field("consumerGroup"), GET)
    if ask.ext.get("jstackEnable", "").lower() == "true":
        yield Need(ResourceType.CLUSTER, ask.facts.cluster, GET)


def consume_directly(ask: Ask) -> Iterator[Need]:
    group = ask.field("consumerGroup")
    topics = [ask.ext.get("topic")]
    # The topic of the record counts, too: the request may name another. Without a record the
    # handler says so.
    with contextlib.suppress(PenstockError):
        topics.append(_topic_of_id(ask))
    yield from _member_needs(ask, group, filter(None, topics))


def _topic_of_id(ask: Ask) -> str | None:
    return ask.facts.topic_at(parse_offset_message_id(ask.field("msgId")).log_position)


def end_transaction(ask: Ask) -> Iterable[Need]:
    # The half message decides, not the topic that the request names; older clients name none.
    topics = (ask.ext.get("topic"), ask.facts.topic_at(_number(ask, "commitLogOffset")))
    return [topic_need(topic, PUB) for topic in dict.fromkeys(filter(None, topics))]


def resume_check(ask: Ask) -> Iterator[Need]:
    topics = [ask.field("topic")]
    # The handler finds the half by its id alone, so the topic of the record counts, too.
    with contextlib.suppress(PenstockError):
        topics.append(_topic_of_id(ask) or "")
    for topic in dict.fromkeys(filter(None, topics)):
        yield topic_need(topic, UPDATE)


def route(ask: Ask) -> Iterable[Need]:
    topic = ask.field("topic")
    # Every user may reply, and a name server does not know the cluster of a request.
    if topic == DEFAULT_TOPIC or topic.endswith(_REPLY_SUFFIX):
        return ()
    if topic.startswith(RETRY_PREFIX):
        return (group_need(retry_group(topic), SUB_GET),)
    return (
        Need(
            ResourceType.TOPIC,
            topic,
            any_of(Action.PUB, Action.SUB, Action.GET, Action.CREATE),
        ),
    )


def _number(ask: Ask, field: str) -> int:
    try:
        return int(ask.field(field))
    except ValueError as error:
        raise HeaderFieldError(f"field {field!r} is no number", expected="a number") from error
