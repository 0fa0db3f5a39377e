"""The transactions of one broker: halves are added, decided, copied and given up here.

    send ─▶ add ─▶ open ─┬─ END: commit    the message in its topic, op record ─▶ closed
                         ├─ END: rollback  op record ─▶ closed
                         ├─ check          a copy with a higher count, op record for the older ones
                         └─ too many       a record in the topic of given-up halves, op record

The op record goes to the log in the same write as the record that closes the half. Memory changes
after that write: if it fails, nothing has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.settings import Settings
from penstock.broker.stats import BrokerStats
from penstock.broker.storage import Answered, Storage
from penstock.broker.tables.offsets import Offsets
from penstock.broker.transactions import half_records
from penstock.broker.transactions.counters import TransactionCounters
from penstock.broker.transactions.op_rows import closing_rows
from penstock.broker.transactions.open_transactions import OpenTransaction, OpenTransactions
from penstock.broker.transactions.progress import OpRecords
from penstock.broker.transactions.recent_halves import RecentHalves
from penstock.broker.transactions.turns import Staged, TransactionTurn
from penstock.broker.transactions.when_written import DecidedThen, Then
from penstock.errors import StoreError
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from penstock.protocol.commands import Command
from penstock.protocol.half_messages import HALF_QUEUE, HalfMessage
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.records.codec import Record
from penstock.remoting import Promise
from penstock.runtime.clock import Clock
from penstock.store import Appended, Draft, DraftFields
from penstock.store.transactions.open_halves import find_open

log = logging.getLogger(__name__)

_MIN_REMEMBERED: Final = 1 << 16
"""So many of the latest decisions at least, and at most twice as many."""
_SAVE_SECONDS: Final = 3.0


class Transactions:
    """Open transactions, recent decisions, and how far both are saved."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        settings: Settings,
        offsets: Offsets,
        stats: BrokerStats,
        store_host: bytes,
        counters_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.open = OpenTransactions()
        self.op_records = OpRecords()
        self.counters = TransactionCounters(clock.time_ms, counters_changed)
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._offsets = offsets
        self._stats = stats
        self._store_host = store_host
        self._decisions: dict[int, int] = {}
        """The latest ones, by the queue offset of a half."""
        self._older_decisions: dict[int, int] = {}
        self._unnamed: list[int] = []
        """Closed halves whose op record could not be written yet."""
        self._is_saving = False
        self.recent = RecentHalves()
        self.turn = TransactionTurn(self, storage)
        """The fast path."""

    @property
    def timeout_ms(self) -> int:
        """The age at which a half is asked about."""
        return self._settings.broker.transaction_timeout_ms

    # Halves

    def recover(self) -> None:
        """Find the open transactions of the store; blocks, and comes before all else."""
        saved = [
            self._offsets.committed(TRANSACTION_GROUP, topic, HALF_QUEUE)
            for topic in (HALF_TOPIC, OP_HALF_TOPIC)
        ]
        found = find_open(self._storage.store, saved[0], saved[1], self.timeout_ms)
        for half, record in found.open:
            self._add(_entry(half, record))
        self.note_op_records(found.op_records)
        self._unnamed += found.unnamed
        if found.open or found.unnamed:
            log.info("transactions found open=%d committed=%d", len(self.open), len(found.unnamed))

    def adding(self, half: HalfMessage, appended: Appended, target: Answered) -> Answered:
        """A target for the answer to a half message that adds the half when it is written."""
        return Then(target, lambda: self._add(_entry(half, appended)))

    def resume(self, half: HalfMessage, draft: Draft) -> Promise:
        """Store a half again that was given up; the promise is the answer to the request."""
        promise = Promise()
        appended = self._storage.append(draft)
        half = half._replace(check_times=0)
        self._storage.when_written(self.adding(half, appended, promise), Command(0))
        return promise

    def reopen(self, half: HalfMessage, record: Record) -> OpenTransaction:
        """Make a half that was given up an open one, because its decision is here."""
        entry = _entry(half, record)
        self._add(entry)
        return entry

    def _add(self, entry: OpenTransaction) -> bool:
        is_new = self._open(entry, self._clock.time_ms())
        if is_new:
            self.counters.add(entry.key.topic, 1)
        return is_new

    def _open(self, entry: OpenTransaction, now_ms: int) -> bool:
        # The store may come from a machine whose clock was ahead.
        if entry.first_stored_ms > now_ms:
            entry.first_stored_ms = now_ms
        return self.open.add(entry)

    # Decisions

    def decide(
        self, entry: OpenTransaction, decision: int, final: Draft | None, *, waits_for_disk: bool
    ) -> Promise:
        """Write a decision; the promise is the answer to the request that brought it."""
        offsets, op_records = self.append_decision(entry, decision, final)
        promise = Promise()
        written = DecidedThen(
            promise,
            lambda: self._decided(entry, decision, offsets, op_records),
            lambda: self.unconfirmed(entry, decision, offsets),
        )
        self._when_stored(entry, written, waits_for_disk=waits_for_disk and final is not None)
        return promise

    def append_decision(
        self, entry: OpenTransaction, decision: int, final: DraftFields | None
    ) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Stage what a decision writes; returns the offsets that it closes, and its op records."""
        offsets = self.append_message(entry, decision, final)
        return offsets, self._append_op_records(offsets, is_first=final is None, entry=entry)

    def append_message(
        self, entry: OpenTransaction, decision: int, final: DraftFields | None
    ) -> list[int]:
        """Stage the message of a decision, if any; returns the offsets to write op records for."""
        entry.decided_end = 0
        if final is not None:
            position, _, size, _ = self._storage.append(final)
            self._stats.put(final[0], final[1], size)
            entry.decided_end = position + size
        # From here on a failed write is the only way back.
        entry.decision = decision
        return entry.offsets.copy()

    def repeat(self, entry: OpenTransaction, *, waits_for_disk: bool) -> Promise:
        """The answer to a repeated decision while the first one is on its way to the log."""
        promise = Promise()
        self._when_stored(entry, promise, waits_for_disk=waits_for_disk)
        return promise

    def _when_stored(
        self, entry: OpenTransaction, target: Answered, *, waits_for_disk: bool
    ) -> None:
        if waits_for_disk and self._storage.is_sync_flush:
            self._storage.when_on_disk(entry.decided_end, target, Command(0))
        else:
            self._storage.when_written(target, Command(0))

    def _append_op_records(
        self, offsets: Sequence[int], *, is_first: bool, entry: OpenTransaction
    ) -> list[tuple[int, int]]:
        try:
            return self.append_op_records(offsets)
        except StoreError:
            # A full buffer is written by the append that overflows it. If that fails, the message
            # of the commit is lost, too.
            if is_first or self._storage.store.commit_log.position < entry.decided_end:
                entry.decision = TransactionDecision.UNKNOWN
                raise
            # The message is on its way to its topic. Should this write succeed, the next round of
            # checks closes the half; until then memory knows that it is decided.
            self.name_later(offsets)
            return []

    def name_later(self, offsets: Sequence[int]) -> None:
        """Have the next round of checks write the op records of these halves."""
        self._unnamed += offsets

    def append_op_records(self, offsets: Sequence[int]) -> list[tuple[int, int]]:
        """Stage op records; returns the offset of each and the offset that it closes."""
        now_ms = self._clock.time_ms()
        rows = closing_rows(offsets, now_ms, self._store_host)
        if rows is not None:
            first = self._storage.append_rows(OP_HALF_TOPIC, HALF_QUEUE, rows)
            return [*enumerate(offsets, first)]
        drafts = half_records.closing(offsets, now_ms, self._store_host)
        append = self._storage.append
        return [(append(draft)[1], offset) for draft, offset in zip(drafts, offsets, strict=True)]

    def _decided(
        self,
        entry: OpenTransaction,
        decision: int,
        offsets: Sequence[int],
        op_records: Sequence[tuple[int, int]],
    ) -> None:
        self._close(entry, decision, offsets, op_records)
        self.counters.add(entry.key.topic, -1)
        self.save_soon()

    def unconfirmed(self, entry: OpenTransaction, decision: int, offsets: Sequence[int]) -> None:
        """A write of this turn failed; a commit may be in the log all the same.

        The buffer may have been written in parts, or the failure came after the write. Asked about
        again, the message would be stored twice.
        """
        if 0 < entry.decided_end <= self._storage.store.max_position:
            named = frozenset(self._unnamed)
            # Its op record may be lost; a second one does no harm.
            self._unnamed += [offset for offset in offsets if offset not in named]
            self._decided(entry, decision, offsets, ())
            return
        entry.decision = TransactionDecision.UNKNOWN
        self._unnamed = [offset for offset in self._unnamed if offset not in entry.offsets]

    def close(
        self, entry: OpenTransaction, decision: int, op_records: Sequence[tuple[int, int]]
    ) -> None:
        """A transaction is decided, or given up (unknown), and that is written."""
        self._close(entry, decision, entry.offsets, op_records)
        self.counters.add(entry.key.topic, -1)
        self.save_soon()

    def _close(
        self,
        entry: OpenTransaction,
        decision: int,
        offsets: Sequence[int],
        op_records: Sequence[tuple[int, int]],
    ) -> None:
        """Close a transaction; ``offsets`` are those that its op records name."""
        if entry.offsets != offsets:
            late = [offset for offset in entry.offsets if offset not in offsets]
            # A repeated send of the half arrived between the decision and its write.
            self._unnamed += late
        self.open.remove(entry)
        self.recent.forget(entry)
        self.note_op_records(op_records)
        for offset in entry.offsets:
            self.remember(offset, decision)

    def apply(self, turn: Sequence[Staged]) -> None:
        """Halves and decisions of a loop turn are written, in this order."""
        changes: dict[str, int] = {}
        now_ms = self._clock.time_ms()
        is_decided = False
        for entry, decision, final, offsets, op_records in turn:
            if decision:
                is_decided = True
                self._close(entry, decision, offsets, op_records)
                topic = entry.key.topic
                changes[topic] = changes.get(topic, 0) - 1
            elif self._open(entry, now_ms):
                topic = entry.key.topic
                changes[topic] = changes.get(topic, 0) + 1
                if final is not None:
                    self.recent.remember(entry, final)
        for topic, change in changes.items():
            self.counters.add(topic, change)
        if is_decided:
            self.save_soon()

    def remember(self, offset: int, decision: int) -> None:
        """Note the decision about the half at an offset."""
        self._decisions[offset] = decision
        if len(self._decisions) >= _MIN_REMEMBERED:
            self._older_decisions, self._decisions = self._decisions, {}

    def remembered(self, offset: int) -> int | None:
        """The decision about a half; None if it is not one of the latest."""
        found = self._decisions.get(offset)
        return self._older_decisions.get(offset) if found is None else found

    def note_op_records(self, op_records: Sequence[tuple[int, int]]) -> None:
        """Op records were written."""
        for op_offset, highest in op_records:
            self.op_records.add(op_offset, highest)

    def close_unnamed(self) -> None:
        """Write the op records that could not be written before."""
        offsets, self._unnamed = self._unnamed, []
        if not offsets:
            return
        try:
            op_records = self.append_op_records(offsets)
            self._storage.write()
        except StoreError:
            self._unnamed += offsets
            raise
        self.note_op_records(op_records)

    # Progress

    def save_soon(self) -> None:
        """Save the progress in a few seconds, if nothing else has asked for it."""
        if not self._is_saving:
            self._is_saving = True
            self._clock.call_later(_SAVE_SECONDS, self._measure)

    def _measure(self) -> None:
        self._save(*self.progress(), self._storage.store.max_position)

    def _save(self, half_offset: int, op_offset: int, end: int) -> None:
        """Save the progress once the log is on the disk up to where it was measured."""
        if self._storage.store.flushed_position < end and self._storage.store.is_writable:
            self._clock.call_later(_SAVE_SECONDS, self._save, half_offset, op_offset, end)
            return
        self._is_saving = False
        self._commit(half_offset, op_offset)
        if (half_offset, op_offset) != self.progress():
            self.save_soon()

    def save_now(self) -> None:
        """Save the progress at a clean stop, which writes all the rest, too."""
        self._commit(*self.progress())

    def _commit(self, half_offset: int, op_offset: int) -> None:
        if not half_offset and not self._storage.max_offset(HALF_TOPIC, HALF_QUEUE):
            return
        for topic, offset in ((HALF_TOPIC, half_offset), (OP_HALF_TOPIC, op_offset)):
            self._offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, offset, "broker")

    def progress(self) -> tuple[int, int]:
        """The offsets to save for the half queue and the op queue."""
        lowest = min(self._unnamed, default=None)
        first = self.open.lowest_offset()
        if first is not None:
            lowest = first if lowest is None else min(first, lowest)
        half_offset = self._storage.max_offset(HALF_TOPIC, HALF_QUEUE) if lowest is None else lowest
        needed = self.op_records.needed_from(half_offset)
        if needed is None:
            needed = self._storage.max_offset(OP_HALF_TOPIC, HALF_QUEUE)
        return half_offset, needed


def _entry(half: HalfMessage, stored: Appended | Record) -> OpenTransaction:
    return OpenTransaction(
        half.key,
        [stored.queue_offset],
        stored.log_position,
        stored.store_timestamp,
        half.check_times,
        half.immunity_ms,
    )
