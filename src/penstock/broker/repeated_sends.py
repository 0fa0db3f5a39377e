"""Finding a message that a producer sends again because it got no answer.

A producer marks such a request (`protocol.extensions.REPEAT`). Only then the broker looks for the
unique id in its key index, so that first sends pay nothing. A message counts as the same if its
unique id, its body and, where it waits for its time, its topic are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.model.names import Property
from penstock.model.properties import UNIQUE_KEY, parse_properties, value_of
from penstock.protocol.records.batches import BatchItem
from penstock.protocol.records.codec import Record, decode_record
from penstock.store import Draft, MessageStore

_MOST_COPIES = 64


class StoredBatch(NamedTuple):
    """A batch that is stored already."""

    log_positions: list[int]
    queue_id: int
    queue_offset: int


def find_repeated(store: MessageStore, draft: Draft, unique_id: str) -> Record | None:
    """The stored message that a draft repeats; None: there is none, or the index lacks it."""
    waits_for = parse_properties(draft.properties).get(Property.REAL_TOPIC)
    found = store.query(draft.topic, unique_id, max_count=_MOST_COPIES)
    for view in found.slices:
        try:
            record = decode_record(view)
        except ProtocolError:
            continue
        if value_of(record.properties, UNIQUE_KEY) != unique_id.encode():
            continue  # Another message has it among its keys.
        if record.body == draft.body and (
            waits_for is None
            or parse_properties(record.properties).get(Property.REAL_TOPIC) == waits_for
        ):
            return record
    return None


def find_repeated_batch(
    store: MessageStore, draft: Draft, items: Sequence[BatchItem]
) -> StoredBatch | None:
    """The stored batch that another one repeats: a batch is stored as a whole or not at all."""
    unique_id = value_of(items[0].properties, UNIQUE_KEY).decode("utf-8", "replace")
    if not unique_id:
        return None
    first = find_repeated(store, draft._replace(body=items[0].body), unique_id)
    if first is None:
        return None
    positions: list[int] = []
    for queue_offset, item in enumerate(items, first.queue_offset):
        entry = store.entry(draft.topic, first.queue_id, queue_offset)
        view = None if entry is None else store.record_at(entry.log_position)
        record = None if view is None else decode_record(view)
        wanted = value_of(item.properties, UNIQUE_KEY)
        if record is None or value_of(record.properties, UNIQUE_KEY) != wanted:
            return None
        positions.append(record.log_position)
    return StoredBatch(positions, first.queue_id, first.queue_offset)
