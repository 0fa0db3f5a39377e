"""CONSUMER_SEND_MSG_BACK: a consumer sends back a message that it could not process.

The record is stored again: in the group's retry topic after a delay, or as a dead letter. The
original stays.
"""

from __future__ import annotations

import logging

from penstock.broker.delivery.retries import DEAD_LETTER_QUEUE, after_send_back, max_reconsume_times
from penstock.broker.delivery.schedule_records import delayed
from penstock.broker.hooks import SentBack, call_hooks
from penstock.broker.pop.retry_records import origin_topic
from penstock.broker.state import BrokerState
from penstock.broker.tables.topics import READ_WRITE, UNIT_SUB_FLAG
from penstock.errors import (
    IllegalMessage,
    IllegalName,
    NoPermission,
    ProtocolError,
    RequestRefused,
    StoreError,
)
from penstock.model.hosts import offset_message_id
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX, WRITE, Property, retry_topic
from penstock.model.properties import encode_stored, parse_properties
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.codes import RequestCode, response_name
from penstock.protocol.extensions import REASON_FIELDS
from penstock.protocol.headers.send import SendBack
from penstock.protocol.records.codec import Record, decode_record
from penstock.protocol.validation import check_topic
from penstock.remoting.dispatch import Call, handles
from penstock.store import draft_of

log = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 1000
# Two of them separate properties, and the store refuses zeros.
_UNSTORABLE = str.maketrans("\x00\x01\x02", "   ")


@handles(RequestCode.CONSUMER_SEND_MSG_BACK)
def send_back(broker: BrokerState, ask: SendBack, call: Call) -> None:
    """Store a failed message for its next attempt, or as a dead letter."""
    config = broker.config
    if config.is_slave:
        raise RequestRefused("no master available along with " + config.broker_name)
    group = broker.groups.require(ask.group)
    if not config.broker_permission & WRITE:
        raise NoPermission(f"the broker[{broker.address}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        # RocketMQ answers with success and drops the message.
        log.warning("message dropped, its group has no retry queues group=%s", ask.group)
        return
    topic = _retry_topic(broker, ask, group.retry_queue_nums)
    if not topic.perm & WRITE:
        raise NoPermission(f"the topic[{topic.topic_name}] sending message is forbidden")
    record = _original(broker, ask)
    limit = max_reconsume_times(
        ask.max_reconsume_times, call.command.version, group.retry_max_times
    )
    target = after_send_back(ask.group, record.reconsume_times, ask.delay_level, limit)
    # The topic may have fewer queues than the group is configured for; others are not read.
    queue_id = broker.random_below(max(1, min(group.retry_queue_nums, topic.read_queue_nums)))
    if target.is_dead:
        queue_id = DEAD_LETTER_QUEUE
        broker.topics.ensure(target.topic, 1, config.dead_letter_permission)
    properties = _properties(record, ask.group, target.delay_level, call)
    draft = draft_of(record, target.topic, queue_id, encode_stored(properties))._replace(
        store_host=broker.store_host,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )
    if not target.is_dead:
        draft = delayed(draft, properties, target.delay_level, broker.delay_levels)
    try:
        appended = broker.storage.append(draft)
    except (StoreError, IllegalMessage) as error:
        call_hooks(broker.send_back_hooks, SentBack(ask.group, record.topic, False, target.is_dead))
        # RocketMQ names the status of its store here, with another code.
        raise RequestRefused(f"{response_name(error.code)}: {error}") from error
    # A second retry also counts for the original topic.
    broker.stats.sent_back(ask.group, properties[Property.RETRY_TOPIC])
    if not target.is_dead:
        # As for a delayed send: counted now, for the target topic.
        broker.stats.put(target.topic, queue_id, appended.size)
    else:
        broker.stats.dead_letter(ask.group, properties[Property.RETRY_TOPIC])
        log.info(
            "dead letter stored group=%s topic=%s attempts=%d id=%s",
            ask.group,
            properties.get(Property.RETRY_TOPIC),
            record.reconsume_times,
            properties.get(Property.UNIQUE_KEY),
        )
    call_hooks(broker.send_back_hooks, SentBack(ask.group, record.topic, True, target.is_dead))


def _retry_topic(broker: BrokerState, ask: SendBack, queues: int) -> TopicConfig:
    """The group's retry topic, created if it is missing."""
    name = retry_topic(ask.group)
    if name not in broker.topics:
        try:
            check_topic(name)
        except IllegalName as error:
            # A group from the table of another broker, with a longer name than is legal here.
            raise RequestRefused(f"topic[{name}] not exist: {error}") from error
    flag = UNIT_SUB_FLAG if ask.unit_mode else 0
    return broker.topics.ensure(name, queues, READ_WRITE, flag)


def _original(broker: BrokerState, ask: SendBack) -> Record:
    view = broker.storage.record_at(ask.offset)
    try:
        record = None if view is None else decode_record(view)
    except ProtocolError:
        record = None
    if record is None:
        raise RequestRefused(
            f"look message by offset failed, {ask.offset}",
            expected="the log position of a message of this broker that is still there",
        )
    if broker.config.check_origin_topic and ask.origin_topic not in (None, record.topic):
        raise RequestRefused(
            f"look message by offset failed, the topic is {record.topic}, not {ask.origin_topic}"
        )
    return record


def _properties(record: Record, group: str, delay_level: int, call: Call) -> dict[str, str]:
    properties = parse_properties(record.properties)
    # A retry keeps the topic and the id of the first attempt. In other topics a sender has set
    # them: a consumer would look for a handler of the topic that is named there.
    if not record.topic.startswith(RETRY_PREFIX):
        properties[Property.RETRY_TOPIC] = record.topic
        if not record.topic.startswith(DLQ_PREFIX):
            properties.pop(Property.ORIGIN_MESSAGE_ID, None)
    # A pop retry topic names the topic, where RocketMQ would take it for the original one.
    properties.setdefault(Property.RETRY_TOPIC, origin_topic(record.topic, group))
    properties.setdefault(
        Property.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.log_position)
    )
    # A listener thread of the consumer waits for this answer: do not wait for the disk.
    properties[Property.WAIT] = "false"
    properties[Property.DELAY] = str(delay_level)
    for field, key in REASON_FIELDS.items():
        text = (call.command.ext or {}).get(field)
        if text:
            properties[key] = text[:_MAX_REASON_CHARACTERS].translate(_UNSTORABLE)
    return properties
