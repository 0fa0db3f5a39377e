"""A message as a producer submits it: checked, and as it is stored."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.model.names import Property
from penstock.protocol.records.sys_flags import SysFlag
from penstock.protocol.validation import MAX_MESSAGE_BYTES
from penstock.proxy.message_types import LITE_TOPIC, type_of
from penstock.proxy.names import has_control_character, topic_name
from penstock.proxy.statuses import Refused
from penstock.proxy.times import to_ms
from penstock.proxy.wire.codes import Code, Encoding, MessageType
from penstock.proxy.wire.messages import Message, SystemProperties

MAX_PROPERTIES: Final = 128
MAX_PROPERTY_BYTES: Final = 16_384
MAX_DELAY_MS: Final = 24 * 3_600_000
MAX_ORPHAN_MS: Final = 3_600_000
MAX_GROUP_BYTES: Final = 64
MAX_LITE_TOPIC_BYTES: Final = 64
BORN_HOST: Final = "__BORNHOST"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 31

_RESERVED_NAMES: Final = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC ORIGIN_GROUP REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
    MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME
    MSG_REGION TRACE_ON UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
    1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET
    __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32# _SYS_MSG_PRIORITY_
    __LITE_TOPIC TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL
"""
RESERVED: Final = frozenset(_RESERVED_NAMES.split())
"""Keys of properties that users cannot set, and that consumers do not see as theirs."""


class Submitted(NamedTuple):
    """A message that may be sent."""

    topic: str
    message_id: str
    message_group: str | None
    type: MessageType
    body: bytes
    properties: dict[str, str]
    sys_flag: int
    born_ms: int
    reconsume_times: int


def read_message(message: Message, *, address: str, now_ms: int) -> Submitted:
    """Check a message in the order of the API; raises `Refused`."""
    topic = topic_name(message.topic.name)
    system = message.system_properties
    body = message.body
    _check_body(body)
    # Most messages have no properties: even an empty map takes a while to become a dictionary.
    user = dict(message.user_properties) if len(message.user_properties) else {}
    keys = list(system.keys)
    _check_properties(user, keys, system)
    message_id = system.message_id
    if not message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    properties = {key: value for key, value in user.items() if value}
    if system.HasField("tag"):
        properties[Property.TAGS] = system.tag
    if keys:
        properties[Property.KEYS] = " ".join(keys)
    properties[Property.UNIQUE_KEY] = message_id
    properties[Property.PRODUCER_GROUP] = topic
    properties[BORN_HOST] = _without_controls(system.born_host) or address
    if system.HasField("trace_context") and not has_control_character(system.trace_context):
        properties[TRACE_CONTEXT] = system.trace_context
    sys_flag = _add_kind(properties, system, now_ms)
    born_ms = to_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    properties[Property.BORN_TIMESTAMP] = str(born_ms)
    if system.body_encoding == Encoding.GZIP:
        if body.startswith(_GZIP_MAGIC):
            body = _inflated(body)
        else:
            # Consumers of every protocol inflate zlib.
            sys_flag |= SysFlag.COMPRESSED | SysFlag.ZLIB
    return Submitted(
        topic,
        message_id,
        properties.get(Property.SHARDING_KEY) or properties.get(LITE_TOPIC),
        type_of(properties),
        body,
        {key: value for key, value in properties.items() if value},
        sys_flag,
        born_ms,
        # The C++ client writes the time of timer messages here; only retry topics need it.
        0,
    )


def _check_body(body: bytes) -> None:
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > MAX_MESSAGE_BYTES:
        raise _too_large(len(body))


def _too_large(size: int) -> Refused:
    return Refused(
        Code.MESSAGE_BODY_TOO_LARGE,
        f"body of {size} bytes",
        expected=f"at most {MAX_MESSAGE_BYTES}",
    )


