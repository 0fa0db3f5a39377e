"""A delivered message as bytes, if it is one as most are.

A fast path: `delivered.make_message` is its specification, and serves all messages that have more
than an id, keys, a tag and properties of their users.
"""

from __future__ import annotations

import hashlib
from typing import Final

from penstock.model import StoredMessage
from penstock.model.names import Property
from penstock.protocol.records.sys_flags import SysFlag
from penstock.proxy.delivered import DEAD_ID, DEAD_TOPIC, make_message
from penstock.proxy.message_types import DELAYS, LITE_TOPIC
from penstock.proxy.submitted_messages import BORN_HOST, RESERVED, TRACE_CONTEXT
from penstock.proxy.wire.codes import DigestType, Encoding, MessageType
from penstock.proxy.wire.messages import ReceiveMessageResponse
from penstock.proxy.wire.quick_responses import (
    field,
    host,
    number,
    receive_response,
    text,
    timestamp,
    varint,
)

_RARE: Final = DELAYS | {
    Property.TRANSACTION_PREPARED,
    Property.SHARDING_KEY,
    Property.PRIORITY,
    LITE_TOPIC,
    TRACE_CONTEXT,
    DEAD_ID,
    DEAD_TOPIC,
}
"""Properties that change the type of a message, or add a field to it."""
_KEYS: Final = Property.KEYS
_DIGEST: Final = b"\x22\x24" + number(b"\x08", DigestType.MD5) + b"\x12\x20"
"""What is before the 32 characters of a checksum."""
_KIND: Final = number(b"\x28", Encoding.IDENTITY) + number(b"\x30", MessageType.NORMAL)


def delivery_response(stored: StoredMessage, topic: str, receipt_handle: str) -> bytes:
    """The response that delivers a message."""
    properties = stored.properties
    if not _RARE.isdisjoint(properties) or stored.sys_flag & SysFlag.COMPRESSED:
        message = make_message(stored, topic, receipt_handle)
        return ReceiveMessageResponse(message=message).SerializeToString()
    checksum = hashlib.md5(stored.body, usedforsecurity=False).hexdigest().upper()
    tag = stored.tag
    system = b"".join(
        (
            b"" if tag is None else field(b"\x0a", tag.encode()),
            b"".join([text(b"\x12", key) for key in stored.keys]) if _KEYS in properties else b"",
            text(b"\x1a", stored.msg_id),
            _DIGEST,
            checksum.encode(),
            _KIND,
            timestamp(b"\x3a", stored.born_timestamp),
            host(b"\x42", properties.get(BORN_HOST) or stored.born_host),
            timestamp(b"\x4a", stored.store_timestamp),
            host(b"\x52", stored.store_host),
            field(b"\x62", receipt_handle.encode()),
            number(b"\x68", stored.queue.queue_id),
            b"\x70",
            varint(stored.queue_offset),
            b"\x80\x01",
            varint(stored.reconsume_times + 1),
        )
    )
    users = [(key, value) for key, value in properties.items() if key not in RESERVED]
    return receive_response(topic, users, system, stored.body)
