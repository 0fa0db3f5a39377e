"""The receipt of a send: what a broker answered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    """Where a message was stored, and how to find it again.

    For a batch, ``msg_ids`` and ``offset_msg_ids`` have one id for each message, and
    ``queue_offset`` is that of the first one. ``msg_id`` and ``offset_msg_id`` then are the same
    ids joined by commas, as RocketMQ has them.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    attempts: int = 1
    """More than 1: an earlier attempt was not confirmed, so the message may be stored twice. A
    Penstock broker that gets it twice stores it once."""
    decision: bool | None = None
    """Of a transaction: True was sent to commit, False to roll back, None to decide later."""
    recall_handle: str | None = None
    """Of a timer message: `Producer.recall` takes the message back with it."""

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """The unique ids of the messages."""
        return tuple(self.msg_id.split(","))

    @property
    def offset_msg_ids(self) -> tuple[str, ...]:
        """The ids by which a broker finds the messages: its address and their log positions."""
        return tuple(self.offset_msg_id.split(","))


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
            recall_handle=ext.get("recallHandle"),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(
            f"the answer to a send to {queue} has no readable {error}",
            expected="msgId, queueId and queueOffset",
        ) from None


def receipts_of_batch(batch: Receipt, msg_ids: list[str]) -> list[Receipt]:
    """One receipt for each message of a batch."""
    ids: Sequence[str] = batch.offset_msg_ids
    if len(ids) != len(msg_ids):
        ids = [""] * len(msg_ids)
    status, queue, first, attempts = batch.status, batch.queue, batch.queue_offset, batch.attempts
    # The same as Receipt(...), without the Python function a NamedTuple calls.
    new, kind = tuple.__new__, Receipt
    return [
        new(kind, (status, msg_id, offset_id, queue, offset, None, attempts, None, None))
        for offset, msg_id, offset_id in zip(itertools.count(first), msg_ids, ids)
    ]
