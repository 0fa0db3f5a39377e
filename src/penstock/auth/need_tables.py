"""The needs of every request code of a broker and of a name server.

A code without a row is refused unless the user is a super user, and a test compares the rows with
the codes that are served. Requests of administrators need a right on the cluster, or one to create,
change or delete: they cannot be on a white list, and the server may demand that they are fresh
(`freshness`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.auth import request_rules as rules
from penstock.auth.model import Action
from penstock.auth.needs import GET, PUB, SUB, SUB_GET, SUB_UPDATE, UPDATE, Rule, any_of
from penstock.protocol.codes import RequestCode as Code

_CLUSTER_GET: Final = rules.on_cluster(GET)
_CLUSTER_UPDATE: Final = rules.on_cluster(UPDATE)

_BROKER_CLIENTS: Final[Mapping[int, Rule]] = {
    Code.SEND_MESSAGE: rules.send("topic"),
    Code.SEND_MESSAGE_V2: rules.send("b"),
    Code.SEND_BATCH_MESSAGE: rules.send("b"),
    Code.SEND_REPLY_MESSAGE: rules.reply("topic"),
    Code.SEND_REPLY_MESSAGE_V2: rules.reply("b"),
    Code.END_TRANSACTION: rules.end_transaction,
    Code.RECALL_MESSAGE: rules.on_topic(PUB),
    Code.PULL_MESSAGE: rules.pull,
    Code.LITE_PULL_MESSAGE: rules.pull,
    Code.CONSUMER_SEND_MSG_BACK: rules.send_back,
    Code.QUERY_MESSAGE: rules.on_topic(SUB_GET),
    Code.VIEW_MESSAGE_BY_ID: rules.view,
    Code.HEART_BEAT: rules.heartbeat,
    Code.UNREGISTER_CLIENT: rules.unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: rules.on_group(SUB_GET),
    Code.QUERY_CONSUMER_OFFSET: rules.on_both(SUB_GET),
    Code.UPDATE_CONSUMER_OFFSET: rules.on_both(SUB_UPDATE),
    Code.LOCK_BATCH_MQ: rules.lock,
    Code.UNLOCK_BATCH_MQ: rules.lock,
    Code.CHECK_CLIENT_CONFIG: rules.check_subscription,
    Code.QUERY_ASSIGNMENT: rules.assignment,
    Code.POP_MESSAGE: rules.on_both(SUB),
    Code.ACK_MESSAGE: rules.on_both(SUB),
    Code.PEEK_MESSAGE: rules.on_both(SUB),
    Code.CHANGE_MESSAGE_INVISIBLETIME: rules.on_both(SUB),
    Code.NOTIFICATION: rules.on_both(SUB),
    Code.BATCH_ACK_MESSAGE: rules.batch_ack,
    Code.POLLING_INFO: rules.on_both(GET),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: rules.on_topic(SUB_GET),
    Code.GET_MAX_OFFSET: rules.on_topic(SUB_GET),
    Code.GET_MIN_OFFSET: rules.on_topic(SUB_GET),
    Code.GET_EARLIEST_MSG_STORETIME: rules.on_topic(SUB_GET),
    Code.GET_TOPIC_STATS_INFO: rules.on_topic(GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: rules.on_topic(GET),
    Code.GET_TOPIC_CONFIG: rules.on_topic(GET),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: rules.on_topic(GET),
    Code.GET_CONSUMER_CONNECTION_LIST: rules.on_group(GET),
    Code.GET_CONSUMER_RUNNING_INFO: rules.running_info,
    Code.QUERY_TOPICS_BY_CONSUMER: rules.on_group(GET, "group"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: rules.on_group(GET, "group"),
    Code.GET_CONSUME_STATS: rules.on_sent(
        GET, topics=("topic", "topicList"), groups=("consumerGroup",)
    ),
    Code.QUERY_CONSUME_TIME_SPAN: rules.on_sent(GET, topics=("topic",), groups=("group",)),
    Code.QUERY_CONSUME_QUEUE: rules.on_sent(GET, topics=("topic",), groups=("consumerGroup",)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: rules.on_sent(GET, topics=("topic",), groups=("group",)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: rules.on_sent(
        GET, topics=("topic",), groups=("group",)
    ),
    Code.QUERY_CORRECTION_OFFSET: rules.correction,
    Code.CONSUME_MESSAGE_DIRECTLY: rules.consume_directly,
    # Filtered by row, see `answer_filters`.
    Code.GET_ALL_TOPIC_CONFIG: rules.FREE,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: rules.FREE,
    # Refused by their handlers with a hint, which a user may read.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: rules.FREE,
    Code.DELETE_ACL_CONFIG: rules.FREE,
    Code.GET_BROKER_CLUSTER_ACL_INFO: rules.FREE,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: rules.FREE,
    Code.POP_LITE_MESSAGE: rules.FREE,
    Code.LITE_SUBSCRIPTION_CTL: rules.FREE,
    Code.ACK_LITE_MESSAGE: rules.FREE,
    Code.NOTIFY_UNSUBSCRIBE_LITE: rules.FREE,
    Code.GET_CLIENT_CONFIG: rules.FREE,
    Code.WHO_CONSUME_THE_MESSAGE: rules.FREE,
    Code.QUERY_BROKER_OFFSET: rules.FREE,
}

_BROKER_ADMINISTRATORS: Final[Mapping[int, Rule]] = {
    Code.RESUME_CHECK_HALF_MESSAGE: rules.resume_check,
    Code.SET_MESSAGE_REQUEST_MODE: rules.request_mode,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    Code.POP_ROLLBACK: _CLUSTER_UPDATE,
    Code.UPDATE_AND_CREATE_TOPIC: rules.create_topic,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: rules.create_topics,
    Code.DELETE_TOPIC_IN_BROKER: rules.on_topic(any_of(Action.DELETE)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: rules.create_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: rules.create_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: rules.on_group(any_of(Action.DELETE), "groupName"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: rules.on_both(UPDATE, group="group"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: rules.on_both(UPDATE, group="group"),
    Code.CLONE_GROUP_OFFSET: rules.clone,
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
}

_NAME_SERVER_CLIENTS: Final[Mapping[int, Rule]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: rules.route,
    Code.GET_BROKER_CLUSTER_INFO: rules.FREE,
    # Filtered by row, see `answer_filters`.
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: rules.FREE,
    Code.GET_TOPICS_BY_CLUSTER: rules.FREE,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: rules.FREE,
    Code.GET_UNIT_TOPIC_LIST: rules.FREE,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: rules.FREE,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: rules.FREE,
}

_NAME_SERVER_ADMINISTRATORS: Final[Mapping[int, Rule]] = {
    Code.REGISTER_BROKER: rules.named_cluster,
    Code.UNREGISTER_BROKER: rules.named_cluster,
    Code.QUERY_DATA_VERSION: rules.named_cluster,
    Code.BROKER_HEARTBEAT: rules.named_cluster,
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
}

BROKER: Final[Mapping[int, Rule]] = {**_BROKER_CLIENTS, **_BROKER_ADMINISTRATORS}
NAME_SERVER: Final[Mapping[int, Rule]] = {**_NAME_SERVER_CLIENTS, **_NAME_SERVER_ADMINISTRATORS}
ADMINISTRATIVE: Final = frozenset({*_BROKER_ADMINISTRATORS, *_NAME_SERVER_ADMINISTRATORS})
"""The codes of administrators' requests."""
