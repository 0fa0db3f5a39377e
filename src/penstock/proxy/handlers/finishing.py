"""What becomes of delivered messages: acknowledged, changed, dead."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.send import SendBack
from penstock.proxy.clients import Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.names import group_name, topic_name
from penstock.proxy.receipts import NOWHERE, Receipt
from penstock.proxy.renewals import Delivery, change_receipt
from penstock.proxy.statuses import OK, Refused, common_status, status_of
from penstock.proxy.times import to_ms
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.messages import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Status,
)

MAX_INVISIBLE_MS: Final = 12 * 3_600_000
MAX_ENTRIES: Final = 1024
_AT_ONCE: Final = -1


async def ack_message(
    parts: Parts, client: Client, request: AckMessageRequest
) -> AckMessageResponse:
    """End messages; each entry has a status of its own."""
    delivery = read_delivery(client, request.group.name, request.topic.name)
    if not 1 <= len(request.entries) <= MAX_ENTRIES:
        raise Refused(
            Code.INTERNAL_SERVER_ERROR,
            f"{len(request.entries)} entries",
            expected=f"1 to {MAX_ENTRIES}",
        )
    if len(request.entries) == 1:
        return single_response(await _acknowledge_entry(parts, delivery, request.entries[0]))
    entries = await asyncio.gather(
        *(_acknowledge_entry(parts, delivery, entry) for entry in request.entries)
    )
    return AckMessageResponse(
        status=common_status(entry.status for entry in entries), entries=entries
    )


async def _acknowledge_entry(
    parts: Parts, delivery: Delivery, entry: AckMessageEntry
) -> AckMessageResultEntry:
    status = OK
    try:
        receipt = Receipt.parse(entry.receipt_handle)
        renewed = await parts.renewals.take(delivery.group, delivery.topic, receipt)
        if renewed is not None:
            receipt = renewed.receipt
        try:
            check_time(parts, receipt)
            await acknowledge(delivery, receipt)
        except PenstockError:
            if renewed is not None:
                parts.renewals.put_back(renewed)
            raise
    except PenstockError as error:
        status = status_of(error)
    return result_entry(entry, status)


def result_entry(entry: AckMessageEntry, status: Status) -> AckMessageResultEntry:
    """What became of an entry."""
    return AckMessageResultEntry(
        message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
    )


def single_response(entry: AckMessageResultEntry) -> AckMessageResponse:
    """The response to a request with one entry."""
    return AckMessageResponse(status=entry.status, entries=[entry])


async def change_invisible_duration(
    parts: Parts, client: Client, request: ChangeInvisibleDurationRequest
) -> ChangeInvisibleDurationResponse:
    """Let a message come again at another time; with 0, at once."""
    delivery = read_delivery(client, request.group.name, request.topic.name)
    invisible_ms = to_ms(request.invisible_duration)
    if not 0 <= invisible_ms <= MAX_INVISIBLE_MS:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"invisible for {invisible_ms} ms",
            expected=f"0 to {MAX_INVISIBLE_MS}",
        )
    receipt = Receipt.parse(request.receipt_handle)
    renewed = await parts.renewals.take(delivery.group, delivery.topic, receipt)
    seconds = invisible_ms / 1000
    if renewed is not None:
        receipt = renewed.receipt
        if invisible_ms == 0:
            # Push consumers of Node return what failed without a delay.
            group = await parts.backend.group(delivery.group)
            seconds = group.delay_after(renewed.retries + 1)
    try:
        check_time(parts, receipt)
        changed = await change_receipt(delivery, receipt, seconds, is_suspended=request.suspend)
    except PenstockError:
        if renewed is not None:
            parts.renewals.put_back(renewed)
        raise
    return ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(changed))


async def forward_to_dead_letter_queue(
    parts: Parts, client: Client, request: ForwardMessageToDeadLetterQueueRequest
) -> ForwardMessageToDeadLetterQueueResponse:
    """Store a message as a dead letter of its group and end it."""
    delivery = read_delivery(client, request.group.name, request.topic.name)
    receipt = Receipt.parse(request.receipt_handle)
    renewed = await parts.renewals.take(delivery.group, delivery.topic, receipt)
    if renewed is not None:
        receipt = renewed.receipt
    await bury(delivery, receipt, request.message_id)
    return ForwardMessageToDeadLetterQueueResponse(status=OK)


# Requests to a broker


async def acknowledge(delivery: Delivery, receipt: Receipt) -> None:
    """End a message."""
    await delivery.client.demand(receipt.handle.broker_name, ack_command(delivery, receipt))


def ack_command(delivery: Delivery, receipt: Receipt) -> Command:
    """The request that ends a message."""
    handle = receipt.handle
    # The fields of the header `AckMessage`, written out: this is done for every message.
    ext = {
        "consumerGroup": delivery.group,
        "topic": receipt.real_topic(delivery.group, delivery.topic),
        "queueId": str(handle.queue_id),
        "extraInfo": str(handle),
        "offset": str(handle.queue_offset),
        "bname": handle.broker_name,
    }
    return Command(RequestCode.ACK_MESSAGE, ext=ext)


async def bury(delivery: Delivery, receipt: Receipt, message_id: str) -> None:
    """Store a message as a dead letter, then end it."""
    if receipt.log_position == NOWHERE:
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE,
            "the receipt handle has no log position",
            expected="the handle as the message had it",
        )
    header = SendBack(
        receipt.log_position,
        delivery.group,
        _AT_ONCE,
        message_id or None,
        receipt.real_topic(delivery.group, delivery.topic),
        max_reconsume_times=0,
    )
    command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=encode_header(header))
    broker_name = receipt.handle.broker_name
    await delivery.client.demand(broker_name, command)
    try:
        await acknowledge(delivery, receipt)
    except PenstockError as error:
        # Its time was up: it comes again, and is a dead letter already.
        status_of(error)


# Checks


def read_delivery(client: Client, group: str, topic: str) -> Delivery:
    """What a request names; raises `Refused`."""
    return Delivery(client, group_name(group), topic_name(topic))


def check_time(parts: Parts, receipt: Receipt) -> None:
    """Raise `Refused` if the invisible time of a message is over."""
    if receipt.visible_ms <= parts.clock.time_ms():
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE,
            "the invisible time of the message is over, it is delivered again",
            expected="a receipt handle whose time is not up",
        )
