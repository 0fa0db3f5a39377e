"""Transactions: a half message, the local transaction, then commit or rollback.

    send_half   stored and invisible ─▶ local transaction ─▶ end_transaction: commit or roll back

A broker that gets no decision asks for it later (`ProducerCore.check_transaction`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client import requests
from penstock.client.consuming.listeners import is_coroutine_function
from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.errors import InvalidArgument, PenstockError
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

MAX_WAITING_CHECKS: Final = 10_000
"""Questions that wait for the user's function; a broker asks again about those that are dropped."""
_MAX_REMARK: Final = 200
_TIMERS: Final = frozenset(
    {Property.TIMER_DELAY_SECONDS, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS}
)
_DECISIONS: Final = {TransactionDecision.COMMIT: True, TransactionDecision.ROLLBACK: False}


class PreparedMessage(Message):
    """The message of a transaction, as the local transaction gets it.

    ``transaction_id`` names the transaction in all that follows: a local transaction stores it with
    its data, and ``check_transaction`` looks for it (``message.msg_id`` there).
    """

    __slots__ = ("transaction_id",)

    transaction_id: str

    def __init__(self, message: Message, transaction_id: str) -> None:
        super().__init__(
            message.topic,
            message.body,
            **{key: getattr(message, key) for key in _KEYWORDS},
        )
        object.__setattr__(self, "transaction_id", transaction_id)


_KEYWORDS: Final = tuple(one.name for one in fields(Message) if one.kw_only)


class HalfMessage(NamedTuple):
    """A stored half message whose transaction is still open."""

    receipt: Receipt
    message: Message

    @property
    def is_safe(self) -> bool:
        """Whether the local transaction may run; else the half is rolled back."""
        return self.receipt.status is SendStatus.OK

    def prepared(self, message: Message) -> PreparedMessage:
        """The message for the local transaction; ``message`` has the topic as the user knows it."""
        return PreparedMessage(message, self.receipt.msg_id)


class LocalResult(NamedTuple):
    """What a local transaction came to."""

    decision: int
    remark: str | None = None
    """Why there is no decision."""


NOT_RUN: Final = LocalResult(TransactionDecision.ROLLBACK)
"""A half message that is not safely stored is rolled back, and nothing is done for it."""


def failed(error: BaseException, msg_id: str) -> LocalResult:
    """The result of a local transaction that raised: what it did is not known."""
    log.error("local transaction failed msg_id=%s", msg_id, exc_info=error)
    text = f"{type(error).__name__}: {error}"
    return LocalResult(TransactionDecision.UNKNOWN, text[:_MAX_REMARK])


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
    if message.is_delayed or not _TIMERS.isdisjoint(message.properties or ()):
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


async def end_transaction(
    producer: ProducerCore, half: HalfMessage, result: LocalResult
) -> Receipt:
    """Send the decision; the receipt with it.

    The local transaction is done, so a decision that cannot be sent is no error of the send: the
    broker asks for it.
    """
    stored, decision = half.receipt, result.decision
    end = EndTransaction(
        producer_group=producer.group,
        tran_state_table_offset=stored.queue_offset,
        commit_log_offset=parse_offset_message_id(stored.offset_msg_id).log_position,
        commit_or_rollback=decision,
        msg_id=stored.msg_id,
        transaction_id=stored.transaction_id,
        topic=half.message.topic,
    )
    try:
        replica = await producer.session.find_broker(stored.queue, only_this=True)
        request = requests.end_transaction(end, result.remark)
        await producer.session.calls.tell(replica.address, request)
    except PenstockError as error:
        log.warning(
            "decision not sent, the broker will ask for it msg_id=%s error=%s", stored.msg_id, error
        )
    if producer.tracer is not None:
        producer.tracer.transaction_ended(
            half.message,
            stored.msg_id,
            stored.transaction_id,
            decision,
            stored.queue.broker_name,
            from_check=False,
        )
    return stored._replace(decision=_DECISIONS.get(decision))
