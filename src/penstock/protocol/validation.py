"""Which names, bodies and user properties RocketMQ takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.errors import IllegalMessage, IllegalName
from penstock.model.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SPARK_GROUP,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    Property,
    reply_topic,
)

MAX_TOPIC_LENGTH: Final = 127
MAX_RETRY_TOPIC_LENGTH: Final = 255
MAX_GROUP_LENGTH: Final = 120
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024

UNSENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
_SYSTEM_TOPICS: Final = UNSENDABLE_TOPICS | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
_REPLY_SUFFIX: Final = reply_topic("")
PREDEFINED_GROUPS: Final = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)
# Keys that RocketMQ or this client sets. The arbitrary delays of 5.x (TIMER_DELAY_SEC and its kin)
# are not among them: a property is the only way to ask for one.
RESERVED_PROPERTIES: Final = frozenset(
    {
        Property.KEYS,
        Property.TAGS,
        Property.WAIT,
        Property.DELAY,
        Property.UNIQUE_KEY,
        Property.PRODUCER_GROUP,
        Property.TRANSACTION_PREPARED,
        Property.TRANSACTION_ID,
        Property.TRANSACTION_CHECK_TIMES,
        Property.REAL_TOPIC,
        Property.REAL_QUEUE_ID,
        Property.RETRY_TOPIC,
        Property.RECONSUME_TIME,
        Property.MAX_RECONSUME_TIMES,
        Property.ORIGIN_MESSAGE_ID,
        Property.MIN_OFFSET,
        Property.MAX_OFFSET,
        Property.CONSUME_START_TIME,
        Property.REGION,
        Property.TRACE_ON,
        Property.CLUSTER,
        Property.MESSAGE_TYPE,
        Property.CORRELATION_ID,
        Property.REPLY_TO_CLIENT,
        Property.TTL,
        Property.ARRIVE_TIME,
        Property.PUSH_REPLY_TIME,
        Property.INNER_NUMBER,
        Property.INNER_BASE,
        Property.POP_RECEIPT,
        Property.SHARDING_KEY,
        Property.INSTANCE_ID,
        Property.TRANSACTION_FIRST_OFFSET,
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "REDIRECT",
        "PROPERTY_FORWARD_QUEUE_ID",
        "TRACE_CONTEXT",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_NAME_RULE = "letters, digits and % | _ -"
_SHOWN_CHARACTERS = 300


def check_topic(name: str, *, max_length: int | None = None) -> str:
    """The topic's name, if RocketMQ allows it.

    Without ``max_length`` the limit is 127 characters, and 255 for retry and dead-letter topics.
    """
    if max_length is None:
        derived = isinstance(name, str) and name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        max_length = MAX_RETRY_TOPIC_LENGTH if derived else MAX_TOPIC_LENGTH
    return _check("topic", name, max_length)


def check_group(name: str) -> str:
    """The group's name, if RocketMQ 5.x allows it."""
    return _check("group", name, MAX_GROUP_LENGTH)


def _check(what: str, name: str, max_length: int) -> str:
    if not isinstance(name, str):
        raise IllegalName(f"{what} name {name!r} is of type {type(name).__name__}", expected="text")
    if not name or name.isspace():
        raise IllegalName(f"{what} name {name!r} is blank", expected=_NAME_RULE)
    if len(name) > max_length:
        raise IllegalName(
            f"{what} name {name[:_SHOWN_CHARACTERS]!r} has {len(name)} characters",
            expected=f"at most {max_length}",
        )
    if not _NAME.fullmatch(name):
        bad = next(character for character in name if not _NAME.fullmatch(character))
        raise IllegalName(f"{what} name {name!r} contains {bad!r}", expected=_NAME_RULE)
    return name


def check_sendable(topic: str) -> str:
    """The topic's name, if clients may send to it."""
    if topic in UNSENDABLE_TOPICS:
        raise IllegalName(
            f"topic {topic!r} belongs to the broker", expected="a topic that clients may send to"
        )
    return topic


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own; retry and dead-letter topics hold users' messages."""
    return topic in _SYSTEM_TOPICS or (
        topic.startswith(SYSTEM_TOPIC_PREFIX) or topic.endswith(_REPLY_SUFFIX)
    )


def is_system_group(group: str) -> bool:
    """Whether the group is RocketMQ's own, or Penstock's."""
    is_named = group in PREDEFINED_GROUPS or group == SPARK_GROUP
    return is_named or group.startswith(SYSTEM_GROUP_PREFIX)


def check_body(body: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """The body, if it is neither empty nor larger than a broker takes."""
    if not body:
        raise IllegalMessage("the message body is empty", expected="at least one byte")
    if len(body) > max_bytes:
        raise IllegalMessage(
            f"the message body has {len(body)} bytes",
            expected=f"at most {max_bytes}",
            hint="send a reference, or raise the limit on the producer and on the broker "
            "(maxMessageSize)",
        )
    return body


def check_user_properties(keys: Iterable[str]) -> None:
    """Refuse property keys to which RocketMQ gives a meaning of its own."""
    for key in keys:
        if key in RESERVED_PROPERTIES:
            raise IllegalMessage(
                f"message property {key!r} is reserved",
                expected="a key of your own; tag, keys, delay and sharding_key are arguments",
            )
