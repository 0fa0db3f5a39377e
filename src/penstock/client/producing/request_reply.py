"""Requests with replies: a message carries a correlation id and the client id it is answered to.

The consumer sends the reply to a broker, which pushes it to that client.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from typing import TYPE_CHECKING

from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.receipts import Receipt
from penstock.errors import InvalidArgument, RequestTimeout
from penstock.model import Message, StoredMessage
from penstock.model.names import Property, reply_topic
from penstock.protocol.codes import RequestCode

if TYPE_CHECKING:
    from penstock.client.producing.producer import ProducerCore


async def request(producer: ProducerCore, message: Message, seconds: float) -> StoredMessage:
    """Send a message and wait for the reply of its consumer."""
    session, clock = producer.session, producer.clock
    correlation = str(uuid.UUID(int=session.chance.getrandbits(128), version=4))
    if message.topic not in producer.topics:
        # Any broker of the cluster may push the reply, so all must know this client by then.
        await producer.queues(message.topic)
        await session.heartbeat_all()
    replied: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
    session.replies[correlation] = functools.partial(_settle, replied)
    deadline = clock.monotonic() + seconds
    try:
        await producer.deliver(
            message,
            timeout=seconds,
            extra={
                Property.CORRELATION_ID: correlation,
                Property.REPLY_TO_CLIENT: session.client_id,
                Property.TTL: str(round(seconds * 1000)),
            },
        )
        too_late = RequestTimeout(
            f"no reply to a request to topic {message.topic!r} within {seconds:g} s",
            hint="does a consumer of the topic call reply()?",
        )
        timer = clock.call_later(max(0.0, deadline - clock.monotonic()), _fail, replied, too_late)
        try:
            return await replied
        finally:
            timer.cancel()
    finally:
        session.replies.pop(correlation, None)


async def reply(producer: ProducerCore, asked: StoredMessage, body: bytes) -> Receipt:
    """Answer a message that was sent with `request`."""
    properties = asked.properties
    wanted = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.CLUSTER)
    missing = [key for key in wanted if key not in properties]
    if missing:
        raise InvalidArgument(
            f"message {asked.msg_id} cannot be replied to: no {', '.join(missing)}",
            expected="a message that was sent with Producer.request",
        )
    answer = Message(reply_topic(properties[Property.CLUSTER]), body)
    extra = {
        Property.MESSAGE_TYPE: "reply",
        Property.CORRELATION_ID: properties[Property.CORRELATION_ID],
        Property.REPLY_TO_CLIENT: properties[Property.REPLY_TO_CLIENT],
    }
    if Property.TTL in properties:
        extra[Property.TTL] = properties[Property.TTL]
    outgoing = make_outgoing(answer, producer.new_id(), producer.settings, extra)
    return await producer.deliver_outgoing(answer, outgoing, RequestCode.SEND_REPLY_MESSAGE_V2)


def _settle(future: asyncio.Future[StoredMessage], message: StoredMessage) -> None:
    if not future.done():
        future.set_result(message)


def _fail(future: asyncio.Future[StoredMessage], error: RequestTimeout) -> None:
    if not future.done():
        future.set_exception(error)
