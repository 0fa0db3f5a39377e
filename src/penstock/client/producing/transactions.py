"""Transactions: a half message, the local transaction, then commit or rollback.

    send_half   stored and invisible ─▶ local transaction ─▶ end_transaction: commit or roll back

A broker that gets no decision asks for it later (`ProducerCore.check_transaction`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.client import requests
from penstock.client.consuming.listeners import is_coroutine_function
from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.errors import InvalidArgument
from penstock.model import Message, StoredMessage
from penstock.model.names import Property
from penstock.protocol.headers.transactions import EndTransaction, TransactionDecision
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.protocol.records.sys_flags import SysFlag

if TYPE_CHECKING:
    from penstock.client.producing.producer import ProducerCore

log = logging.getLogger(__name__)

CheckTransaction = Callable[[StoredMessage], bool | Awaitable[bool | None] | None]
"""Decides about an open transaction: True commits, False rolls back, None: not known yet.

A coroutine function in `penstock.aio` only."""


class HalfMessage(NamedTuple):
    """A stored half message whose transaction is still open."""

    receipt: Receipt
    message: Message


def decision_of(answer: object, msg_id: str) -> int:
    """The `TransactionDecision` for the answer of a user's function."""
    if answer is True:
        return TransactionDecision.COMMIT
    if answer is False:
        return TransactionDecision.ROLLBACK
    if answer is not None:
        # Other values may be truthy by accident, and a commit cannot be undone.
        log.error(
            "no decision about a transaction, it stays open msg_id=%s answer=%.100r"
            " expected=True, False or None",
            msg_id,
            answer,
        )
        if inspect.iscoroutine(answer):
            answer.close()
    return TransactionDecision.UNKNOWN


def refuse_coroutine_function(function: Callable[..., object] | None, what: str) -> None:
    """Refuse a coroutine function where a blocking client has no loop to run it on."""
    if function is not None and is_coroutine_function(function):
        raise InvalidArgument(
            f"{what} is a coroutine function",
            expected="a plain function that returns True, False or None",
            hint="penstock.aio.Producer awaits it",
        )


async def send_half(producer: ProducerCore, message: Message) -> HalfMessage:
    """Send a half message: stored, and invisible until it is committed."""
    if message.delay is not None:
        raise InvalidArgument(
            f"a delayed message to topic {message.topic!r} in a transaction", expected="no delay"
        )
    outgoing = make_outgoing(
        message,
        producer.new_id(),
        producer.settings,
        {Property.TRANSACTION_PREPARED: "true", Property.PRODUCER_GROUP: producer.group},
    )
    outgoing = outgoing._replace(sys_flag=outgoing.sys_flag | SysFlag.TRANSACTION_PREPARED)
    return HalfMessage(await producer.deliver_outgoing(message, outgoing), message)


async def end_transaction(producer: ProducerCore, half: HalfMessage, decision: int) -> None:
    """Commit or roll back; a half message that is not safely stored is always rolled back."""
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
    await producer.session.calls.tell(replica.address, requests.end_transaction(end))
    if producer.tracer is not None:
        producer.tracer.transaction_ended(
            half.message,
            stored.msg_id,
            stored.transaction_id,
            decision,
            stored.queue.broker_name,
            from_check=False,
        )
