"""Decisions about transactions, and given-up half messages that are to be asked about again.

The first decision about a transaction counts. The same one again is confirmed and changes nothing;
the opposite one is refused.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.state import BrokerState
from penstock.broker.transactions import half_records
from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.errors import (
    IllegalMessage,
    InvalidArgument,
    RequestRefused,
    StoreError,
    TopicNotFound,
)
from penstock.model.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TRANSACTION_GIVEN_UP_TOPIC,
    Property,
)
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.half_messages import HalfMessage, read_half
from penstock.protocol.headers.transactions import (
    EndTransaction,
    ResumeCheckHalfMessage,
    TransactionDecision,
)
from penstock.protocol.records.codec import Record
from penstock.protocol.records.message_ids import parse_offset_message_id
from penstock.remoting import Promise
from penstock.remoting.dispatch import handles
from penstock.store.transactions.finding import is_committed, is_given_up, record_at

_COMMIT: Final = TransactionDecision.COMMIT
_ROLLBACK: Final = TransactionDecision.ROLLBACK
_UNKNOWN: Final = TransactionDecision.UNKNOWN
_NAMES: Final = {_COMMIT: "committed", _ROLLBACK: "rolled back"}
_PUT_BACK_FAILED: Final = f"Put message back to {HALF_TOPIC} failed."
_PUT_BACK_RAISED: Final = f"Exception was thrown when putting message back to {HALF_TOPIC}."


@handles(RequestCode.END_TRANSACTION)
def end_transaction(broker: BrokerState, ask: EndTransaction) -> Command | Promise:
    """Commit a half message, or roll it back."""
    decision = ask.commit_or_rollback
    if decision not in (_UNKNOWN, _COMMIT, _ROLLBACK):
        raise RequestRefused(
            f"commitOrRollback field wrong: {decision}",
            expected="8 to commit, 12 to roll back, 0 for not known",
        )
    if broker.config.is_slave:
        return Command(ResponseCode.SLAVE_NOT_AVAILABLE)
    if decision == _UNKNOWN:
        # RocketMQ gives no answer at all.
        return Command(0)
    transactions = broker.transactions
    transactions.turn.settle()
    record, half, properties = _named_half(broker, ask)
    entry = transactions.open.get(half.key)
    _check_request(broker, ask, record, half, properties, entry)
    waits_for_disk = properties.get(Property.WAIT) != "false"
    if entry is None:
        before = _earlier_decision(broker, half, record)
        if before is not None:
            return _again(decision, before)
        # It was given up, which is no decision.
        entry = transactions.reopen(half, record)
    elif entry.decision == decision:
        return transactions.repeat(entry, waits_for_disk=waits_for_disk)
    elif entry.decision != _UNKNOWN:
        return _again(decision, entry.decision)
    final = None
    if decision == _COMMIT:
        _need_topic(broker, half.key.topic, record)
        final = half_records.committed(record, half, properties)
    return transactions.decide(entry, decision, final, waits_for_disk=waits_for_disk)


def _named_half(
    broker: BrokerState, ask: EndTransaction
) -> tuple[Record, HalfMessage, dict[str, str]]:
    """The half that a request names by its log position."""
    record = record_at(broker.storage.store, ask.commit_log_offset)
    if record is not None and record.topic == HALF_TOPIC:
        properties = parse_properties(record.properties)
        half = read_half(properties, broker.transactions.timeout_ms)
        if half is not None:
            return record, half, properties
    raise RequestRefused(
        "Find prepared transaction message failed",
        expected=f"the log position of a half message, not {ask.commit_log_offset}",
    )


def _check_request(
    broker: BrokerState,
    ask: EndTransaction,
    record: Record,
    half: HalfMessage,
    properties: dict[str, str],
    entry: OpenTransaction | None,
) -> None:
    """Refuse a decision that comes too late, or names another half than its position does."""
    if not ask.from_transaction_check and Property.CHECK_IMMUNITY_SECONDS in properties:
        stored_ms = record.store_timestamp if entry is None else entry.first_stored_ms
        limit = max(half.immunity_ms or 0, broker.transactions.timeout_ms)
        if broker.clock.time_ms() - stored_ms > limit:
            raise RequestRefused(
                "the immunity time of the half message is over",
                code=ResponseCode.ILLEGAL_OPERATION,
                expected="the decision in the answer to a check from now on",
            )
    group = properties.get(Property.PRODUCER_GROUP)
    if group != ask.producer_group:
        raise RequestRefused("The producer group wrong", expected=f"{group}")
    if record.queue_offset != ask.tran_state_table_offset:
        raise RequestRefused(
            "The transaction state table offset wrong", expected=f"{record.queue_offset}"
        )


def _earlier_decision(broker: BrokerState, half: HalfMessage, record: Record) -> int | None:
    """What became of a half that is not open; None if it was given up."""
    remembered = broker.transactions.remembered(record.queue_offset)
    if remembered is not None:
        return None if remembered == _UNKNOWN else remembered
    store = broker.storage.store
    if is_committed(store, half, record):
        return _COMMIT
    return None if is_given_up(store, half.key, record) else _ROLLBACK


def _again(decision: int, before: int) -> Command:
    if decision == before:
        return Command(0)
    raise RequestRefused(
        f"the transaction was {_NAMES[before]} before", code=ResponseCode.ILLEGAL_OPERATION
    )


def _need_topic(broker: BrokerState, topic: str, record: Record) -> None:
    """Refuse to bring back a topic that was deleted after the half was stored.

    The half stays open; when its checks are used up it is kept in the topic of given-up halves.
    """
    if (
        topic not in broker.topics
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        and broker.storage.store.was_deleted_since(topic, record.log_position)
    ):
        raise TopicNotFound(
            f"topic[{topic}] not exist, apply first please!",
            hint=f"penstock topic create {topic}, and the next check commits the message",
        )


@handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
def resume_check(broker: BrokerState, ask: ResumeCheckHalfMessage) -> Command | Promise:
    """Ask about a half message again that was given up."""
    if broker.config.is_slave:
        return Command(ResponseCode.SLAVE_NOT_AVAILABLE)
    store = broker.storage.store
    try:
        record = record_at(store, parse_offset_message_id(ask.msg_id).log_position)
    except InvalidArgument:
        record = None
    properties = {} if record is None else parse_properties(record.properties)
    half = read_half(properties, broker.transactions.timeout_ms)
    if record is None or half is None or record.topic != TRANSACTION_GIVEN_UP_TOPIC:
        raise RequestRefused(
            _PUT_BACK_RAISED, expected=f"the offset id of a message of {TRANSACTION_GIVEN_UP_TOPIC}"
        )
    if is_committed(store, half, record):
        raise RequestRefused(_PUT_BACK_RAISED, expected="a transaction that is not committed yet")
    try:
        return broker.transactions.resume(half, half_records.copied(record, properties, 0))
    except (StoreError, IllegalMessage) as error:
        raise RequestRefused(f"{_PUT_BACK_FAILED} {error}") from error
