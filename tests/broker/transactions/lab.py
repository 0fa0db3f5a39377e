"""What tests of transactions ask a broker."""

from __future__ import annotations

from typing import Any

from tests.support.asking import all_records, ext, log_position, properties
from tests.support.wire import Wire, body_of

from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.transactions import (
    CheckTransactionState,
    EndTransaction,
    ResumeCheckHalfMessage,
    TransactionDecision,
)
from penstock.protocol.records.codec import Record, decode_record

COMMIT = TransactionDecision.COMMIT
ROLLBACK = TransactionDecision.ROLLBACK
UNKNOWN = TransactionDecision.UNKNOWN
CHECK = RequestCode.CHECK_TRANSACTION_STATE
GROUP = "shop"
TOPIC = "orders"


async def prepare(
    wire: Wire,
    body: bytes = b"an order",
    *,
    unique_id: str = "ID-1",
    topic: str = TOPIC,
    queue_id: int = 1,
    more: dict[str, str] | None = None,
    **fields: Any,
) -> Command:
    """Send a half message."""
    given = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": unique_id, **(more or {})}
    return await wire.send(topic, body, queue_id=queue_id, properties=given, **fields)


async def prepared(wire: Wire, body: bytes = b"an order", **more: Any) -> Command:
    """Send a half message that must be stored."""
    answer = await prepare(wire, body, **more)
    assert answer.code == 0, answer.remark
    return answer


async def end(
    wire: Wire,
    half: Command,
    decision: int = COMMIT,
    *,
    group: str = GROUP,
    offset: int | None = None,
    position: int | None = None,
    from_check: bool = False,
) -> Command:
    """Send a decision about the half that an answer names."""
    header = EndTransaction(
        group,
        int(ext(half)["queueOffset"]) if offset is None else offset,
        log_position(half) if position is None else position,
        decision,
        "ID-1",
        from_transaction_check=from_check,
    )
    return await wire.request(RequestCode.END_TRANSACTION, header)


async def decide(wire: Wire, question: Command, decision: int = COMMIT) -> Command:
    """Answer a question of the broker, and wait for what it says."""
    ask = asked(question)
    header = EndTransaction(
        GROUP,
        ask.tran_state_table_offset,
        ask.commit_log_offset,
        decision,
        ask.msg_id or "",
        from_transaction_check=True,
        transaction_id=ask.transaction_id,
    )
    return await wire.request(RequestCode.END_TRANSACTION, header)


async def resume(wire: Wire, msg_id: str) -> Command:
    """Have a given-up half asked about again."""
    return await wire.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage(msg_id))


def asked(question: Command) -> CheckTransactionState:
    """The header of a question."""
    return decode_header(CheckTransactionState, question.ext)


def questions(wire: Wire) -> list[Command]:
    """The questions that a client got and no test has taken yet."""
    return [request for request in wire.requests if request.code == CHECK]


def half_in(question: Command) -> Record:
    """The half message in a question."""
    return decode_record(body_of(question), check_crc=True)


def check_times(wire: Wire) -> list[tuple[str, int]]:
    """Unique id and count of each question."""
    found = [properties(half_in(question)) for question in questions(wire)]
    return [(one["UNIQ_KEY"], int(one["TRANSACTION_CHECK_TIMES"])) for one in found]


async def halves(wire: Wire) -> list[Record]:
    """All records of the half topic."""
    return await all_records(wire, HALF_TOPIC)


async def op_bodies(wire: Wire) -> list[bytes]:
    """The bodies of all op records."""
    return [record.body for record in await all_records(wire, OP_HALF_TOPIC)]
