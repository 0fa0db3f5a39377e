"""What a name server answers."""

from __future__ import annotations

import functools
import hmac
import logging
from dataclasses import dataclass, field, replace

from penstock.errors import (
    InvalidArgument,
    NoPermission,
    NotFound,
    ProtocolError,
    RequestRefused,
    TopicNotFound,
)
from penstock.nameserver.broker_registration import BrokerRegistration
from penstock.nameserver.config import NameServerConfig
from penstock.nameserver.kv import ORDER_TOPIC_NAMESPACE, KvConfig
from penstock.nameserver.routes import UNIT, UNIT_SUBSCRIPTION, RouteTable
from penstock.protocol.acl import access_key
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.registration import body_crc32, decode_registration, is_compressed
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.extensions import REGISTRATION_KEY
from penstock.protocol.headers.nameserver import (
    AddWritePerm,
    AddWritePermResult,
    BrokerHeartbeat,
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetBrokerMemberGroup,
    GetKvConfig,
    GetKvConfigResult,
    GetKvList,
    GetRouteInfo,
    GetTopicsByCluster,
    PutKvConfig,
    QueryDataVersion,
    QueryDataVersionResult,
    RegisterBroker,
    RegisterBrokerResult,
    RegisterTopic,
    UnregisterBroker,
    WipeWritePerm,
    WipeWritePermResult,
)
from penstock.protocol.validation import MAX_RETRY_TOPIC_LENGTH
from penstock.remoting.dispatch import Call, Reply, handles
from penstock.remoting.long_answers import Steps
from penstock.remoting.promise import Promise, error_answer
from penstock.runtime.clock import Clock
from penstock.runtime.config import to_mapping
from penstock.runtime.properties_format import format_properties
from penstock.runtime.saved_tables import SavedTables

log = logging.getLogger(__name__)

KV_FILE = "kvConfig.json"
STANDARD_JSON_VERSION = 401
"""From V4_9_4 on clients take routes whose integer keys are quoted; most older ones take both."""
_SMALL_REGISTRATION = 32 * 1024
"""Bytes of a registration that are read at once, in about 10 ms."""
_NUMBERED = (Language.ERLANG, Language.PYTHON)


@dataclass(slots=True)
class NameServerState:
    """What the handlers work on."""

    config: NameServerConfig
    clock: Clock
    routes: RouteTable
    kv: KvConfig
    tables: SavedTables | None
    """Where the texts are kept; None: in memory only."""
    registration_key: str | None = None
    """What a broker must send in order to register; None: any broker may."""
    has_users: bool = False
    """Whether requests are signed, so that the user they name is certain."""
    refused: int = 0
    """Registrations of brokers of others."""
    cached_routes: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    cached_generation: int = -1

    def now_ms(self) -> int:
        """The moment for signs of life: a wall clock that is set must not drop every broker."""
        return int(self.clock.monotonic() * 1000)


def _needs_numbers(call: Call) -> bool:
    """Whether a client needs broker ids as numbers, which is no JSON but what Java wrote for long.

    The Elixir client quotes them itself and fails where they are; pyrocketmq reads the body as a
    Python literal and looks for number 0.
    """
    command = call.command
    return command.language in _NUMBERED and command.version < STANDARD_JSON_VERSION


@handles(RequestCode.GET_ROUTEINFO_BY_TOPIC)
def get_route(state: NameServerState, ask: GetRouteInfo, call: Call) -> Reply:
    """Where a topic's queues are."""
    is_literal = _needs_numbers(call) and not ask.accept_standard_json_only
    if state.cached_generation != state.routes.generation:
        state.cached_generation = state.routes.generation
        state.cached_routes.clear()
    body = state.cached_routes.get((ask.topic, is_literal))
    if body is None:
        route = state.routes.route(ask.topic)
        if route is None:
            raise TopicNotFound(
                f"No topic route info in name server for the topic: {ask.topic}",
                expected="a topic that some broker has registered",
                hint=f"penstock topic create {ask.topic}",
            )
        data = TopicRouteData.from_model(route)
        if is_literal:
            brokers = tuple(broker.without_words() for broker in data.broker_datas)
            data = replace(data, broker_datas=brokers)
        if state.config.order_message_enable:
            order = state.kv.order_conf(ask.topic)
            data = replace(data, order_topic_conf=order)
        body = encode_body(data, bare_integer_keys=is_literal)
        if not state.config.order_message_enable:
            state.cached_routes[ask.topic, is_literal] = body
    return Reply(body=body)


def _check_key(state: NameServerState, call: Call, broker: str) -> None:
    """Refuse brokers of others: clients would be sent to them."""
    key = state.registration_key
    given = (call.command.ext or {}).get(REGISTRATION_KEY, "")
    if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
        _log_refusal(state, call, broker, "not one of ours")
        raise NoPermission(
            f"broker {broker[:255]} may not register with this name server",
            expected="a broker that was started together with it",
            hint="penstock up --other-brokers, or a name server of its own: penstock nameserver",
        )


