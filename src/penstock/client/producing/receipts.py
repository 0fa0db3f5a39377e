"""What a broker said about a message that was sent."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command


class SendStatus(Enum):
    """How safe a stored message is; all of them mean that the broker has it."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_STATUS = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class Receipt(NamedTuple):
    """A message was stored: where, and how it can be found again.

    Of a batch sent with `send_batch`, ``msg_id`` and ``offset_msg_id`` are comma-joined lists and
    ``queue_offset`` is that of the first message.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None


def receipt(answer: Command, msg_id: str, queue: MessageQueue) -> Receipt | None:
    """The receipt in an answer; None when the broker did not take the message."""
    status = _STATUS.get(answer.code)
    if status is None:
        return None
    ext = answer.ext or {}
    try:
        queue_id = int(ext["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return Receipt(
            status,
            msg_id,
            ext["msgId"],
            queue,
            int(ext["queueOffset"]),
            ext.get("transactionId"),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(
            f"the answer to a send to {queue} has no readable {error}",
            expected="msgId, queueId and queueOffset",
        ) from None


def receipts_of_batch(batch: Receipt, msg_ids: list[str]) -> list[Receipt]:
    """One receipt for each message of a batch."""
    ids = batch.offset_msg_id.split(",")
    if len(ids) != len(msg_ids):
        ids = [""] * len(msg_ids)
    status, queue, first = batch.status, batch.queue, batch.queue_offset
    # What Receipt(...) does, without its detour through a function: once per message.
    new, kind = tuple.__new__, Receipt
    return [
        new(kind, (status, msg_id, offset_id, queue, offset, None))
        for offset, msg_id, offset_id in zip(itertools.count(first), msg_ids, ids)
    ]
