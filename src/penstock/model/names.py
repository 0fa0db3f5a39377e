"""Names with a meaning: reserved topics and groups, prefixes, property keys, permissions."""

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REVIVE_GROUP: Final = SYSTEM_GROUP_PREFIX + "REVIVE_GROUP"

SPARK_GROUP: Final = "penstock_spark"
"""The group of Spark jobs without one of their own. They pull and send as it and commit nothing."""

DEFAULT_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its offsets say how far a broker has got with half messages and the records that close them."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""RocketMQ's group for tools: they read with it, and it has no members."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1


def retry_topic(group: str) -> str:
    """Where a group's failed messages wait for their next attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where a group's messages end that failed too often."""
    return DLQ_PREFIX + group


def stream_group(group: str) -> str:
    """The producer group by which Spark streams of a consumer group are seen while they run.

    A stream reads every queue itself, so it must not be a member of the group, to which brokers
    and other members would assign queues. Any broker lists the connected clients of producer
    groups.
    """
    return f"{SPARK_GROUP}_stream_{group}"


def group_of_stream(producer_group: str) -> str | None:
    """The consumer group that a stream commits to; None for other producers."""
    start = stream_group("")
    return producer_group.removeprefix(start) if producer_group.startswith(start) else None


POP_RETRY_MARKS: Final = ("_", "+")
"""What stands between group and topic in the name of a pop retry topic: two spellings."""


def pop_retry_topic(group: str, topic: str) -> str:
    """Where a group's unfinished messages of a topic come again, in the usual spelling."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """The same in the spelling that is unique: names contain no plus sign."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def revive_topic(cluster: str) -> str:
    """Where a broker keeps the check-points of pop consumption."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}"


def reply_topic(cluster: str) -> str:
    """Where replies of request-reply calls are stored."""
    return cluster + "_REPLY_TOPIC"


class Property:
    """Keys of message properties that RocketMQ gives a meaning."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    PRODUCER_GROUP: Final = "PGROUP"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_FIRST_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    INNER_NUMBER: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
    BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
    PRIORITY: Final = "_SYS_MSG_PRIORITY_"
    POP_RECEIPT: Final = "POP_CK"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    ORIGIN_GROUP: Final = "ORIGIN_GROUP"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    INSTANCE_ID: Final = "INSTANCE_ID"


class Failure:
    """Properties of a retry or a dead letter that say why the handler failed."""

    TYPE: Final = "PENSTOCK_REASON_TYPE"
    MESSAGE: Final = "PENSTOCK_REASON_MESSAGE"
    HOST: Final = "PENSTOCK_REASON_HOST"
    ATTEMPT: Final = "PENSTOCK_REASON_ATTEMPT"


class Redrive:
    """Properties of the copy of a dead letter that is redriven."""

    FROM: Final = "PENSTOCK_REDRIVEN_FROM"
    """The offset id of the dead letter."""
    TIMES: Final = "PENSTOCK_REDRIVES"
    """How often the message was redriven, this time included."""
    EDITED: Final = "PENSTOCK_EDITED"
    """That body, tag or keys were changed: the size and SHA-256 of the body that died."""
