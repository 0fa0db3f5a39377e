"""Sending: one header with long and with short names, and the answer of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from msgspec import defstruct, field
from msgspec.structs import fields

from penstock.protocol.headers.codec import Header, Int32, Int64, decode_header


class SendMessage(Header):
    """A message for a topic. Codes 10 and 324 write whole names; 310, 320 and 325 write

    producerGroup a   topic b          defaultTopic c     defaultTopicQueueNums d
    queueId e         sysFlag f        bornTimestamp g    flag h
    properties i      reconsumeTimes j unitMode k         maxReconsumeTimes l
    batch m           bname n
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = field(default=None, name="bname")


SEND_V2_KEYS: Final[Mapping[str, str]] = dict(
    zip(SendMessage.__struct_fields__, "abcdefghijklmn", strict=True)
)
SendMessageV2: Final = cast(
    type[SendMessage],
    defstruct(
        "SendMessageV2",
        [
            (one.name, one.type) if one.required else (one.name, one.type, one.default)
            for one in fields(SendMessage)
        ],
        bases=(SendMessage,),
        rename=SEND_V2_KEYS,
    ),
)
"""The same header with one-letter fields."""


def decode_send_v2(ext: Mapping[str, str] | None) -> SendMessage:
    """The header of codes 310, 320 and 325 from its one-letter fields."""
    return decode_header(SendMessageV2, ext)


def encode_send_v2(header: SendMessage) -> dict[str, str]:
    """The one-letter fields of a send.

    Clients call it for every message, so the fields are written out: this takes a third of the
    time of `encode_header`.
    """
    ext = {
        "a": header.producer_group,
        "b": header.topic,
        "c": header.default_topic,
        "d": str(header.default_topic_queue_nums),
        "e": str(header.queue_id),
        "f": str(header.sys_flag),
        "g": str(header.born_timestamp),
        "h": str(header.flag),
        "j": str(header.reconsume_times),
        "k": "true" if header.unit_mode else "false",
        "m": "true" if header.batch else "false",
    }
    if header.properties is not None:
        ext["i"] = header.properties
    if header.max_reconsume_times is not None:
        ext["l"] = str(header.max_reconsume_times)
    if header.broker_name is not None:
        ext["n"] = header.broker_name
    return ext


class SendMessageResult(Header):
    """Where a message is stored. Java needs the first three in every success."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class SendRefused(Header):
    """The fields of a refused send."""

    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class RecallMessage(Header):
    """Recall a timer message before it is due."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResult(Header):
    msg_id: str
    region: str | None = field(default=None, name="MSG_REGION")


class SendBack(Header):
    """A message that a consumer sends back; ``offset`` is its log position.

    ``delay_level`` 0 leaves the delay to the broker; below 0 means a dead letter at once.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class PushReply(Header):
    """A reply that the broker pushes to its requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
