"""Asks producers about transactions that are open for long, in rounds.

A question goes to one member of the producer group, over the connection that the member opened;
the members take turns. Each question needs a copy of the half, which saves the count of questions.
A half is given up after so many of them, or when retention would delete it.

A question counts only if a member is there to get it. A half that nothing is asked about is copied,
too, before retention reaches it, or when so many halves follow it that a start would take long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.settings import Settings
from penstock.broker.storage import Storage
from penstock.broker.tables.clients import ClientChannel, Clients
from penstock.broker.tables.topics import READ_WRITE, Topics
from penstock.broker.transactions import half_records
from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.broker.transactions.transactions import Transactions
from penstock.errors import ConnectionLost, IllegalMessage, StoreError
from penstock.model.hosts import offset_message_id
from penstock.model.names import HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC
from penstock.model.properties import parse_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.half_messages import HALF_QUEUE, HalfMessage, read_half
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.transactions import CheckTransactionState, TransactionDecision
from penstock.protocol.records.codec import Record
from penstock.remoting import Peer
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.store import Appended
from penstock.store.transactions.finding import record_at

log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_MAX_STEP: Final = 64
_MAX_STEP_BYTES: Final = 8 << 20
"""What one step copies and sends; other requests are served between two steps."""
_MAX_BURST: Final = 1000
"""Questions before a pause: Java's client drops what it cannot queue, and the question counts."""
_PAUSE_SECONDS: Final = 1.0
_MAX_BEHIND: Final = 100_000
"""A start reads all halves from the oldest open one on."""


class _Found(NamedTuple):
    """An open transaction and its half."""

    entry: OpenTransaction
    record: Record
    half: HalfMessage
    properties: dict[str, str]


class _Question(NamedTuple):
    """A question whose copy of the half is staged."""

    entry: OpenTransaction
    channel: ClientChannel | None
    """None: the half is only copied, no question is asked."""
    record: Record
    half: HalfMessage
    properties: dict[str, str]
    """Those of the copy."""
    check_times: int
    copy: Appended


