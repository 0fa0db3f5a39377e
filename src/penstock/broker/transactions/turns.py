"""The fast path of transactions within loop turns: memory changes once for all of a turn.

    halves, decisions ─▶ appended ─▶ the write of the turn ─▶ open, recent, counters change

No answer waits for a one-way decision, and usually halves arrive with it whose producers do wait.
So one-way decisions are put off: they are appended when the answers of their turn have left
(`Storage.after_answers`), and those of several turns together while more halves keep coming. A
request that depends on them calls `settle` first. `Transactions.decide` is the specification.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.broker.storage import Storage
from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.broker.transactions.when_written import TurnEnd
from penstock.errors import PenstockError, StoreError
from penstock.protocol.commands import Command
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.store import DraftFields

if TYPE_CHECKING:
    from penstock.broker.transactions.transactions import Transactions

log = logging.getLogger(__name__)

MAX_PUT_OFF: Final = 64
"""Decisions that wait for the answers of others; more are appended at once."""
_NO_ANSWER: Final = Command(0)
"""For what needs no answer any more."""

Staged: TypeAlias = tuple[
    OpenTransaction, int, DraftFields | None, Sequence[int], Sequence[tuple[int, int]]
]
"""A half (decision unknown) and the message that its commit stores, or a decision with the offsets
that it closes and its op records."""


class TransactionTurn:
    """What the fast path has appended since the last write, and what it will append soon."""

    def __init__(self, transactions: Transactions, storage: Storage) -> None:
        self._transactions = transactions
        self._storage = storage
        self._staged: list[Staged] = []
        self._put_off: list[tuple[OpenTransaction, int, DraftFields | None]] = []
        self._unclosed: list[tuple[Sequence[int], list[tuple[int, int]]]] = []
        """Of commits that are staged, but not their op records: offsets, and a list for these."""
        self._end: Final = TurnEnd(self._written, self._lost)

    def add(self, entry: OpenTransaction, final: DraftFields) -> None:
        """Add a half whose answer is on its way, and keep the message that a commit stores."""
        self._stage((entry, TransactionDecision.UNKNOWN, final, (), ()))

    def decide(self, entry: OpenTransaction, decision: int, final: DraftFields | None) -> None:
        """`Transactions.decide` for a request whose answer, if any, is on its way."""
        offsets, op_records = self._transactions.append_decision(entry, decision, final)
        self._stage((entry, decision, None, offsets, op_records))

    def decide_later(
        self, entry: OpenTransaction, decision: int, final: DraftFields | None
    ) -> None:
        """`decide` for a one-way request."""
        put_off = self._put_off
        if not put_off:
            self._storage.after_answers(self.settle)
        put_off.append((entry, decision, final))
        if len(put_off) >= MAX_PUT_OFF:
            self.settle()

    def settle(self) -> None:
        """Append the decisions that were put off."""
        put_off, self._put_off = self._put_off, []
        for entry, decision, final in put_off:
            # The first decision about a transaction counts.
            if entry.decision or entry not in self._transactions.open:
                continue
            try:
                if final is None:
                    self.decide(entry, decision, None)
                else:
                    self._commit(entry, decision, final)
            except PenstockError as error:
                # As on the plain path: the half stays open, and its producer is asked about it.
                log.debug("decision refused id=%s error=%s", entry.key.unique_id, error)
        if self._unclosed:
            self._append_op_records()

    def _commit(self, entry: OpenTransaction, decision: int, final: DraftFields) -> None:
        offsets = self._transactions.append_message(entry, decision, final)
        op_records: list[tuple[int, int]] = []
        self._unclosed.append((offsets, op_records))
        self._stage((entry, decision, None, offsets, op_records))

    def _append_op_records(self) -> None:
        """Append the op records of commits whose messages are staged."""
        offsets = [offset for closed, _ in self._unclosed for offset in closed]
        try:
            made = iter(self._transactions.append_op_records(offsets))
        except StoreError:
            # Those whose messages are lost, too, are not among them any more (`_lost`). Those of
            # the others are on their way, as in `Transactions.append_decision`.
            for closed, _ in self._unclosed:
                self._transactions.name_later(closed)
        else:
            for closed, op_records in self._unclosed:
                op_records += islice(made, len(closed))
        self._unclosed = []

    def _stage(self, staged: Staged) -> None:
        if not self._staged:
            self._storage.when_written(self._end, _NO_ANSWER)
        self._staged.append(staged)

    def _written(self) -> None:
        turn, self._staged = self._staged, []
        self._transactions.apply(turn)

    def _lost(self) -> None:
        turn, self._staged = self._staged, []
        self._unclosed = []
        for entry, decision, _, offsets, _ in turn:
            if decision:
                self._transactions.unconfirmed(entry, decision, offsets)
