"""Sending: one header in a long and a short spelling, and what the broker answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.protocol.headers.codec import HeaderCodec, Int32, Int64, wire


@dataclass(slots=True)
class SendMessage:
    """A message for a topic. Codes 10 and 324 spell the fields out; 310, 320 and 325 write

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
    broker_name: str | None = field(default=None, metadata=wire("bname"))


SEND_V2_KEYS: Final[Mapping[str, str]] = dict(
    zip(SendMessage.__dataclass_fields__, "abcdefghijklmn", strict=True)
)
SEND_V2: Final = HeaderCodec(SendMessage, SEND_V2_KEYS)

decode_send_v2: Final = SEND_V2.decode
"""The header of codes 310, 320 and 325 from its one-letter fields."""
encode_send_v2: Final = SEND_V2.encode


@dataclass(slots=True)
class SendMessageResult:
    """Where a message went. Java needs the first three in every success."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(default=None, metadata=wire("MSG_REGION"))
    trace_on: str | None = field(default=None, metadata=wire("TRACE_ON"))


@dataclass(slots=True)
class SendRefused:
    """What a refused send still says."""

    region: str | None = field(default=None, metadata=wire("MSG_REGION"))
    trace_on: str | None = field(default=None, metadata=wire("TRACE_ON"))


@dataclass(slots=True)
class RecallMessage:
    """Take back a timer message before it is due."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(slots=True)
class RecallMessageResult:
    msg_id: str
    region: str | None = field(default=None, metadata=wire("MSG_REGION"))


@dataclass(slots=True)
class SendBack:
    """A message that a consumer could not handle; ``offset`` is its position in the log.

    ``delay_level`` 0 leaves the delay to the broker; below 0 means the dead letters at once.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


@dataclass(slots=True)
class PushReply:
    """A reply on its way to whoever asked, handed over by the broker."""

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
