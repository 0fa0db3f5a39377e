"""Finds the open transactions of a store, its own or one of Apache's broker, at the start.

The halves from the saved offset on are open, but for those that an op record names and those whose
committed message is in the log: a broker may have died before it wrote the op record.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, Property
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.half_messages import HALF_QUEUE, HalfMessage, op_offsets, read_half
from penstock.protocol.records.codec import Record
from penstock.store.files import FileLayer
from penstock.store.store import MessageStore
from penstock.store.transactions.finding import is_committed, record_in_queue

log = logging.getLogger(__name__)

OFFSETS_FILE: Final = "config/consumerOffset.json"
_MAX_TABLE_BYTES: Final = 64 << 20


class FoundHalf(NamedTuple):
    """A half message that is open."""

    half: HalfMessage
    record: Record


class Found(NamedTuple):
    """What a store says about its transactions."""

    open: list[FoundHalf]
    """In the order of the queue; copies of one half included."""
    op_records: list[tuple[int, int]]
    """Offset of an op record, and the highest offset that it closes."""
    unnamed: list[int]
    """Offsets of halves that are committed, but not named by an op record."""


def find_open(
    store: MessageStore, half_offset: int | None, op_offset: int | None, timeout_ms: int
) -> Found:
    """Read both queues from the saved offsets on; blocks."""
    op_records: list[tuple[int, int]] = []
    closed: set[int] = set()
    for offset in _offsets(store, OP_HALF_TOPIC, op_offset):
        record = record_in_queue(store, OP_HALF_TOPIC, HALF_QUEUE, offset)
        named = [] if record is None else _named_by(record)
        closed.update(named)
        if named:
            op_records.append((offset, max(named)))
    found: list[FoundHalf] = []
    unnamed: list[int] = []
    for offset in _offsets(store, HALF_TOPIC, half_offset):
        if offset in closed:
            continue
        record = record_in_queue(store, HALF_TOPIC, HALF_QUEUE, offset)
        properties = {} if record is None else parse_properties(record.properties)
        half = read_half(properties, timeout_ms)
        if record is None or half is None:
            log.error("half message cannot be read, skipped offset=%d", offset)
            continue
        if half.first_offset in closed:
            # A copy that Apache's broker made within the immunity time; the first one is decided.
            unnamed.append(offset)
            continue
        if is_committed(store, half, record):
            unnamed.append(offset)
        else:
            found.append(FoundHalf(half, record))
    return Found(found, op_records, unnamed)


def count_open(store: MessageStore, files: FileLayer, root: str) -> int:
    """How many transactions of a store are open, from the offsets that its broker saved on."""
    table = _saved_offsets(files, root)
    half, op = (
        table.get(f"{topic}@{TRANSACTION_GROUP}", {}).get(HALF_QUEUE)
        for topic in (HALF_TOPIC, OP_HALF_TOPIC)
    )
    return len({found.half.key for found in find_open(store, half, op, 0).open})


def _saved_offsets(files: FileLayer, root: str) -> dict[str, dict[int, int]]:
    """The offsets of all groups; none where the table is missing or cannot be read."""
    path = f"{root}/{OFFSETS_FILE}"
    entry = files.stat(path)
    if entry is None or entry.size > _MAX_TABLE_BYTES:
        return {}
    descriptor = files.open(path)
    try:
        return decode_body(ConsumerOffsetTable, files.read(descriptor, entry.size, 0)).offset_table
    except ProtocolError:
        return {}
    finally:
        files.close(descriptor)


def _named_by(record: Record) -> list[int]:
    tag = parse_properties(record.properties).get(Property.TAGS)
    return op_offsets(tag, record.body)


def _offsets(store: MessageStore, topic: str, saved: int | None) -> range:
    low, high = store.min_offset(topic, HALF_QUEUE), store.max_offset(topic, HALF_QUEUE)
    return range(low if saved is None else max(low, saved), high)
