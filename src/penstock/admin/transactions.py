"""Transactions that are not decided: open ones, and those that a broker has given up."""

from __future__ import annotations

from penstock.admin.cluster_requests import on_host
from penstock.admin.messages import MessageActions
from penstock.admin.reports import UndecidedTransaction
from penstock.client import requests
from penstock.errors import InvalidArgument, RequestRefused, TopicNotFound
from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import unpack_host
from penstock.model.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
    Property,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.half_messages import TransactionKey, op_offsets, read_half
from penstock.protocol.headers.transactions import ResumeCheckHalfMessage
from penstock.protocol.records.message_ids import parse_offset_message_id

_MANY = 1 << 30
_DEFAULT_TIMEOUT_MS = 6000


class TransactionActions(MessageActions):
    """Actions on transactions."""

    @on_host
    async def transactions(self) -> list[UndecidedTransaction]:
        """All transactions without a decision, the oldest first.

        A broker of release 4.9 does not show which of its half messages are decided; they are left
        out there, and the ones given up are not.
        """

        masters = await self.masters()
        rows: list[UndecidedTransaction] = []
        for name, found in (await self.each(masters, self.transactions_at)).items():
            rows += [row.at(name) for row in found]
        return sorted(rows, key=lambda row: (row.stored_ms, row.broker_name, row.msg_id))

    async def transactions_at(self, address: str) -> list[UndecidedTransaction]:
        """The transactions of one broker that are not decided."""
        found = await self._open(address)
        parked = await self._halves(address, TRANSACTION_GIVEN_UP_TOPIC, 0)
        return found + self._reports(parked, address, is_given_up=True)

    @on_host
    async def resume_transaction(self, offset_msg_id: str) -> None:
        """Have a broker ask about a transaction again that it has given up."""
        host, _ = parse_offset_message_id(offset_msg_id)
        address = unpack_host(host)
        known = set((await self.masters()).values())
        if address not in known:
            raise InvalidArgument(
                f"{offset_msg_id!r} names the broker {address}",
                expected=f"one of {', '.join(sorted(known))}",
            )
        await self.ask(
            address,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheckHalfMessage(offset_msg_id, TRANSACTION_GIVEN_UP_TOPIC),
            about=f"transaction {offset_msg_id!r}",
        )

    async def _open(self, address: str) -> list[UndecidedTransaction]:
        half_from = await self._progress(address, HALF_TOPIC)
        op_from = await self._progress(address, OP_HALF_TOPIC)
        try:
            marks = await self._halves(address, OP_HALF_TOPIC, op_from)
        except TopicNotFound:
            return []
        closed = {
            offset
            for mark in marks
            for offset in op_offsets(mark.properties.get(Property.TAGS), mark.body)
        }
        halves = await self._halves(address, HALF_TOPIC, half_from)
        newest: dict[TransactionKey, StoredMessage] = {}
        for half in halves:
            read = read_half(half.properties, _DEFAULT_TIMEOUT_MS)
            if read is not None and half.queue_offset not in closed:
                newest[read.key] = half
        return self._reports(list(newest.values()), address, is_given_up=False)

    async def _progress(self, address: str, topic: str) -> int:
        queue = MessageQueue(topic, "", 0)
        saved = await self.call(address, requests.committed(TRANSACTION_GROUP, queue))
        return saved or 0

    async def _halves(self, address: str, topic: str, offset: int) -> list[StoredMessage]:
        try:
            part = await self._read(address, MessageQueue(topic, "", 0), offset, _MANY)
        except TopicNotFound:
            if topic == OP_HALF_TOPIC:
                raise
            return []
        except RequestRefused:
            # Nothing was ever given up, so the topic has no queue.
            if topic == TRANSACTION_GIVEN_UP_TOPIC:
                return []
            raise
        return list(part.messages)

    def _reports(
        self, halves: list[StoredMessage], address: str, *, is_given_up: bool
    ) -> list[UndecidedTransaction]:
        rows: list[UndecidedTransaction] = []
        for half in halves:
            read = read_half(half.properties, _DEFAULT_TIMEOUT_MS)
            if read is None or not self.is_ours(read.key.topic):
                continue
            rows.append(
                UndecidedTransaction(
                    msg_id=read.key.unique_id,
                    offset_msg_id=half.offset_msg_id,
                    group=self.short_name(read.key.group),
                    topic=self.short_name(read.key.topic),
                    queue_id=read.queue_id,
                    broker_name=address,
                    checks=read.check_times,
                    born_ms=half.born_timestamp,
                    stored_ms=half.store_timestamp,
                    is_given_up=is_given_up,
                    keys=half.keys,
                )
            )
        return rows
