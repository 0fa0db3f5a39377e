"""Every request of the protocol: its code, and the types of what is sent and answered.

Only tests need the whole table; a handler declares its own code and header with `@handles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, TypeAlias

from penstock.protocol.bodies.auth import AclInfo, AclList, UserInfo, UserList
from penstock.protocol.bodies.clients import (
    CheckClientConfig,
    ConsumerList,
    HeartbeatData,
    LockBatch,
    LockBatchReply,
)
from penstock.protocol.bodies.common import (
    ConsumerConnections,
    DataVersion,
    GroupList,
    GroupSubscription,
    KvTable,
    ProducerConnections,
    ProducerTable,
    TopicList,
)
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from penstock.protocol.bodies.offsets import (
    ConsumerOffsetTable,
    ConsumerStatus,
    CorrectionOffsets,
    DelayOffsetTable,
    ResetOffsets,
)
from penstock.protocol.bodies.pop import (
    BatchAck,
    QueryAssignment,
    QueueAssignments,
    RequestModes,
    SetRequestMode,
)
from penstock.protocol.bodies.registration import RegisterBrokerBody
from penstock.protocol.bodies.routes import BrokerMemberGroup, ClusterInfo, TopicRouteData
from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo
from penstock.protocol.bodies.stats import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeQueueEntries,
    ConsumeStats,
    ConsumeTimeSpans,
    HaStatus,
    TopicStats,
)
from penstock.protocol.bodies.topics import (
    TimerMetrics,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
)
from penstock.protocol.codes import RequestCode, ResponseCode, request_name
from penstock.protocol.headers import (
    admin,
    auth,
    clients,
    nameserver,
    offsets,
    pop,
    pull,
    send,
    transactions,
)
from penstock.protocol.headers.codec import Header

HeaderType: TypeAlias = type[Header]


class RawBody(Enum):
    """Bodies that are message bytes."""

    MESSAGE = auto()
    """The body of one message, as its sender made it."""
    BATCH = auto()
    """Several messages, packed by module ``batches``."""
    RECORD = auto()
    """One stored record."""
    RECORDS = auto()
    """Stored records, one after the other."""


_SUCCESS: Final = frozenset({ResponseCode.SUCCESS})
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_POPPED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
    }
)
_QUERIED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class RequestType:
    """What a request code sends and gets: header classes, and bodies.

    ``answers`` are the response codes whose ext fields are a ``response_header``; with any other
    code a response has a ``refusal_header``, or no fields.
    """

    code: int
    header: HeaderType | None = None
    body: type | RawBody | None = None
    response_header: HeaderType | None = None
    response_body: type | RawBody | None = None
    refusal_header: HeaderType | None = None
    answers: frozenset[int] = _SUCCESS

    @property
    def name(self) -> str:
        return request_name(self.code)

    def header_of_response(self, code: int) -> HeaderType | None:
        """The header of a response with ``code``."""
        return self.response_header if code in self.answers else self.refusal_header


def _send(code: int, body: RawBody, *, has_short_keys: bool) -> RequestType:
    return RequestType(
        code,
        send.SendMessageV2 if has_short_keys else send.SendMessage,
        body,
        send.SendMessageResult,
        refusal_header=send.SendRefused,
        answers=_STORED,
    )


def _pull(code: int) -> RequestType:
    return RequestType(
        code,
        pull.PullMessage,
        None,
        pull.PullMessageResult,
        RawBody.RECORDS,
        refusal_header=pull.PullRefused,
        answers=_PULLED,
    )


_MESSAGES: Final = (
    _send(RequestCode.SEND_MESSAGE, RawBody.MESSAGE, has_short_keys=False),
    _send(RequestCode.SEND_MESSAGE_V2, RawBody.MESSAGE, has_short_keys=True),
    _send(RequestCode.SEND_BATCH_MESSAGE, RawBody.BATCH, has_short_keys=True),
    _send(RequestCode.SEND_REPLY_MESSAGE, RawBody.MESSAGE, has_short_keys=False),
    _send(RequestCode.SEND_REPLY_MESSAGE_V2, RawBody.MESSAGE, has_short_keys=True),
    RequestType(RequestCode.RECALL_MESSAGE, send.RecallMessage, None, send.RecallMessageResult),
    RequestType(RequestCode.CONSUMER_SEND_MSG_BACK, send.SendBack),
    RequestType(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, send.PushReply, RawBody.MESSAGE),
    _pull(RequestCode.PULL_MESSAGE),
    _pull(RequestCode.LITE_PULL_MESSAGE),
    RequestType(
        RequestCode.QUERY_MESSAGE,
        pull.QueryMessage,
        None,
        pull.QueryMessageResult,
        RawBody.RECORDS,
        answers=_QUERIED,
    ),
    RequestType(RequestCode.VIEW_MESSAGE_BY_ID, pull.ViewMessage, response_body=RawBody.RECORD),
    RequestType(RequestCode.END_TRANSACTION, transactions.EndTransaction),
    RequestType(
        RequestCode.CHECK_TRANSACTION_STATE, transactions.CheckTransactionState, RawBody.RECORD
    ),
    RequestType(RequestCode.RESUME_CHECK_HALF_MESSAGE, transactions.ResumeCheckHalfMessage),
)

_OFFSETS: Final = (
    RequestType(
        RequestCode.QUERY_CONSUMER_OFFSET,
        offsets.QueryConsumerOffset,
        None,
        offsets.OffsetResult,
    ),
    RequestType(RequestCode.UPDATE_CONSUMER_OFFSET, offsets.UpdateConsumerOffset),
    RequestType(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offsets.SearchOffset, None, offsets.OffsetResult
    ),
    RequestType(RequestCode.GET_MAX_OFFSET, offsets.GetMaxOffset, None, offsets.OffsetResult),
    RequestType(RequestCode.GET_MIN_OFFSET, offsets.GetMinOffset, None, offsets.OffsetResult),
    RequestType(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        offsets.GetEarliestStoreTime,
        None,
        offsets.EarliestStoreTimeResult,
    ),
)

_CLIENTS: Final = (
    RequestType(RequestCode.HEART_BEAT, response_header=clients.HeartbeatResult),
    RequestType(RequestCode.UNREGISTER_CLIENT, clients.UnregisterClient),
    RequestType(RequestCode.GET_CONSUMER_LIST_BY_GROUP, clients.GetConsumerList),
    RequestType(RequestCode.CHECK_CLIENT_CONFIG),
    RequestType(RequestCode.LOCK_BATCH_MQ),
    RequestType(RequestCode.UNLOCK_BATCH_MQ),
    RequestType(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, clients.NotifyConsumerIdsChanged),
    RequestType(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, clients.ResetOffset),
    RequestType(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, clients.ResetOffset),
    RequestType(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, clients.GetConsumerStatus),
    RequestType(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, clients.GetConsumerStatus),
    RequestType(RequestCode.GET_CONSUMER_RUNNING_INFO, clients.GetConsumerRunningInfo),
    RequestType(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, clients.ConsumeMessageDirectly, RawBody.RECORD
    ),
)

_POP: Final = (
    RequestType(
        RequestCode.POP_MESSAGE,
        pop.PopMessage,
        None,
        pop.PopMessageResult,
        RawBody.RECORDS,
        answers=_POPPED,
    ),
    RequestType(
        RequestCode.PEEK_MESSAGE,
        pop.PeekMessage,
        None,
        pop.PopMessageResult,
        RawBody.RECORDS,
        answers=_POPPED,
    ),
    RequestType(RequestCode.ACK_MESSAGE, pop.AckMessage),
    RequestType(RequestCode.BATCH_ACK_MESSAGE),
    RequestType(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        pop.ChangeInvisibleTime,
        None,
        pop.ChangeInvisibleTimeResult,
    ),
    RequestType(RequestCode.NOTIFICATION, pop.Notification, None, pop.NotificationResult),
    RequestType(RequestCode.POLLING_INFO, pop.PollingInfo, None, pop.PollingInfoResult),
    RequestType(RequestCode.QUERY_ASSIGNMENT),
    RequestType(RequestCode.SET_MESSAGE_REQUEST_MODE),
)

_NAMESERVER: Final = (
    RequestType(RequestCode.GET_ROUTEINFO_BY_TOPIC, nameserver.GetRouteInfo),
    RequestType(
        RequestCode.REGISTER_BROKER,
        nameserver.RegisterBroker,
        None,
        nameserver.RegisterBrokerResult,
    ),
    RequestType(RequestCode.UNREGISTER_BROKER, nameserver.UnregisterBroker),
    RequestType(
        RequestCode.QUERY_DATA_VERSION,
        nameserver.QueryDataVersion,
        None,
        nameserver.QueryDataVersionResult,
    ),
    RequestType(RequestCode.BROKER_HEARTBEAT, nameserver.BrokerHeartbeat),
    RequestType(RequestCode.GET_BROKER_MEMBER_GROUP, nameserver.GetBrokerMemberGroup),
    RequestType(RequestCode.GET_BROKER_CLUSTER_INFO),
    RequestType(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    RequestType(RequestCode.GET_TOPICS_BY_CLUSTER, nameserver.GetTopicsByCluster),
    RequestType(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    RequestType(RequestCode.GET_UNIT_TOPIC_LIST),
    RequestType(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST),
    RequestType(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    RequestType(RequestCode.DELETE_TOPIC_IN_NAMESRV, nameserver.DeleteTopicInNamesrv),
    RequestType(RequestCode.REGISTER_TOPIC_IN_NAMESRV, nameserver.RegisterTopic),
    RequestType(RequestCode.PUT_KV_CONFIG, nameserver.PutKvConfig),
    RequestType(
        RequestCode.GET_KV_CONFIG, nameserver.GetKvConfig, None, nameserver.GetKvConfigResult
    ),
    RequestType(RequestCode.DELETE_KV_CONFIG, nameserver.DeleteKvConfig),
    RequestType(RequestCode.GET_KVLIST_BY_NAMESPACE, nameserver.GetKvList),
    RequestType(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        nameserver.WipeWritePerm,
        None,
        nameserver.WipeWritePermResult,
    ),
    RequestType(
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        nameserver.AddWritePerm,
        None,
        nameserver.AddWritePermResult,
    ),
    RequestType(RequestCode.GET_NAMESRV_CONFIG),
    RequestType(RequestCode.UPDATE_NAMESRV_CONFIG),
)

_ADMIN: Final = (
    RequestType(RequestCode.UPDATE_AND_CREATE_TOPIC, admin.UpdateTopic),
    RequestType(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST),
    RequestType(RequestCode.DELETE_TOPIC_IN_BROKER, admin.DeleteTopic),
    RequestType(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        admin.GetAllTopicConfig,
        None,
        admin.GetAllTopicConfigResult,
    ),
    RequestType(RequestCode.GET_TOPIC_CONFIG, admin.GetTopicConfig),
    RequestType(RequestCode.GET_TOPIC_STATS_INFO, admin.GetTopicStats),
    RequestType(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    RequestType(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, admin.QueryTopicConsumers),
    RequestType(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    RequestType(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST),
    RequestType(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        admin.GetAllGroupConfig,
        None,
        admin.GetAllGroupConfigResult,
    ),
    RequestType(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, admin.GetGroupConfig),
    RequestType(RequestCode.DELETE_SUBSCRIPTIONGROUP, admin.DeleteGroup),
    RequestType(RequestCode.GET_CONSUMER_CONNECTION_LIST, admin.GetConsumerConnections),
    RequestType(RequestCode.GET_PRODUCER_CONNECTION_LIST, admin.GetProducerConnections),
    RequestType(RequestCode.GET_ALL_PRODUCER_INFO),
    RequestType(RequestCode.QUERY_TOPICS_BY_CONSUMER, admin.QueryTopicsByConsumer),
    RequestType(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, admin.QuerySubscription),
    RequestType(RequestCode.CLONE_GROUP_OFFSET, admin.CloneGroupOffset),
    RequestType(RequestCode.GET_CONSUME_STATS, admin.GetConsumeStats),
    RequestType(RequestCode.GET_BROKER_CONSUME_STATS, admin.GetBrokerConsumeStats),
    RequestType(RequestCode.QUERY_CONSUME_TIME_SPAN, admin.QueryConsumeTimeSpan),
    RequestType(RequestCode.QUERY_CONSUME_QUEUE, admin.QueryConsumeQueue),
    RequestType(RequestCode.QUERY_CORRECTION_OFFSET, offsets.QueryCorrectionOffset),
    RequestType(RequestCode.VIEW_BROKER_STATS_DATA, admin.ViewBrokerStats),
    RequestType(RequestCode.GET_BROKER_RUNTIME_INFO),
    RequestType(RequestCode.GET_BROKER_HA_STATUS),
    RequestType(RequestCode.GET_BROKER_CONFIG, response_header=admin.BrokerConfigResult),
    RequestType(RequestCode.UPDATE_BROKER_CONFIG),
    RequestType(RequestCode.GET_ALL_CONSUMER_OFFSET),
    RequestType(RequestCode.GET_ALL_DELAY_OFFSET),
    RequestType(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
    RequestType(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    RequestType(RequestCode.CLEAN_UNUSED_TOPIC),
    RequestType(RequestCode.DELETE_EXPIRED_COMMITLOG),
    RequestType(RequestCode.AUTH_CREATE_USER, auth.UserName),
    RequestType(RequestCode.AUTH_UPDATE_USER, auth.UserName),
    RequestType(RequestCode.AUTH_DELETE_USER, auth.UserName),
    RequestType(RequestCode.AUTH_GET_USER, auth.UserName),
    RequestType(RequestCode.AUTH_LIST_USER, auth.ListUsers),
    RequestType(RequestCode.AUTH_CREATE_ACL, auth.AclSubject),
    RequestType(RequestCode.AUTH_UPDATE_ACL, auth.AclSubject),
    RequestType(RequestCode.AUTH_DELETE_ACL, auth.DeleteAcl),
    RequestType(RequestCode.AUTH_GET_ACL, auth.AclSubject),
    RequestType(RequestCode.AUTH_LIST_ACL, auth.ListAcls),
)


REQUEST_BODIES: dict[int, type] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList,
    RequestCode.UPDATE_BROKER_CONFIG: ConfigText,
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatch,
    RequestCode.UNLOCK_BATCH_MQ: LockBatch,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientConfig,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRouteData,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsets,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList,
    RequestCode.UPDATE_NAMESRV_CONFIG: ConfigText,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: SetRequestMode,
    RequestCode.AUTH_CREATE_USER: UserInfo,
    RequestCode.AUTH_UPDATE_USER: UserInfo,
    RequestCode.AUTH_CREATE_ACL: AclInfo,
    RequestCode.AUTH_UPDATE_ACL: AclInfo,
    RequestCode.BATCH_ACK_MESSAGE: BatchAck,
}

RESPONSE_BODIES: dict[int, type] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable,
    RequestCode.GET_BROKER_CONFIG: ConfigText,
    RequestCode.GET_BROKER_RUNTIME_INFO: KvTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerList,
    RequestCode.LOCK_BATCH_MQ: LockBatchReply,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetTable,
    RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetTable,
    RequestCode.GET_TIMER_METRICS: TimerMetrics,
    RequestCode.REGISTER_BROKER: KvTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable,
    RequestCode.GET_TOPIC_STATS_INFO: TopicStats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerConnections,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KvTable,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: ConsumerStatus,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsets,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ConsumerStatus,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
    RequestCode.QUERY_CONSUME_TIME_SPAN: ConsumeTimeSpans,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: CorrectionOffsets,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeDirectlyResult,
    RequestCode.GET_UNIT_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
    RequestCode.VIEW_BROKER_STATS_DATA: BrokerStats,
    RequestCode.GET_BROKER_HA_STATUS: HaStatus,
    RequestCode.GET_BROKER_CONSUME_STATS: BrokerConsumeStats,
    RequestCode.GET_NAMESRV_CONFIG: ConfigText,
    RequestCode.QUERY_CONSUME_QUEUE: ConsumeQueueEntries,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.GET_ALL_PRODUCER_INFO: ProducerTable,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: TopicList,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: GroupSubscription,
    RequestCode.GET_TOPIC_CONFIG: TopicConfig,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupConfig,
    RequestCode.QUERY_ASSIGNMENT: QueueAssignments,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: RequestModes,
    RequestCode.GET_BROKER_MEMBER_GROUP: BrokerMemberGroup,
    RequestCode.AUTH_GET_USER: UserInfo,
    RequestCode.AUTH_LIST_USER: UserList,
    RequestCode.AUTH_GET_ACL: AclInfo,
    RequestCode.AUTH_LIST_ACL: AclList,
}


def _with_bodies(request: RequestType) -> RequestType:
    """Structured bodies are listed by code where they are defined."""
    return replace(
        request,
        body=request.body or REQUEST_BODIES.get(request.code),
        response_body=request.response_body or RESPONSE_BODIES.get(request.code),
    )


REQUESTS: Final[Mapping[int, RequestType]] = {
    request.code: _with_bodies(request)
    for request in (*_MESSAGES, *_OFFSETS, *_CLIENTS, *_POP, *_NAMESERVER, *_ADMIN)
}
"""By request code."""
