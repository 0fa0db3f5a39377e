"""Sending: SendMessage, RecallMessage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import PenstockError
from penstock.model.names import DEFAULT_TOPIC
from penstock.model.properties import encode_properties, format_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.send import (
    RecallMessage,
    RecallMessageResult,
    SendMessage,
    SendMessageResult,
    encode_send_v2,
)
from penstock.protocol.records.batches import encode_batch
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.proxy.backend import HalfPlace
from penstock.proxy.clients import MAX_TOPICS_OF_CLIENT, Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.facts import TopicFacts
from penstock.proxy.handlers.routes import find_topic
from penstock.proxy.queue_choice import choose_queue
from penstock.proxy.statuses import OK, Refused, common_status, make_status, status_of
from penstock.proxy.submitted_messages import Submitted, read_message
from penstock.proxy.wire.codes import Code, MessageType
from penstock.proxy.wire.messages import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)

_QUEUES: Final = 4
MAX_MESSAGES: Final = 1024
"""In one request."""
_STORED: Final = {
    ResponseCode.SUCCESS: OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: make_status(Code.MASTER_PERSISTENCE_TIMEOUT),
    ResponseCode.FLUSH_SLAVE_TIMEOUT: make_status(Code.SLAVE_PERSISTENCE_TIMEOUT),
    ResponseCode.SLAVE_NOT_AVAILABLE: make_status(Code.HA_NOT_AVAILABLE),
}
"""Answers of a broker that has stored the message."""
_BATCHED: Final = (MessageType.NORMAL, MessageType.FIFO)


async def send_message(
    parts: Parts, client: Client, request: SendMessageRequest
) -> SendMessageResponse:
    """Store messages; the answer has an entry for each."""
    messages = _checked(parts, client, request)
    topic = await find_topic(parts, messages[0].topic)
    _check_type(topic, messages[0])
    if not topic.writable:
        raise Refused(Code.FORBIDDEN, f"topic {topic.name!r} cannot be written")
    group = messages[0].message_group if len(messages) == 1 else None
    broker_name, queue_id = choose_queue(topic.writable, group, parts.chance)
    if len(messages) > 1 and all(one.type in _BATCHED for one in messages):
        entries = await _send_batch(client, broker_name, queue_id, messages)
    else:
        entries = [
            await _send_one(parts, client, broker_name, queue_id, message) for message in messages
        ]
    if len(entries) == 1:
        return single_response(entries[0])
    return SendMessageResponse(
        status=common_status(entry.status for entry in entries), entries=entries
    )


def _checked(parts: Parts, client: Client, request: SendMessageRequest) -> list[Submitted]:
    count = len(request.messages)
    if not 1 <= count <= MAX_MESSAGES:
        raise Refused(Code.MESSAGE_CORRUPTED, f"{count} messages", expected=f"1 to {MAX_MESSAGES}")
    now_ms = parts.clock.time_ms()
    messages = [
        read_message(message, address=client.address, now_ms=now_ms) for message in request.messages
    ]
    topics = {message.topic for message in messages}
    if len(topics) > 1:
        raise Refused(
            Code.MESSAGE_CORRUPTED,
            f"messages of {len(topics)} topics in one request",
            expected="one topic",
        )
    return messages


def _check_type(topic: TopicFacts, message: Submitted) -> None:
    if topic.accepts(message.type) or topic.name.startswith("%"):
        return
    accepted = ", ".join(one.name for one in topic.accepted_types())
    raise Refused(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic.name!r} takes messages of the type {accepted}, not {message.type.name}",
        hint=f"another topic: penstock topic create NAME --type {message.type.name}",
    )


async def _send_one(
    parts: Parts, client: Client, broker_name: str, queue_id: int, message: Submitted
) -> SendResultEntry:
    is_half = message.type is MessageType.TRANSACTION
    try:
        if is_half:
            await register_producer(client, message.topic)
        answer = await client.request(broker_name, send_command(message, queue_id))
        status, stored = read_stored(client, answer)
    except PenstockError as error:
        return SendResultEntry(status=status_of(error))
    if is_half:
        position = parse_offset_message_id(stored.msg_id).log_position
        place = HalfPlace(broker_name, position, stored.queue_offset)
        parts.halves.remember(message.topic, message.message_id, place)
    return stored_entry(message.message_id, status, stored)


def send_command(message: Submitted, queue_id: int) -> Command:
    """The request that stores one message; raises `IllegalMessage`."""
    properties = format_properties(message.properties)
    ext = encode_send_v2(_header(message, queue_id, properties, message.sys_flag))
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=message.body)


def read_stored(client: Client, answer: Command) -> tuple[Status, SendMessageResult]:
    """Where a message was stored, from the answer of the broker; a refusal is raised."""
    return _stored_status(client, answer), decode_header(SendMessageResult, answer.ext)


def stored_entry(message_id: str, status: Status, stored: SendMessageResult) -> SendResultEntry:
    """The entry of a message that was stored."""
    return SendResultEntry(
        status=status,
        message_id=message_id,
        transaction_id=message_id,
        offset=stored.queue_offset,
        recall_handle=stored.recall_handle or "",
    )


def single_response(entry: SendResultEntry) -> SendMessageResponse:
    """The response to a request with one message."""
    return SendMessageResponse(status=entry.status, entries=[entry])


async def _send_batch(
    client: Client, broker_name: str, queue_id: int, messages: Sequence[Submitted]
) -> list[SendResultEntry]:
    """Send messages as one batch of the broker's protocol: all are stored, or none is."""
    items = [(one.body, encode_properties(one.properties), 0) for one in messages]
    header = _header(messages[0], queue_id, "", messages[0].sys_flag)
    header.batch = True
    body = encode_batch(items)
    command = Command(RequestCode.SEND_BATCH_MESSAGE, ext=encode_send_v2(header), body=body)
    answer = await client.request(broker_name, command)
    status = _stored_status(client, answer)
    first = decode_header(SendMessageResult, answer.ext).queue_offset
    return [
        SendResultEntry(
            status=status,
            message_id=one.message_id,
            transaction_id=one.message_id,
            offset=first + index,
        )
        for index, one in enumerate(messages)
    ]


