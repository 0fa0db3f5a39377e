"""Which body belongs to a request code.

Codes that carry message bytes, or nothing, are not in the tables.
"""

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
from penstock.protocol.bodies.registration import RegisterBroker
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
from penstock.protocol.codes import RequestCode

REQUEST_BODIES: dict[int, type] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList,
    RequestCode.UPDATE_BROKER_CONFIG: ConfigText,
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatch,
    RequestCode.UNLOCK_BATCH_MQ: LockBatch,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientConfig,
    RequestCode.REGISTER_BROKER: RegisterBroker,
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
