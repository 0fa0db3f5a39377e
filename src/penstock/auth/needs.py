"""What each request needs: a row for every request code of a broker and of a name server.

A row turns the ext fields and the body of a request into needs: a resource, and actions of which
one is enough. All needs of a request must be met. `FREE` asks for a known user only, `SUPER` for a
super user. A code without a row is refused unless the user is a super user, and a test compares
the rows with the codes that are served.

Needs are read from the raw fields, before a handler decodes them. A retry topic belongs to its
group: what would need a right on the topic needs SUB on the group instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.auth.model import Action, ResourceType
from penstock.errors import HeaderFieldError, NoPermission, ProtocolError
from penstock.model.names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    reply_topic,
)
from penstock.protocol.bodies.clients import CheckClientConfig, HeartbeatData, LockBatch
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from penstock.protocol.bodies.pop import BatchAck, QueryAssignment, SetRequestMode
from penstock.protocol.bodies.topics import TopicConfigList
from penstock.protocol.codes import RequestCode as Code

MAX_BODY_BYTES: Final = 16 << 20
"""The longest body that is read for the names in it; handlers have bounds of their own."""
_Body = TypeVar("_Body")


class Facts(Protocol):
    """What a server knows that decides about a need."""

    @property
    def cluster(self) -> str:
        """The name of the cluster."""

    def has_topic(self, topic: str) -> bool:
        """Whether the topic exists."""

    def has_group(self, group: str) -> bool:
        """Whether the group exists."""

    def topic_at(self, log_position: int) -> str | None:
        """The topic of the record at a position of the log."""


class Need(NamedTuple):
    """A resource, and the actions of which one is enough."""

    type: ResourceType
    name: str
    actions: frozenset[Action]
    otherwise: Need | None = None
    """Enough as well."""
    creates: bool = False
    """Whether a refusal means that the topic does not exist, since it is not created."""

    def __str__(self) -> str:
        return f"{'|'.join(a for a in Action if a in self.actions)} on {self.type}:{self.name}"


class Ask(NamedTuple):
    """A request as the rows see it."""

    ext: Mapping[str, str]
    body: bytes
    facts: Facts

    def field(self, name: str) -> str:
        """A field that must be there."""
        value = self.ext.get(name)
        if not value:
            raise HeaderFieldError(f"field {name!r} is missing", expected="a name")
        return value

    def json(self, cls: type[_Body]) -> _Body:
        """The body, read exactly as the handler reads it, so that both see the same names."""
        if len(self.body) > MAX_BODY_BYTES:
            raise ProtocolError(
                f"body of {len(self.body)} bytes", expected=f"at most {MAX_BODY_BYTES}"
            )
        return decode_body(cls, self.body)


Rule: TypeAlias = Callable[[Ask], Iterable[Need]]


def _any(*actions: Action) -> frozenset[Action]:
    return frozenset(actions)


_PUB: Final = _any(Action.PUB)
_SUB: Final = _any(Action.SUB)
_GET: Final = _any(Action.GET)
_UPDATE: Final = _any(Action.UPDATE)
_SUB_GET: Final = _any(Action.SUB, Action.GET)
_SUB_UPDATE: Final = _any(Action.SUB, Action.UPDATE)


# Parts of rules


def topic_need(topic: str, actions: frozenset[Action]) -> Need:
    """The need for a topic; for a retry topic, SUB on its group."""
    if topic.startswith(RETRY_PREFIX):
        return group_need(retry_group(topic), _SUB)
    if topic.startswith(DLQ_PREFIX) and actions <= _SUB_GET:
        # A user who may see a group may read its dead letters.
        seen = group_need(topic.removeprefix(DLQ_PREFIX), _GET)
        return Need(ResourceType.TOPIC, topic, actions, seen)
    return Need(ResourceType.TOPIC, topic, actions)


def retry_group(topic: str) -> str:
    """The group of a retry topic; those of pop are named ``group+topic`` or ``group_topic``."""
    return topic.removeprefix(RETRY_PREFIX).partition("+")[0]


def group_need(group: str, actions: frozenset[Action]) -> Need:
    return Need(ResourceType.GROUP, group, actions)


def _cluster(actions: frozenset[Action]) -> Rule:
    return lambda ask: (Need(ResourceType.CLUSTER, ask.facts.cluster, actions),)


def _named_cluster(ask: Ask) -> Iterable[Need]:
    """A broker names the cluster that it registers with."""
    return (Need(ResourceType.CLUSTER, ask.ext.get("clusterName") or ask.facts.cluster, _UPDATE),)


def _topic(actions: frozenset[Action], field: str = "topic") -> Rule:
    return lambda ask: (topic_need(ask.field(field), actions),)


def _group(actions: frozenset[Action], field: str = "consumerGroup") -> Rule:
    return lambda ask: (group_need(ask.field(field), actions),)


def _both(actions: frozenset[Action], group: str = "consumerGroup", topic: str = "topic") -> Rule:
    """The same right on a topic and on a group."""

    def needs(ask: Ask) -> Iterator[Need]:
        yield group_need(ask.field(group), actions)
        name = ask.field(topic)
        # A member reads the retry topic of its own group; of another it needs that group's right.
        if not name.startswith(RETRY_PREFIX):
            yield topic_need(name, actions)
        elif not belongs_to(name, ask.field(group)):
            yield group_need(retry_group(name), actions)

    return needs


def belongs_to(topic: str, group: str) -> bool:
    """Whether a retry topic is one of the group: of its pulls, or of its pops of a topic."""
    rest = topic.removeprefix(RETRY_PREFIX)
    return rest == group or rest.startswith((group + "+", group + "_"))


def _sent(
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


# Rules


def _free(ask: Ask) -> Iterable[Need]:
    return ()


FREE: Final[Rule] = _free


def _super(ask: Ask) -> Iterable[Need]:
    raise NoPermission("a super user is needed")


SUPER: Final[Rule] = _super


def _send(topic_field: str) -> Rule:
    def needs(ask: Ask) -> Iterator[Need]:
        topic = ask.field(topic_field)
        # Traces are written by every client, and nothing can be learnt from writing.
        if topic == TRACE_TOPIC:
            return
        yield topic_need(topic, _PUB)
        if not topic.startswith(RETRY_PREFIX) and not ask.facts.has_topic(topic):
            yield Need(ResourceType.TOPIC, topic, _any(Action.CREATE), creates=True)

    return needs


def _reply(topic_field: str) -> Rule:
    def needs(ask: Ask) -> Iterable[Need]:
        topic = ask.field(topic_field)
        return () if topic == reply_topic(ask.facts.cluster) else (topic_need(topic, _PUB),)

    return needs


def _send_back(ask: Ask) -> Iterator[Need]:
    group = ask.field("group")
    yield group_need(group, _SUB)
    topic = ask.facts.topic_at(_number(ask, "offset"))
    if topic is not None and not (topic.startswith(RETRY_PREFIX) and belongs_to(topic, group)):
        yield topic_need(topic, _SUB)


def _view(ask: Ask) -> Iterator[Need]:
    topic = ask.facts.topic_at(_number(ask, "offset"))
    if topic is not None:
        yield topic_need(topic, _SUB_GET)


def _heartbeat(ask: Ask) -> Iterator[Need]:
    for consumer in ask.json(HeartbeatData).consumer_data_set:
        yield group_need(consumer.group_name, _SUB)
        for subscription in consumer.subscription_data_set:
            if not subscription.topic.startswith(RETRY_PREFIX):
                yield Need(ResourceType.TOPIC, subscription.topic, _SUB)


def _unregister(ask: Ask) -> Iterable[Need]:
    group = ask.ext.get("consumerGroup")
    return (group_need(group, _SUB),) if group else ()


def _member_needs(group: str, topics: Iterable[str]) -> Iterator[Need]:
    """What a member needs that reads topics; those of its own retries come with the group."""
    yield group_need(group, _SUB)
    for topic in dict.fromkeys(topics):
        if not (topic.startswith(RETRY_PREFIX) and belongs_to(topic, group)):
            yield topic_need(topic, _SUB)


def _lock(ask: Ask) -> Iterable[Need]:
    body = ask.json(LockBatch)
    return _member_needs(body.consumer_group, (queue.topic for queue in body.mq_set))


def _check_subscription(ask: Ask) -> Iterable[Need]:
    body = ask.json(CheckClientConfig)
    return _member_needs(body.group, (body.subscription_data.topic,))


def _assignment(ask: Ask) -> Iterable[Need]:
    body = ask.json(QueryAssignment)
    return _member_needs(body.consumer_group, (body.topic,))


def _batch_ack(ask: Ask) -> Iterator[Need]:
    for ack in ask.json(BatchAck).acks:
        yield from _member_needs(ack.consumer_group, (ack.topic,))


def _request_mode(ask: Ask) -> Iterator[Need]:
    body = ask.json(SetRequestMode)
    yield group_need(body.consumer_group, _UPDATE)
    yield topic_need(body.topic, _UPDATE)


def _create_topic(ask: Ask) -> Iterable[Need]:
    return (_topic_change(ask, ask.field("topic")),)


def _create_topics(ask: Ask) -> Iterator[Need]:
    for config in ask.json(TopicConfigList).topic_config_list:
        yield _topic_change(ask, config.topic_name or "")


def _topic_change(ask: Ask, topic: str) -> Need:
    return Need(ResourceType.TOPIC, topic, _change(exists=ask.facts.has_topic(topic)))


def _create_group(ask: Ask) -> Iterable[Need]:
    return (_group_change(ask, ask.json(SubscriptionGroupConfig).group_name),)


def _create_groups(ask: Ask) -> Iterator[Need]:
    for config in ask.json(SubscriptionGroupList).group_config_list:
        yield _group_change(ask, config.group_name)


def _group_change(ask: Ask, group: str) -> Need:
    return group_need(group, _change(exists=ask.facts.has_group(group)))


def _change(*, exists: bool) -> frozenset[Action]:
    return _any(Action.CREATE, Action.UPDATE) if exists else _any(Action.CREATE)


def _clone(ask: Ask) -> Iterator[Need]:
    yield group_need(ask.field("srcGroup"), _GET)
    yield group_need(ask.field("destGroup"), _UPDATE)
    yield topic_need(ask.field("topic"), _UPDATE)


def _correction(ask: Ask) -> Iterator[Need]:
    yield from _sent(_GET, topics=("topic",), groups=("filterGroups", "compareGroup"))(ask)


def _running_info(ask: Ask) -> Iterator[Need]:
    yield group_need(ask.field("consumerGroup"), _GET)
    if ask.ext.get("jstackEnable", "").lower() == "true":
        yield Need(ResourceType.CLUSTER, ask.facts.cluster, _GET)


def _consume_directly(ask: Ask) -> Iterator[Need]:
    yield group_need(ask.field("consumerGroup"), _SUB)
    topic = ask.ext.get("topic")
    if topic:
        yield topic_need(topic, _SUB)


def _end_transaction(ask: Ask) -> Iterable[Need]:
    # The half message names the real topic; older clients do not send it. Only members of the
    # producer group know the position, and the handler compares the group.
    topic = ask.ext.get("topic") or ask.facts.topic_at(_number(ask, "commitLogOffset"))
    return () if topic is None else (topic_need(topic, _PUB),)


def _route(ask: Ask) -> Iterable[Need]:
    topic = ask.field("topic")
    if topic == DEFAULT_TOPIC:
        return ()
    if topic.startswith(RETRY_PREFIX):
        return (group_need(retry_group(topic), _SUB_GET),)
    return (
        Need(
            ResourceType.TOPIC,
            topic,
            _any(Action.PUB, Action.SUB, Action.GET, Action.CREATE),
        ),
    )


def _number(ask: Ask, field: str) -> int:
    try:
        return int(ask.field(field))
    except ValueError as error:
        raise HeaderFieldError(f"field {field!r} is no number", expected="a number") from error


# The tables

_CLUSTER_GET: Final = _cluster(_GET)
_CLUSTER_UPDATE: Final = _cluster(_UPDATE)

BROKER: Final[Mapping[int, Rule]] = {
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _send("b"),
    Code.SEND_REPLY_MESSAGE: _reply("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _reply("b"),
    Code.END_TRANSACTION: _end_transaction,
    Code.RECALL_MESSAGE: _topic(_PUB),
    Code.RESUME_CHECK_HALF_MESSAGE: _topic(_UPDATE),
    Code.PULL_MESSAGE: _both(_SUB),
    Code.LITE_PULL_MESSAGE: _both(_SUB),
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.QUERY_MESSAGE: _topic(_SUB_GET),
    Code.VIEW_MESSAGE_BY_ID: _view,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _group(_SUB_GET),
    Code.QUERY_CONSUMER_OFFSET: _both(_SUB_GET),
    Code.UPDATE_CONSUMER_OFFSET: _both(_SUB_UPDATE),
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.CHECK_CLIENT_CONFIG: _check_subscription,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.SET_MESSAGE_REQUEST_MODE: _request_mode,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    Code.POP_MESSAGE: _both(_SUB),
    Code.ACK_MESSAGE: _both(_SUB),
    Code.PEEK_MESSAGE: _both(_SUB),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _both(_SUB),
    Code.NOTIFICATION: _both(_SUB),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.POLLING_INFO: _both(_GET),
    Code.POP_ROLLBACK: _CLUSTER_UPDATE,
    Code.UPDATE_AND_CREATE_TOPIC: _create_topic,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _create_topics,
    Code.DELETE_TOPIC_IN_BROKER: _topic(_any(Action.DELETE)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _create_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _create_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: _group(_any(Action.DELETE), "groupName"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _topic(_SUB_GET),
    Code.GET_MAX_OFFSET: _topic(_SUB_GET),
    Code.GET_MIN_OFFSET: _topic(_SUB_GET),
    Code.GET_EARLIEST_MSG_STORETIME: _topic(_SUB_GET),
    Code.GET_TOPIC_STATS_INFO: _topic(_GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic(_GET),
    Code.GET_TOPIC_CONFIG: _topic(_GET),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _topic(_GET),
    Code.GET_CONSUMER_CONNECTION_LIST: _group(_GET),
    Code.GET_CONSUMER_RUNNING_INFO: _running_info,
    Code.QUERY_TOPICS_BY_CONSUMER: _group(_GET, "group"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group(_GET, "group"),
    Code.GET_CONSUME_STATS: _sent(_GET, topics=("topic", "topicList"), groups=("consumerGroup",)),
    Code.QUERY_CONSUME_TIME_SPAN: _sent(_GET, topics=("topic",), groups=("group",)),
    Code.QUERY_CONSUME_QUEUE: _sent(_GET, topics=("topic",), groups=("consumerGroup",)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _sent(_GET, topics=("topic",), groups=("group",)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _sent(_GET, topics=("topic",), groups=("group",)),
    Code.QUERY_CORRECTION_OFFSET: _correction,
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both(_UPDATE, group="group"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(_UPDATE, group="group"),
    Code.CLONE_GROUP_OFFSET: _clone,
    Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CONFIG: _CLUSTER_GET,
    Code.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    Code.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    Code.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    Code.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    Code.GET_TIMER_METRICS: _CLUSTER_GET,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _CLUSTER_GET,
    Code.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _CLUSTER_GET,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _CLUSTER_GET,
    # Filtered by row, see `answer_filters`.
    Code.GET_ALL_TOPIC_CONFIG: FREE,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: FREE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _CLUSTER_UPDATE,
    Code.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CLUSTER_UPDATE,
    Code.SET_COMMITLOG_READ_MODE: _CLUSTER_UPDATE,
    Code.SWITCH_TIMER_ENGINE: _CLUSTER_UPDATE,
    Code.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    Code.AUTH_GET_USER: _CLUSTER_GET,
    Code.AUTH_LIST_USER: _CLUSTER_GET,
    Code.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_GET_ACL: _CLUSTER_GET,
    Code.AUTH_LIST_ACL: _CLUSTER_GET,
    # Refused by their handlers with a hint, which a user may read.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: FREE,
    Code.DELETE_ACL_CONFIG: FREE,
    Code.GET_BROKER_CLUSTER_ACL_INFO: FREE,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: FREE,
    Code.POP_LITE_MESSAGE: FREE,
    Code.LITE_SUBSCRIPTION_CTL: FREE,
    Code.ACK_LITE_MESSAGE: FREE,
    Code.NOTIFY_UNSUBSCRIBE_LITE: FREE,
    Code.GET_CLIENT_CONFIG: FREE,
    Code.WHO_CONSUME_THE_MESSAGE: FREE,
    Code.QUERY_BROKER_OFFSET: FREE,
}

NAME_SERVER: Final[Mapping[int, Rule]] = {
    Code.REGISTER_BROKER: _named_cluster,
    Code.UNREGISTER_BROKER: _named_cluster,
    Code.QUERY_DATA_VERSION: _named_cluster,
    Code.BROKER_HEARTBEAT: _named_cluster,
    Code.PUT_KV_CONFIG: _CLUSTER_UPDATE,
    Code.DELETE_KV_CONFIG: _CLUSTER_UPDATE,
    Code.WIPE_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    Code.ADD_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    Code.DELETE_TOPIC_IN_NAMESRV: _CLUSTER_UPDATE,
    Code.REGISTER_TOPIC_IN_NAMESRV: _CLUSTER_UPDATE,
    Code.UPDATE_NAMESRV_CONFIG: _CLUSTER_UPDATE,
    Code.GET_KV_CONFIG: _CLUSTER_GET,
    Code.GET_KVLIST_BY_NAMESPACE: _CLUSTER_GET,
    Code.GET_NAMESRV_CONFIG: _CLUSTER_GET,
    Code.GET_BROKER_MEMBER_GROUP: _CLUSTER_GET,
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.GET_BROKER_CLUSTER_INFO: FREE,
    # Filtered by row, see `answer_filters`.
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: FREE,
    Code.GET_TOPICS_BY_CLUSTER: FREE,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: FREE,
    Code.GET_UNIT_TOPIC_LIST: FREE,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: FREE,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: FREE,
}