def _stored_status(client: Client, answer: Command) -> Status:
    status = _STORED.get(answer.code)
    if status is None:
        raise client.refusal(answer)
    return status


def _header(message: Submitted, queue_id: int, properties: str, sys_flag: int) -> SendMessage:
    return SendMessage(
        # The topic of a message is its producer group.
        message.topic,
        message.topic,
        DEFAULT_TOPIC,
        _QUEUES,
        queue_id,
        sys_flag,
        message.born_ms,
        0,
        properties,
        message.reconsume_times,
    )


async def register_producer(client: Client, topic: str) -> None:
    """Register the client as a producer that the broker may ask about transactions."""
    if topic not in client.topics and len(client.topics) < MAX_TOPICS_OF_CLIENT:
        client.topics[topic] = None
        await client.register()


async def recall_message(
    parts: Parts, client: Client, request: RecallMessageRequest
) -> RecallMessageResponse:
    """Take a timer message back before it is due."""
    from penstock.protocol.recall_handles import decode_handle

    topic = await find_topic(parts, request.topic.name)
    if not topic.accepts(MessageType.DELAY):
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic.name!r} has no delayed messages",
        )
    try:
        handle = decode_handle(request.recall_handle)
    except PenstockError as error:
        raise Refused(Code.INTERNAL_SERVER_ERROR, str(error)) from error
    header = RecallMessage(topic.name, request.recall_handle, topic.name)
    command = Command(RequestCode.RECALL_MESSAGE, ext=encode_header(header))
    answer = await client.demand(handle.broker_name, command)
    return RecallMessageResponse(
        status=OK, message_id=decode_header(RecallMessageResult, answer.ext).msg_id
    )
