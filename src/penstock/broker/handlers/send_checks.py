"""What every send must pass, replies included: role of the broker, topic and queue, body."""

from __future__ import annotations

from penstock.broker.send_rules import BATCH_MARKS, batch_item_properties, check_batch_item
from penstock.broker.state import BrokerState
from penstock.broker.tables.topics import is_send_forbidden
from penstock.errors import (
    IllegalMessage,
    InvalidArgument,
    NoPermission,
    ProtocolError,
    SystemBusy,
)
from penstock.model.names import WRITE
from penstock.model.properties import parse_properties
from penstock.protocol.commands import Command
from penstock.protocol.headers.send import SendMessage
from penstock.protocol.records.batches import BatchItem, decode_batch
from penstock.protocol.validation import check_topic


def refuse_if_slave(broker: BrokerState) -> None:
    """A slave stores nothing that clients send."""
    if broker.config.is_slave:
        raise SystemBusy(
            f"[REJECTREQUEST]broker {broker.config.broker_name} is a slave",
            expected="sends to go to a master",
        )


def queue_of_send(broker: BrokerState, ask: SendMessage) -> int:
    """The queue to store a send in; creates the topic if that is allowed."""
    topic = ask.topic
    if is_send_forbidden(topic):
        raise NoPermission(f"Sending message to topic[{topic}] is forbidden.")
    config = broker.topics.get(topic)
    if config is None:
        check_topic(topic)
        config = broker.topics.create_for_send(
            topic, ask.default_topic, ask.default_topic_queue_nums
        )
    if config.order and not broker.config.broker_permission & WRITE:
        raise NoPermission(f"the broker[{broker.config.broker_name}] sending message is forbidden")
    if ask.queue_id < 0:
        return broker.random_below(max(1, config.write_queue_nums))
    queues = max(config.write_queue_nums, config.read_queue_nums)
    if ask.queue_id >= queues:
        raise InvalidArgument(
            f"request queueId[{ask.queue_id}] is illegal for topic {topic}",
            expected=f"0 to {queues - 1}",
        )
    return ask.queue_id


def checked_body(broker: BrokerState, command: Command) -> bytes:
    """The body of a send, if it has a legal length."""
    body, limit = command.body, broker.storage.max_message_size
    assert type(body) is bytes, "a received body is bytes"
    if not 0 < len(body) <= limit:
        raise IllegalMessage(
            "the message is illegal, maybe msg body or properties length not matched: "
            f"{len(body)} bytes",
            expected=f"a body of 1 to {limit} bytes (maxMessageSize)",
        )
    return body


def unreadable_batch(error: ProtocolError) -> IllegalMessage:
    """The refusal of a batch whose bytes are none."""
    return IllegalMessage(f"batch cannot be read: {error}")


def batch_items(body: bytes) -> list[BatchItem]:
    """The messages of a batch, if each of them may be in one."""
    try:
        items = decode_batch(body)
    except ProtocolError as error:
        raise unreadable_batch(error) from error
    for number, item in enumerate(items):
        # Usually the end of a longer name; parsing decides.
        if any(mark in item.properties for mark in BATCH_MARKS):
            check_batch_item(parse_properties(item.properties))
            items[number] = item._replace(properties=batch_item_properties(item.properties))
    return items