def _log_refusal(state: NameServerState, call: Call, broker: str, reason: str) -> None:
    state.refused += 1
    # The first, second, fourth, eighth: a peer that tries for ever must not fill the log.
    if state.refused.bit_count() == 1:
        log.warning(
            "broker refused, %s name=%.255s remote=%s refused=%d",
            reason, broker, call.peer.remote, state.refused,
        )  # fmt: skip


@handles(RequestCode.REGISTER_BROKER)
def register_broker(state: NameServerState, ask: RegisterBroker, call: Call) -> Steps:
    """A broker lives, and has these topics."""
    _check_key(state, call, ask.broker_name)
    body = call.body
    if ask.body_crc32 and ask.body_crc32 != body_crc32(body):
        raise RequestRefused(
            f"crc32 not match: the body of broker {ask.broker_name} has {body_crc32(body)}",
            expected=str(ask.body_crc32),
        )
    odd: dict[str, str] = {}
    decode = functools.partial(
        decode_registration,
        body,
        compressed=ask.compressed,
        version=call.command.version,
        tell_odd=odd.__setitem__,
    )
    try:
        # Thousands of topics take a second.
        is_small = len(body) <= _SMALL_REGISTRATION and not is_compressed(body, ask.compressed)
        topics = decode() if is_small else (yield decode)
    except ProtocolError as error:
        raise RequestRefused(f"Failed to decode RegisterBrokerBody: {error}") from error
    if odd:
        topic, trouble = next(iter(odd.items()))
        log.warning(
            "topics bounded or left out broker=%s count=%d first=%s error=%s",
            ask.broker_name, len(odd), topic[:MAX_RETRY_TOPIC_LENGTH], trouble,
        )  # fmt: skip
    registration = BrokerRegistration(
        cluster=ask.cluster_name,
        broker_name=ask.broker_name,
        broker_id=ask.broker_id,
        address=ask.broker_addr,
        ha_address=ask.ha_server_addr,
        topics=topics.topics,
        filter_servers=topics.filter_server_list,
        timeout_ms=ask.heartbeat_timeout_millis,
        enable_acting_master=ask.enable_acting_master,
        connection=call.peer,
        owner=access_key(call.command.ext) if state.has_users else None,
    )
    try:
        result = state.routes.register(registration, state.now_ms())
    except NoPermission as error:
        _log_refusal(state, call, ask.broker_name, str(error))
        raise
    if not result.accepted:
        refusal = RequestRefused(
            "register broker failed: one topic alone from a broker that is not known",
            expected="the whole topic table first",
        )
        return error_answer(refusal, ext={})
    order = state.kv.namespace(ORDER_TOPIC_NAMESPACE)
    return Reply(
        RegisterBrokerResult(result.ha_address, result.master_address),
        b"" if order is None else order,
    )


@handles(RequestCode.UNREGISTER_BROKER)
def unregister_broker(state: NameServerState, ask: UnregisterBroker, call: Call) -> None:
    """A broker leaves."""
    _check_key(state, call, ask.broker_name)
    state.routes.unregister(ask.cluster_name, ask.broker_name, ask.broker_addr)


@handles(RequestCode.QUERY_DATA_VERSION)
def query_data_version(state: NameServerState, ask: QueryDataVersion, call: Call) -> Reply:
    """Whether a broker has to register again; asking is a sign of life."""
    version = call.json(DataVersion)
    answer = state.routes.query_data_version(
        ask.cluster_name, ask.broker_addr, version, state.now_ms()
    )
    return Reply(
        QueryDataVersionResult(answer.changed), b"" if answer.stored is None else answer.stored
    )


@handles(RequestCode.BROKER_HEARTBEAT)
def broker_heartbeat(state: NameServerState, ask: BrokerHeartbeat) -> None:
    """A broker lives."""
    state.routes.heartbeat(ask.cluster_name, ask.broker_addr, state.now_ms())


@handles(RequestCode.GET_BROKER_MEMBER_GROUP)
def get_member_group(state: NameServerState, ask: GetBrokerMemberGroup) -> Reply:
    """The master and slaves of one broker name."""
    return Reply(body=state.routes.member_group(ask.cluster_name, ask.broker_name))


@handles(RequestCode.GET_BROKER_CLUSTER_INFO)
def get_cluster_info(state: NameServerState, call: Call) -> Reply:
    """Every broker of every cluster."""
    info = state.routes.cluster_info()
    is_literal = _needs_numbers(call)
    if is_literal:
        brokers = {name: data.without_words() for name, data in info.broker_addr_table.items()}
        info = replace(info, broker_addr_table=brokers)
    return Reply(body=encode_body(info, bare_integer_keys=is_literal))


@handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
def get_all_topics(state: NameServerState) -> Reply:
    """Every topic."""
    return Reply(body=state.routes.topics())


@handles(RequestCode.GET_TOPICS_BY_CLUSTER)
def get_topics_by_cluster(state: NameServerState, ask: GetTopicsByCluster) -> Reply:
    """The topics of a cluster."""
    return Reply(body=state.routes.topics_of_cluster(ask.cluster))


@handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
def get_system_topics(state: NameServerState) -> Reply:
    """The topics named like clusters and brokers, and a broker that knows the rest."""
    return Reply(body=state.routes.system_topics())


@handles(RequestCode.GET_UNIT_TOPIC_LIST)
def get_unit_topics(state: NameServerState) -> Reply:
    """Topics of units."""
    return Reply(body=state.routes.topics_with_flags(UNIT))


@handles(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
def get_unit_subscribed_topics(state: NameServerState) -> Reply:
    """Topics that units subscribe to."""
    return Reply(body=state.routes.topics_with_flags(UNIT_SUBSCRIPTION))


@handles(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
def get_unit_subscribed_ordinary_topics(state: NameServerState) -> Reply:
    """Topics that units subscribe to although they belong to none."""
    return Reply(body=state.routes.topics_with_flags(UNIT_SUBSCRIPTION, UNIT))


@handles(RequestCode.DELETE_TOPIC_IN_NAMESRV)
def delete_topic(state: NameServerState, ask: DeleteTopicInNamesrv) -> None:
    """Forget a topic; the tool has deleted it on the brokers before."""
    state.routes.delete_topic(ask.topic, ask.cluster_name or None)


@handles(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
def register_topic(state: NameServerState, ask: RegisterTopic, call: Call) -> None:
    """Make a topic known before its brokers register again."""
    _check_key(state, call, f"of topic {ask.topic}")
    state.routes.register_topic(ask.topic, call.json(TopicRouteData).route().queues)


@handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
def wipe_write_permission(state: NameServerState, ask: WipeWritePerm) -> WipeWritePermResult:
    """No more sends to any topic of a broker."""
    return WipeWritePermResult(state.routes.wipe_write_permission(ask.broker_name))


@handles(RequestCode.ADD_WRITE_PERM_OF_BROKER)
def add_write_permission(state: NameServerState, ask: AddWritePerm) -> AddWritePermResult:
    """Sends to a broker's topics again."""
    return AddWritePermResult(state.routes.add_write_permission(ask.broker_name))


@handles(RequestCode.PUT_KV_CONFIG)
def put_kv(state: NameServerState, ask: PutKvConfig) -> Promise | None:
    """Keep a text."""
    return _when_kv_saved(state, is_changed=state.kv.put(ask.namespace, ask.key, ask.value))


def _when_kv_saved(state: NameServerState, *, is_changed: bool) -> Promise | None:
    """An answer when the texts are on the disk."""
    if state.tables is None:
        return None
    if is_changed:
        state.tables.changed(KV_FILE)
    promise = Promise()
    state.tables.when_saved(KV_FILE, lambda: promise.resolve(Command(0)), promise.fail)
    return promise


@handles(RequestCode.GET_KV_CONFIG)
def get_kv(state: NameServerState, ask: GetKvConfig) -> GetKvConfigResult | Command:
    """A text."""
    value = state.kv.get(ask.namespace, ask.key)
    if value is None:
        missing = NotFound(f"No config item, Namespace: {ask.namespace} Key: {ask.key}")
        return error_answer(missing, ext={})
    return GetKvConfigResult(value)


@handles(RequestCode.DELETE_KV_CONFIG)
def delete_kv(state: NameServerState, ask: DeleteKvConfig) -> Promise | None:
    """Forget a text."""
    return _when_kv_saved(state, is_changed=state.kv.delete(ask.namespace, ask.key))


@handles(RequestCode.GET_KVLIST_BY_NAMESPACE)
def get_kv_list(state: NameServerState, ask: GetKvList) -> Reply:
    """All texts of a namespace."""
    table = state.kv.namespace(ask.namespace)
    if table is None:
        raise NotFound(f"No config item, Namespace: {ask.namespace}")
    return Reply(body=table)


@handles(RequestCode.GET_NAMESRV_CONFIG)
def get_config(state: NameServerState) -> Reply:
    """The settings."""
    return Reply(body=format_properties(to_mapping(state.config)).encode())


@handles(RequestCode.UPDATE_NAMESRV_CONFIG)
def update_config(state: NameServerState) -> Command:
    """Settings of a name server are given when it starts, never over the wire."""
    error = InvalidArgument(
        "the settings of this name server cannot be changed while it runs",
        hint="restart it with other options",
    )
    return Command(ResponseCode.NO_PERMISSION, remark=str(error))
