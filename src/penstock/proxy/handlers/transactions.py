"""Transactions: EndTransaction, and questions of brokers about open ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.transactions import (
    CheckTransactionState,
    EndTransaction,
    TransactionDecision,
)
from penstock.protocol.records.codec import decode_record
from penstock.protocol.records.pulled import message_from_record
from penstock.proxy.backend import HalfPlace
from penstock.proxy.clients import Client
from penstock.proxy.delivered import make_message
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.halves import Halves
from penstock.proxy.names import topic_name
from penstock.proxy.statuses import OK, Refused
from penstock.proxy.wire.codes import Code, Resolution, Source
from penstock.proxy.wire.messages import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)

log = logging.getLogger(__name__)

_DECISIONS: Final[Mapping[int, int]] = {
    Resolution.COMMIT: TransactionDecision.COMMIT,
    Resolution.ROLLBACK: TransactionDecision.ROLLBACK,
}


async def end_transaction(
    parts: Parts, client: Client, request: EndTransactionRequest
) -> EndTransactionResponse:
    """Commit a half message, or roll it back; answered when the broker has decided."""
    topic = topic_name(request.topic.name)
    transaction_id = request.transaction_id
    if not transaction_id.strip():
        raise Refused(Code.INVALID_TRANSACTION_ID, "the transaction has no id")
    decision = _DECISIONS.get(request.resolution, TransactionDecision.UNKNOWN)
    if decision == TransactionDecision.UNKNOWN:
        return EndTransactionResponse(status=OK)
    place = await parts.halves.find(topic, transaction_id)
    if place is None:
        raise Refused(
            Code.INVALID_TRANSACTION_ID,
            f"no open transaction {transaction_id[:100]!r} in topic {topic!r}",
        )
    header = EndTransaction(
        topic,
        place.state_offset,
        place.log_position,
        decision,
        request.message_id or transaction_id,
        request.source == Source.SERVER_CHECK,
        transaction_id,
        topic,
    )
    command = Command(RequestCode.END_TRANSACTION, ext=encode_header(header))
    await client.demand(place.broker_name, command)
    return EndTransactionResponse(status=OK)


def recover_orphan(halves: Halves, client: Client, broker_name: str, command: Command) -> None:
    """Ask a producer about an open transaction, for a broker."""
    ask = decode_header(CheckTransactionState, command.ext)
    body = command.body
    assert isinstance(body, bytes), "a received body is bytes"
    message = message_from_record(decode_record(body), broker_name)
    # The topic of Apache's request is that of all half messages.
    topic, transaction_id = message.topic, ask.transaction_id or message.msg_id
    place = HalfPlace(broker_name, ask.commit_log_offset, ask.tran_state_table_offset)
    halves.remember(topic, transaction_id, place)
    if client.stream is None:
        log.info("question about a transaction not sent, no stream client=%s", client.id)
        return
    client.stream.send(
        TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                message=make_message(message, topic), transaction_id=transaction_id
            )
        )
    )