def _check_properties(user: dict[str, str], keys: Sequence[str], system: SystemProperties) -> None:
    if len(user) > MAX_PROPERTIES:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user)} properties",
            expected=f"at most {MAX_PROPERTIES}",
        )
    size = 0
    for key, value in user.items():
        if key in RESERVED:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {key!r} has a meaning of its own",
                hint="use another name",
            )
        if not key or has_control_character(key) or has_control_character(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {key[:100]!r} is empty or has a control character",
            )
        size += len(key.encode()) + len(value.encode())
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or has_control_character(tag):
            raise Refused(
                Code.ILLEGAL_MESSAGE_TAG,
                f"tag {tag[:100]!r}",
                expected="a text without | and control characters",
            )
        size += len(tag.encode())
    for key in keys:
        if not key.strip() or has_control_character(key):
            raise Refused(
                Code.ILLEGAL_MESSAGE_KEY,
                f"key {key[:100]!r}",
                expected="a text without control characters",
            )
        size += len(key.encode())
    if size > MAX_PROPERTY_BYTES:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys of {size} bytes",
            expected=f"at most {MAX_PROPERTY_BYTES}",
        )


def _add_kind(properties: dict[str, str], system: SystemProperties, now_ms: int) -> int:
    """Add what makes a message one of a transaction, a timer or a FIFO message."""
    sys_flag = 0
    if system.message_type == MessageType.TRANSACTION:
        properties[Property.TRANSACTION_PREPARED] = "true"
        sys_flag = SysFlag.TRANSACTION_PREPARED
        if system.HasField("orphaned_transaction_recovery_duration"):
            wait_ms = to_ms(system.orphaned_transaction_recovery_duration)
            if not 0 <= wait_ms <= MAX_ORPHAN_MS:
                raise Refused(
                    Code.BAD_REQUEST,
                    f"the transaction is to be asked about after {wait_ms} ms",
                    expected=f"0 to {MAX_ORPHAN_MS}",
                )
            properties[Property.CHECK_IMMUNITY_SECONDS] = str(wait_ms // 1000)
    if system.HasField("delivery_timestamp"):
        deliver_ms = to_ms(system.delivery_timestamp)
        if deliver_ms > now_ms + MAX_DELAY_MS:
            raise Refused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"delivery in {(deliver_ms - now_ms) / 1000:.0f} s",
                expected=f"at most {MAX_DELAY_MS // 1000} s from now",
            )
        properties[Property.TIMER_DELIVER_MS] = str(deliver_ms)
    if system.HasField("message_group"):
        group = system.message_group
        size = len(group.encode())
        if not group.strip() or size >= MAX_GROUP_BYTES or has_control_character(group):
            raise Refused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"message group {group[:MAX_GROUP_BYTES]!r} of {size} bytes",
                expected=f"less than {MAX_GROUP_BYTES} bytes without control characters",
            )
        properties[Property.SHARDING_KEY] = group
    if system.HasField("lite_topic"):
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic {system.lite_topic[:MAX_LITE_TOPIC_BYTES]!r}",
            expected="no lite topic: they are not supported",
        )
    if system.HasField("priority"):
        properties[Property.PRIORITY] = str(system.priority)
    return sys_flag


def _without_controls(text: str) -> str:
    return "" if has_control_character(text) else text


def _inflated(body: bytes) -> bytes:
    """The content of a gzip body, which no consumer of the other protocol can read."""
    unpacker = zlib.decompressobj(_GZIP_BITS)
    try:
        content = unpacker.decompress(body, MAX_MESSAGE_BYTES + 1)
    except zlib.error as error:
        raise Refused(
            Code.MESSAGE_CORRUPTED, f"the body is called GZIP and is none: {error}"
        ) from error
    if len(content) > MAX_MESSAGE_BYTES:
        raise _too_large(len(content))
    if not unpacker.eof or not content:
        raise Refused(Code.MESSAGE_CORRUPTED, "the body is called GZIP and is cut off or empty")
    return content
