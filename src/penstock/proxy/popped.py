"""The messages of a pop, each with its receipt."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model import StoredMessage
from penstock.model.names import Property
from penstock.protocol.commands import Command
from penstock.protocol.headers.pop import PopMessageResult
from penstock.protocol.headers.receipts import ReceiptHandle
from penstock.protocol.records.popped import with_handles
from penstock.protocol.records.pulled import messages_from_pull
from penstock.proxy.receipts import Receipt


class Popped(NamedTuple):
    """A message and what it is acknowledged by."""

    message: StoredMessage
    receipt: Receipt


def read_popped(
    answer: Command, result: PopMessageResult, group: str, topic: str, broker_name: str
) -> list[Popped]:
    """The messages of a pop answer."""
    body = answer.body
    assert isinstance(body, bytes), "a received body is bytes"
    messages = messages_from_pull(body, broker_name, keep_unreadable=True)
    return [
        Popped(message, Receipt(handle or _handle_in(message), message.log_position))
        for message, handle in with_handles(messages, result, group, topic)
    ]


def _handle_in(message: StoredMessage) -> ReceiptHandle:
    """The handle that the record itself has."""
    return ReceiptHandle.parse(message.peek(Property.POP_RECEIPT) or "")
