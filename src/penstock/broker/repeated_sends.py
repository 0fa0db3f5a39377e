"""Finding a message that a producer sends again because it got no answer.

A producer marks such a request (`protocol.extensions.REPEAT`). Only then the broker looks for the
unique id in its key index, so that first sends pay nothing. A message counts as the same if its
unique id, its body and, where it waits for its time, its topic are the same. A row of Spark's sink
that has an id of its own is the same if its name is.

A batch is stored as a whole or not at all, so one that is sent again with the same messages is
found by its first. Where only the first message has a unique id, the last one is compared, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.model.names import TIMER_TOPIC, Property
from penstock.model.properties import END_MARK, UNIQUE_KEY, parse_properties, value_of
from penstock.protocol.extensions import (
    EACH_REPEAT_MARK,
    RECENT_REPEAT_MARK,
    REPEAT_MARK,
    ROW_BY_ID,
    ROW_NAME,
)
from penstock.protocol.records.batches import BatchItem, batch_values, iterate_batch
from penstock.protocol.records.codec import Record, decode_record
from penstock.store import Draft, MessageStore

RECENT_MS: Final = 3_600_000
_MOST_COPIES: Final = 64
_ROW: Final = ROW_NAME.encode() + b"\x01"
_BY_ID: Final = ROW_BY_ID.encode()


class RepeatMark(NamedTuple):
    """How a request may repeat another one."""

    since_ms: int = 0
    """When the other one was stored, at the earliest."""
    is_each: bool = False
    """Whether the messages of a batch may have been stored in other batches."""


class StoredBatch(NamedTuple):
    """A batch that is stored already."""

    log_positions: list[int]
    queue_id: int
    queue_offset: int


def repeat_mark(properties: str | None, now_ms: int) -> RepeatMark | None:
    """How a request may repeat another one, by its properties; None: it does not."""
    text = (properties or "") + END_MARK
    if REPEAT_MARK in text:
        return RepeatMark()
    if RECENT_REPEAT_MARK in text:
        return RepeatMark(now_ms - RECENT_MS)
    if EACH_REPEAT_MARK in text:
        return RepeatMark(is_each=True)
    return None


def find_repeated(
    store: MessageStore, draft: Draft, unique_id: str, since_ms: int = 0
) -> Record | None:
    """The stored message that a draft repeats; None: there is none, or the index lacks it."""
    waits_for = parse_properties(draft.properties).get(Property.REAL_TOPIC)
    return next(_copies(store, draft, unique_id, since_ms, waits_for), None)


def find_parked(store: MessageStore, draft: Draft, unique_id: str, since_ms: int) -> Record | None:
    """`find_repeated` for a timer message whose time has come since, and that still waits."""
    parked = draft._replace(topic=TIMER_TOPIC)
    return next(_copies(store, parked, unique_id, since_ms, draft.topic), None)


def _copies(
    store: MessageStore, draft: Draft, unique_id: str, since_ms: int, waits_for: str | None
) -> Iterator[Record]:
    """``waits_for`` is the topic of a message that waits for its time."""
    row = _named_row(draft.properties)
    found = store.query(draft.topic, unique_id, max_count=_MOST_COPIES, begin_ms=since_ms)
    for view in found.slices:
        try:
            record = decode_record(view)
        except ProtocolError:
            continue
        if value_of(record.properties, UNIQUE_KEY) != unique_id.encode():
            continue  # Another message has it among its keys.
        if store.was_deleted_since(waits_for or draft.topic, record.log_position):
            continue  # It was deleted with its topic, which was created again.
        if waits_for is not None:
            real = parse_properties(record.properties).get(Property.REAL_TOPIC)
            if real != waits_for:
                continue
        if _named_row(record.properties) == row if row else record.body == draft.body:
            yield record


def _named_row(properties: bytes) -> bytes:
    """The name of a row that has an id of its own; empty for others.

    Such a row is the same although its body differs: the function that made it may give another
    one when it runs again.
    """
    name = value_of(properties, _ROW)
    return name if name.split(b"/", 3)[2:3] == [_BY_ID] else b""


def find_repeated_batch(
    store: MessageStore, draft: Draft, body: bytes, since_ms: int = 0
) -> StoredBatch | None:
    """The stored batch that another one repeats; `ProtocolError`: it cannot be read."""
    head = next(iterate_batch(body), None)
    if head is None:
        return None
    items: list[BatchItem] = []
    # Batches that begin alike may go on differently: a sender has cut its messages in another way.
    for first in _item_copies(store, draft, head, since_ms):
        # Only now: nearly every batch is new, and to decode all of it takes as long as to store it.
        items = items or list(iterate_batch(body))
        found = _whole_batch(store, draft.topic, items, first)
        if found is not None:
            return found
    return None


def _whole_batch(
    store: MessageStore, topic: str, items: Sequence[BatchItem], first: Record
) -> StoredBatch | None:
    """The stored batch that begins with ``first``, if it has all items."""
    positions: list[int] = []
    for queue_offset, item in enumerate(items, first.queue_offset):
        wanted = value_of(item.properties, UNIQUE_KEY)
        entry = store.entry(topic, first.queue_id, queue_offset)
        if entry is None:
            return None
        positions.append(entry.log_position)
        is_last = len(positions) == len(items)
        if not wanted and not is_last:
            continue
        view = store.record_at(entry.log_position)
        record = None if view is None else decode_record(view)
        if record is None or value_of(record.properties, UNIQUE_KEY) != wanted:
            return None
        if is_last and record.body != item.body:
            return None
    return StoredBatch(positions, first.queue_id, first.queue_offset)


def possible_repeats(store: MessageStore, topic: str, body: bytes) -> list[int]:
    """The numbers of the messages of a batch of which the index may have the unique id.

    All others are surely new. `ProtocolError`: the batch cannot be read.
    """
    return store.possible_keys(topic, batch_values(body, UNIQUE_KEY))


def split_repeated(
    store: MessageStore, draft: Draft, items: Sequence[BatchItem], possible: Container[int]
) -> tuple[list[Record], list[BatchItem]]:
    """The stored messages that a batch repeats, each by its own id, and those to be stored.

    Only those with ``possible`` numbers are looked for.
    """
    stored: list[Record] = []
    missing: list[BatchItem] = []
    for number, item in enumerate(items):
        record = next(_item_copies(store, draft, item), None) if number in possible else None
        if record is None:
            missing.append(item)
        else:
            stored.append(record)
    return stored, missing


def _item_copies(
    store: MessageStore, draft: Draft, item: BatchItem, since_ms: int = 0
) -> Iterator[Record]:
    unique_id = value_of(item.properties, UNIQUE_KEY).decode("utf-8", "replace")
    if not unique_id:
        return iter(())
    single = draft._replace(body=item.body, properties=item.properties)
    return _copies(store, single, unique_id, since_ms, None)
