"""Calls that wait for one answer of a broker and nothing else: a message is sent, or acknowledged.

A fast path: no task is made, no coroutine waits. The rules are those of the plain path, the
handlers, whose parts are used; what needs more than these parts is left to it, and so is every
request that is refused. Calls of users are, too: their signatures are checked there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.proxy.clients import REQUEST_SECONDS, Client
from penstock.proxy.endpoint_parts import Parts
from penstock.proxy.handlers import finishing, sending
from penstock.proxy.queue_choice import choose_queue
from penstock.proxy.receipts import Receipt
from penstock.proxy.statuses import OK, status_of
from penstock.proxy.submitted_messages import read_message
from penstock.proxy.wire.codes import Encoding, MessageType
from penstock.proxy.wire.messages import AckMessageRequest, SendMessageRequest, SendResultEntry
from penstock.proxy.wire.quick_responses import ack_response, send_response

_OK: Final = OK.SerializeToString()
Answer = Callable[[bytes], None]
"""Takes the response of a call."""
QuickCall = Callable[[str, bytes, Answer], bool]
"""Serves a request of a client, which is named by its id; False leaves it to the plain path."""


class QuickCalls:
    """The fast path of one endpoint."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.by_name: Final[dict[str, QuickCall]] = {
            "SendMessage": self.send,
            "AckMessage": self.acknowledge,
        }

    def send(self, client_id: str, data: bytes, answer: Answer) -> bool:
        """Store one message that is not the half of a transaction."""
        parts = self._parts
        client = unsigned_client(parts, client_id)
        if client is None:
            return False
        try:
            (message,) = SendMessageRequest.FromString(data).messages
            if message.system_properties.body_encoding == Encoding.GZIP:
                # It would be inflated once more if the plain path had to decide.
                return False
            submitted = read_message(message, address=client.address, now_ms=parts.clock.time_ms())
            topic = parts.backend.known_topic(submitted.topic)
            if (
                topic is None
                or not topic.writable
                or submitted.type is MessageType.TRANSACTION
                or not topic.accepts(submitted.type)
            ):
                return False
            broker_name, queue_id = choose_queue(
                topic.writable, submitted.message_group, parts.chance
            )
            command = sending.send_command(submitted, queue_id)
        except (DecodeError, PenstockError, ValueError):
            return False
        message_id = submitted.message_id

        def done(found: Command | PenstockError) -> None:
            try:
                if isinstance(found, PenstockError):
                    raise found
                status, stored = sending.read_stored(client, found)
            except Exception as error:
                entry = SendResultEntry(status=status_of(error))
                answer(sending.single_response(entry).SerializeToString())
                return
            answer(
                send_response(
                    _OK if status is OK else status.SerializeToString(),
                    message_id,
                    stored.queue_offset,
                    stored.recall_handle or "",
                )
            )

        return ask_broker(client, broker_name, command, done)

    def acknowledge(self, client_id: str, data: bytes, answer: Answer) -> bool:
        """End one message whose renewal is not under way."""
        parts = self._parts
        client = unsigned_client(parts, client_id)
        if client is None:
            return False
        renewals = parts.renewals
        try:
            request = AckMessageRequest.FromString(data)
            (entry,) = request.entries
            delivery = finishing.read_delivery(client, request.group.name, request.topic.name)
            receipt = Receipt.parse(entry.receipt_handle)
            group, topic = delivery.group, delivery.topic
            renewed = renewals.find(group, topic, receipt)
            if renewed is not None:
                if renewed.changing is not None:
                    return False
                receipt = renewed.receipt
            finishing.check_time(parts, receipt)
            command = finishing.ack_command(delivery, receipt)
        except (DecodeError, PenstockError, ValueError):
            return False

        def done(found: Command | PenstockError) -> None:
            status = _OK
            if isinstance(found, PenstockError) or found.code != ResponseCode.SUCCESS:
                error = found if isinstance(found, PenstockError) else client.refusal(found)
                status = status_of(error).SerializeToString()
                if renewed is not None:
                    renewals.put_back(renewed)
            answer(ack_response(status, entry.message_id, entry.receipt_handle))

        if not ask_broker(client, receipt.handle.broker_name, command, done):
            return False
        if renewed is not None:
            renewals.drop(renewed)
        return True


def unsigned_client(parts: Parts, client_id: str) -> Client | None:
    """The client of a call, where calls are not signed."""
    backend = parts.backend
    if backend.users is not None or backend.own_signer is not None:
        return None
    return parts.clients.known(client_id)


def ask_broker(
    client: Client,
    broker_name: str,
    command: Command,
    done: Callable[[Command | PenstockError], None],
) -> bool:
    """Ask a broker over an open connection; False if nothing was sent."""
    peer = client.open_peer(broker_name)
    if peer is None:
        return False
    try:
        peer.start_request(client.signed(command), REQUEST_SECONDS, done)
    except PenstockError:
        return False
    return True
