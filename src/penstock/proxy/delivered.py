"""A stored message as it is delivered to a consumer, or shown to a producer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from penstock.model import StoredMessage
from penstock.model.names import Property
from penstock.protocol.records.sys_flags import SysFlag
from penstock.proxy.message_types import LITE_TOPIC, type_of
from penstock.proxy.submitted_messages import BORN_HOST, RESERVED, TRACE_CONTEXT
from penstock.proxy.times import timestamp
from penstock.proxy.wire.codes import DigestType, Encoding
from penstock.proxy.wire.messages import (
    DeadLetterQueue,
    Digest,
    Message,
    Resource,
    SystemProperties,
)

DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def make_message(stored: StoredMessage, topic: str, receipt_handle: str | None = None) -> Message:
    """The message of a record; its topic is the one that was asked for, of retries, too."""
    properties = stored.properties
    if stored.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_PREPARED:
        # It was committed, and is a message like any other now.
        properties.pop(Property.TRANSACTION_PREPARED, None)
    is_packed = stored.sys_flag & SysFlag.COMPRESSED
    system = SystemProperties(
        keys=stored.keys,
        message_id=stored.msg_id,
        body_digest=Digest(
            type=DigestType.MD5,
            checksum=hashlib.md5(stored.body, usedforsecurity=False).hexdigest().upper(),
        ),
        # Bodies are delivered inflated, since each client knows other encodings. The bit is left
        # only where that was not possible.
        body_encoding=Encoding.GZIP if is_packed else Encoding.IDENTITY,
        message_type=type_of(properties),
        born_timestamp=timestamp(stored.born_timestamp),
        born_host=properties.get(BORN_HOST) or stored.born_host,
        store_timestamp=timestamp(stored.store_timestamp),
        store_host=stored.store_host,
        queue_id=stored.queue.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=stored.reconsume_times + 1,
    )
    if stored.tag is not None:
        system.tag = stored.tag
    if receipt_handle is not None:
        system.receipt_handle = receipt_handle
    _add_rest(system, properties)
    return Message(
        topic=Resource(name=topic),
        user_properties={key: value for key, value in properties.items() if key not in RESERVED},
        system_properties=system,
        body=stored.body,
    )


def _add_rest(system: SystemProperties, properties: Mapping[str, str]) -> None:
    """Add what few messages have."""
    deliver = properties.get(Property.TIMER_DELIVER_MS)
    if deliver is not None and deliver.isascii() and deliver.isdecimal() and len(deliver) <= 15:
        system.delivery_timestamp.CopyFrom(timestamp(int(deliver)))
    if Property.SHARDING_KEY in properties:
        system.message_group = properties[Property.SHARDING_KEY]
    if LITE_TOPIC in properties:
        system.lite_topic = properties[LITE_TOPIC]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    priority = properties.get(Property.PRIORITY, "")
    if priority.isascii() and priority.isdecimal() and len(priority) <= 9:
        system.priority = int(priority)
    if DEAD_TOPIC in properties and DEAD_ID in properties:
        system.dead_letter_queue.CopyFrom(
            DeadLetterQueue(topic=properties[DEAD_TOPIC], message_id=properties[DEAD_ID])
        )
