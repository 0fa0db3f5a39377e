"""Finds in the store what became of a transaction that memory knows nothing of.

A committed message lies behind its half in the log and has the same unique id, so the key index
finds it. Without an index its queue is read from the time of the half on.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import ProtocolError
from penstock.model.names import TRANSACTION_GIVEN_UP_TOPIC, Property
from penstock.model.properties import parse_properties
from penstock.protocol.half_messages import HalfMessage, TransactionKey, is_commit_of
from penstock.protocol.records.codec import Record, decode_record
from penstock.store.store import MessageStore

_MAX_FOUND = 64


def record_at(store: MessageStore, log_position: int) -> Record | None:
    """The record at a position; None if none can be read there."""
    view = store.record_at(log_position)
    try:
        return None if view is None else decode_record(view)
    except ProtocolError:
        return None


def record_in_queue(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int
) -> Record | None:
    """The record at an offset of a queue; None if none can be read there."""
    entry = store.entry(topic, queue_id, queue_offset)
    record = None if entry is None else record_at(store, entry.log_position)
    if record is None or record.topic != topic or record.queue_offset != queue_offset:
        return None
    return record


def is_committed(store: MessageStore, half: HalfMessage, record: Record) -> bool:
    """Whether the log has the committed message of a half that was stored as ``record``."""
    candidates = (
        _queue_since(store, half, record)
        if store.key_index is None
        else _by_id(store, half.key.topic, half.key.unique_id)
    )
    return any(
        one.log_position > record.log_position and is_commit_of(one, half.key) for one in candidates
    )


def is_given_up(store: MessageStore, key: TransactionKey, record: Record) -> bool:
    """Whether a half is not asked about any more, yet may still be decided."""
    for one in _by_id(store, TRANSACTION_GIVEN_UP_TOPIC, key.unique_id):
        properties = parse_properties(one.properties)
        if (
            one.log_position > record.log_position
            and properties.get(Property.REAL_TOPIC) == key.topic
            and properties.get(Property.PRODUCER_GROUP, "") == key.group
        ):
            return True
    return False


def _by_id(store: MessageStore, topic: str, unique_id: str) -> Iterator[Record]:
    for view in store.query(topic, unique_id, max_count=_MAX_FOUND).slices:
        try:
            yield decode_record(view)
        except ProtocolError:
            continue


def _queue_since(store: MessageStore, half: HalfMessage, record: Record) -> Iterator[Record]:
    topic, queue_id = half.key.topic, half.queue_id
    first = store.offset_at(topic, queue_id, record.store_timestamp)
    for queue_offset in range(first, store.max_offset(topic, queue_id)):
        found = record_in_queue(store, topic, queue_id, queue_offset)
        if found is not None:
            yield found
