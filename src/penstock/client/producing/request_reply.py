"""Sends that are not over with their receipt: requests with replies, and transactions.

request   the message carries a number and our client id; the reply comes back through a broker
prepare   stored and invisible ─▶ local transaction ─▶ commit or roll back; a broker that hears
          nothing asks
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.producing.outgoing import enclose
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.errors import InvalidArgument, RequestTimeout
from penstock.model import Message, StoredMessage
from penstock.model.names import Property, reply_topic
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.transactions import EndTransaction, TransactionDecision
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.protocol.records.sys_flags import SysFlag

if TYPE_CHECKING:
    from penstock.client.producing.producer import ProducerCore


class HalfMessage(NamedTuple):
    """A prepared message whose transaction is still open."""

    receipt: Receipt
    message: Message


async def request(producer: ProducerCore, message: Message, seconds: float) -> StoredMessage:
    """Send a message and wait for the reply of whoever consumes it."""
    session, clock = producer.session, producer.clock
    correlation = str(uuid.UUID(int=session.chance.getrandbits(128), version=4))
    if message.topic not in producer.topics:
        # A reply comes through any broker of the cluster; all must know us by then.
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
    said = asked.properties
    wanted = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.CLUSTER)
    missing = [key for key in wanted if key not in said]
    if missing:
        raise InvalidArgument(
            f"message {asked.msg_id} cannot be replied to: no {', '.join(missing)}",
            expected="a message that was sent with Producer.request",
        )
    answer = Message(reply_topic(said[Property.CLUSTER]), body)
    extra = {
        Property.MESSAGE_TYPE: "reply",
        Property.CORRELATION_ID: said[Property.CORRELATION_ID],
        Property.REPLY_TO_CLIENT: said[Property.REPLY_TO_CLIENT],
    }
    if Property.TTL in said:
        extra[Property.TTL] = said[Property.TTL]
    envelope = enclose(answer, producer.new_id(), producer.settings, extra)
    return await producer.deliver_envelope(answer, envelope, RequestCode.SEND_REPLY_MESSAGE_V2)


async def prepare(producer: ProducerCore, message: Message) -> HalfMessage:
    """Send the first half of a transaction."""
    if message.delay is not None:
        raise InvalidArgument(
            f"a delayed message to topic {message.topic!r} in a transaction", expected="no delay"
        )
    envelope = enclose(
        message,
        producer.new_id(),
        producer.settings,
        {Property.TRANSACTION_PREPARED: "true", Property.PRODUCER_GROUP: producer.group},
    )
    envelope = envelope._replace(sys_flag=envelope.sys_flag | SysFlag.TRANSACTION_PREPARED)
    return HalfMessage(await producer.deliver_envelope(message, envelope), message)


async def end_transaction(producer: ProducerCore, half: HalfMessage, decision: int) -> None:
    """Tell the broker what became of a transaction."""
    stored = half.receipt
    if stored.status is not SendStatus.OK:
        decision = TransactionDecision.ROLLBACK
    end = EndTransaction(
        producer_group=producer.group,
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=parse_offset_message_id(stored.offset_msg_id).log_position,
        commit_or_rollback=decision,
        msg_id=stored.msg_id,
        transaction_id=stored.transaction_id,
        topic=half.message.topic,
    )
    replica = await producer.session.find_broker(stored.queue, only_this=True)
    await producer.session.calls.tell(replica.address, RequestCode.END_TRANSACTION, end)
    if producer.tracer is not None:
        producer.tracer.transaction_ended(
            half.message,
            stored.msg_id,
            stored.transaction_id,
            decision,
            stored.queue.broker_name,
            from_check=False,
        )


def _settle(future: asyncio.Future[StoredMessage], message: StoredMessage) -> None:
    if not future.done():
        future.set_result(message)


def _fail(future: asyncio.Future[StoredMessage], error: RequestTimeout) -> None:
    if not future.done():
        future.set_exception(error)
