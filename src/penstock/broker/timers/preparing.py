"""What units that are due become: messages to store, by columns or one by one.

Runs in the thread of the timers. `prepare_each` is the specification.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.broker.timers.due_columns import FEW, DueColumns, due_columns
from penstock.broker.timers.parked_records import Parked, due, read_parked, rolled
from penstock.errors import InvalidArgument, PenstockError, ProtocolError
from penstock.store import Draft
from penstock.store.timers.timer_log import Unit, UnitRun

log = logging.getLogger(__name__)

Deleted = frozenset[tuple[str, str]]
"""Topic and unique id of messages that were recalled."""


class Located(NamedTuple):
    """A unit at its position in the timer log, and the record that it names."""

    position: int
    unit: Unit
    view: memoryview


Views = list[Located]


class LocatedRun(NamedTuple):
    """Units and their records, side by side."""

    units: UnitRun
    view: memoryview

    def opened(self, units: Sequence[tuple[int, Unit]]) -> Views:
        """The same one by one; ``units`` are those at its positions."""
        first, size = self.units.log_positions[0], self.units.record_size
        starts = [unit.log_position - first for _, unit in units]
        return [
            Located(position, unit, self.view[start : start + size])
            for (position, unit), start in zip(units, starts, strict=True)
        ]


def last_position(views: Views | LocatedRun) -> int:
    """The position of the last unit."""
    if isinstance(views, LocatedRun):
        return views.units.positions[-1]
    return views[-1].position


class Prepared(NamedTuple):
    """A portion of a slot, read and ready to be appended."""

    drafts: list[tuple[Draft, int]]
    """With the log position of the parked record."""
    by_topic: dict[str, int]
    """Messages that stop waiting."""
    columns: DueColumns | None = None
    """All of them, instead of drafts."""


def deleted_by(views: Views) -> set[tuple[str, str]]:
    """Topic and unique id of the messages that delete marks are for."""
    return {parked.deletes for _, parked in _parked(views) if parked.delete_key}


def prepare_columns(views: Views, now_ms: int, precision_ms: int, max_body: int) -> Prepared | None:
    """`prepare_each` for units whose messages are alike; None for others."""
    if len(views) < FEW:
        return None
    _, units, records = zip(*views, strict=True)
    positions = [unit.log_position for unit in units]
    written = [unit.written_ms for unit in units]
    size = len(records[0])
    columns = due_columns(records, size, positions, written, now_ms, precision_ms, max_body)
    return None if columns is None else Prepared([], {columns.topic: columns.messages}, columns)


def prepare_run(run: LocatedRun, now_ms: int, precision_ms: int, max_body: int) -> Prepared | None:
    """`prepare_columns` for records that lie side by side."""
    _, written, positions, size = run.units
    columns = due_columns([run.view], size, positions, written, now_ms, precision_ms, max_body)
    return None if columns is None else Prepared([], {columns.topic: columns.messages}, columns)


def prepare_each(views: Views, deleted: Deleted, now_ms: int, precision_ms: int) -> Prepared:
    """The messages to store for units that are due."""
    drafts: list[tuple[Draft, int]] = []
    by_topic: Counter[str] = Counter()
    for unit, parked in _parked(views):
        is_due = parked.slot_ms + precision_ms <= now_ms
        is_mark = bool(parked.delete_key)
        if is_mark and is_due:
            continue  # Its message is due as well: the mark has done its work.
        if deleted and not is_mark and (parked.topic, parked.unique_id) in deleted:
            continue
        by_topic[parked.topic] += -1 if is_mark else 1
        # By the record, not by the kind of the unit: nothing is ever early.
        try:
            draft = (due if is_due else rolled)(parked, unit.written_ms, now_ms)
        except InvalidArgument as error:
            log_skipped(unit.log_position, error)
        else:
            drafts.append((draft, unit.log_position))
    return Prepared(drafts, by_topic)


def _parked(views: Views) -> Iterator[tuple[Unit, Parked]]:
    for _, unit, view in views:
        try:
            parked = read_parked(view)
        except ProtocolError as error:
            # After a cut of the log its position may be that of another record.
            log_skipped(unit.log_position, error)
            continue
        if parked.log_position == unit.log_position:
            yield unit, parked


def log_skipped(position: int, error: PenstockError) -> None:
    """The store of another program may hold messages that this one refuses.

    They must not block all that follow.
    """
    log.error("timer message skipped position=%d error=%s", position, error)