class CheckRounds(Service):
    """Runs a round of questions in each interval."""

    def __init__(
        self,
        transactions: Transactions,
        storage: Storage,
        clock: Clock,
        settings: Settings,
        clients: Clients,
        topics: Topics,
        store_host: bytes,
        may_publish: Callable[[Peer, str], bool],
    ) -> None:
        """``may_publish`` tells whom a question may be sent, which has the message."""
        self._may_publish = may_publish
        self._transactions = transactions
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._clients = clients
        self._topics = topics
        self._store_host = store_host
        self._changed = asyncio.Event()
        self._turns: dict[str, int] = {}
        """By producer group: how many questions its members got."""

    async def _run(self, ready: Callable[[], None]) -> None:
        self._settings.on_change(lambda settings: self._changed.set())
        ready()
        try:
            while True:
                await self._wait()
                await self._round()
        finally:
            try:
                # Halves that the next start would take for open ones.
                self._transactions.close_unnamed()
            except StoreError as error:
                log.error("closed transactions not noted error=%s", error)
            self._transactions.save_now()

    async def _wait(self) -> None:
        """Wait for the next round, with the interval as it is set at its end."""
        begun = self._clock.monotonic()
        while True:
            self._changed.clear()
            interval = self._settings.broker.transaction_check_interval_ms / 1000
            left = begun + interval - self._clock.monotonic()
            if left <= 0:
                return
            timer = self._clock.call_later(left, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()

    async def _round(self) -> None:
        transactions = self._transactions
        now_ms, timeout_ms = self._clock.time_ms(), transactions.timeout_ms
        due = [one for one in transactions.open if one.is_due(now_ms, timeout_ms)]
        groups = {one.key.group for one in due}
        self._turns = {group: turn for group, turn in self._turns.items() if group in groups}
        asked = 0
        try:
            transactions.close_unnamed()
            while due:
                step, due = due[:_MAX_STEP], due[_MAX_STEP:]
                asked += self._step(step, now_ms)
                if asked >= _MAX_BURST:
                    asked = 0
                    await self._clock.sleep(_PAUSE_SECONDS)
                else:
                    await self._clock.sleep(0)
        except StoreError as error:
            log.error("transactions not checked, the next round tries again error=%s", error)

    def _step(self, entries: list[OpenTransaction], now_ms: int) -> int:
        """Ask about some transactions, give others up; returns the number of questions."""
        self._transactions.turn.settle()
        found = [one for entry in entries if (one := self._read(entry)) is not None]
        questions: list[_Question] = []
        count = size = 0
        for one in self._not_given_up(found, now_ms):
            try:
                question = self._prepare(one)
            except IllegalMessage as error:
                _log_unusable(one.entry, error)
                continue
            if question is not None:
                questions.append(question)
                count += question.channel is not None
                size += question.copy.size
                if size > _MAX_STEP_BYTES:
                    self._finish(questions)
                    questions, size = [], 0
        self._finish(questions)
        return count

    def _read(self, entry: OpenTransaction) -> _Found | None:
        """The half of a transaction; None if the transaction is not open any more."""
        # Decided during a pause of the round, or its decision is being written.
        if entry not in self._transactions.open or entry.decision:
            return None
        record = record_at(self._storage.store, entry.position)
        properties = {} if record is None else parse_properties(record.properties)
        half = read_half(properties, self._transactions.timeout_ms)
        if record is None or half is None:
            log.error("half message is not in the log any more, dropped %s", _shown(entry))
            self._close(entry)
            return None
        return _Found(entry, record, half, properties)

    def _not_given_up(self, found: list[_Found], now_ms: int) -> list[_Found]:
        kept: list[_Found] = []
        for one in found:
            try:
                is_given_up = self._is_given_up(one, now_ms)
            except IllegalMessage as error:
                # The store of another program may hold halves that this one would refuse. They
                # stay open until retention deletes them.
                _log_unusable(one.entry, error)
                continue
            if not is_given_up:
                kept.append(one)
        return kept

    def _is_given_up(self, found: _Found, now_ms: int) -> bool:
        """Give a half up that was asked about too often, or that retention would delete."""
        entry, record, _, properties = found
        reserved_ms = self._settings.store.file_reserved_hours * _HOUR_MS
        if (
            entry.check_times < self._settings.broker.transaction_check_max
            and now_ms - entry.first_stored_ms <= reserved_ms
        ):
            return False
        self._topics.ensure(TRANSACTION_GIVEN_UP_TOPIC, 1, READ_WRITE)
        self._storage.append(half_records.given_up(record, properties))
        self._close(entry)
        log.warning("transaction given up checks=%d %s", entry.check_times, _shown(entry))
        return True

    def _close(self, entry: OpenTransaction) -> None:
        op_records = self._transactions.append_op_records(entry.offsets)
        self._storage.write()
        self._transactions.close(entry, TransactionDecision.UNKNOWN, op_records)

    def _prepare(self, found: _Found) -> _Question | None:
        """Stage the copy for a question; None if none is needed."""
        entry, record, half, properties = found
        channel = self._next_member(entry.key.group, entry.key.topic)
        if channel is None and not self._must_move(entry):
            return None
        check_times = entry.check_times + (channel is not None)
        draft = half_records.copied(record, properties, check_times)
        copy = self._storage.append(draft)
        shown = parse_properties(draft.properties)
        return _Question(entry, channel, record, half, shown, check_times, copy)

    def _must_move(self, entry: OpenTransaction) -> bool:
        """Whether a half has to be copied although there is nothing to ask."""
        store = self._storage.store
        size = store.commit_log.segment_size
        oldest_end = store.min_position - store.min_position % size + size
        behind = store.max_offset(HALF_TOPIC, HALF_QUEUE) - entry.offsets[0]
        return behind > _MAX_BEHIND or entry.position < oldest_end <= store.max_position

    def _finish(self, questions: list[_Question]) -> None:
        """Write the copies, then send the questions."""
        if not questions:
            return
        transactions = self._transactions
        closed = [offset for question in questions for offset in question.entry.offsets]
        op_records = transactions.append_op_records(closed)
        self._storage.write()
        transactions.note_op_records(op_records)
        for question in questions:
            copy = question.copy
            transactions.open.replaced(
                question.entry,
                copy.queue_offset,
                copy.log_position,
                question.check_times,
            )
            if question.channel is not None:
                self._ask(question, question.channel)
        transactions.save_soon()

    def _ask(self, question: _Question, channel: ClientChannel) -> None:
        copy, key = question.copy, question.entry.key
        header = CheckTransactionState(
            tran_state_table_offset=copy.queue_offset,
            commit_log_offset=copy.log_position,
            msg_id=key.unique_id,
            transaction_id=key.unique_id,
            offset_msg_id=offset_message_id(self._store_host, copy.log_position),
            # Apache's broker names the half topic here, and a 5.x client sends the name back as
            # the topic of its decision, where only an administrator may write.
            topic=key.topic,
            broker_name=self._settings.broker.broker_name,
        )
        body = half_records.asked_about(question.record, question.half, question.properties, copy)
        command = Command(RequestCode.CHECK_TRANSACTION_STATE, ext=encode_header(header), body=body)
        try:
            channel.peer.oneway(command)
        except ConnectionLost:
            log.info("question about a transaction not sent %s", _shown(question.entry))

    def _next_member(self, group: str, topic: str) -> ClientChannel | None:
        """The member of a producer group whose turn it is; None if none can be asked."""
        members = [
            one
            for one in self._clients.producer_group(group)
            if one.peer.is_writable and self._may_publish(one.peer, topic)
        ]
        if not members:
            return None
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return members[turn % len(members)]


def _log_unusable(entry: OpenTransaction, error: IllegalMessage) -> None:
    log.error("half message cannot be copied %s error=%s", _shown(entry), error)


def _shown(entry: OpenTransaction) -> str:
    key = entry.key
    return f"group={key.group} topic={key.topic} id={key.unique_id}"
