"""Stored records to Arrow record batches: no files, no sockets, no Spark.

A batch is built column by column with numpy and pyarrow, never message by message: that is what
makes a scan from Python as fast as one of Spark's own. Only columns that are wanted are built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.bad_records import (
    BadRecord,
    OnBad,
    refuse_damage,
    salvaged,
    whole_among,
)
from penstock.columnar.buffers import pieces_of_one_length
from penstock.columnar.checksums import wrong_bodies
from penstock.columnar.message_rows import message_row
from penstock.columnar.property_table import Pieces, PropertyTable
from penstock.columnar.record_columns import BatchColumns, key_lists, properties_of
from penstock.columnar.record_fields import Numbers, RecordFields, record_sizes, walk
from penstock.columnar.schema import ALL, arrow_schema
from penstock.errors import ProtocolError
from penstock.model.message import StoredMessage
from penstock.model.names import Property
from penstock.protocol.records.codec import Record, body_crc, decode_record
from penstock.protocol.records.compression import decompress
from penstock.protocol.records.pulled import message_from_record, messages_from_pull
from penstock.protocol.records.sys_flags import SysFlag

BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = 8 << 20
_MAX_SPAN: Final = (1 << 31) - 1  # what Arrow's 32-bit offsets reach
_UNWRAP: Final = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
_ENDLESS: Final = (1 << 63) - 1


class UnusualRecords(Exception):
    """Records with one of the flags that `to_batches` must refuse."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to build, and a filter of messages.

    A message passes if it has one of the ``tags`` and one of the ``keys``; None passes all.
    Without ``include_properties`` the column ``properties`` is null. ``check_bodies`` compares
    bodies with their checksums; only if the column ``body`` is built.
    """

    columns: tuple[str, ...] = ALL
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    include_properties: bool = True
    check_bodies: bool = True


# Built from what follows the body; without them that part of a record is not looked at.
_TAIL_COLUMNS: Final = frozenset({"topic", "msg_id", "keys", "tags", "properties"})


def to_batches(
    records: bytes | memoryview,
    *,
    broker: str,
    wanted: Wanted,
    topic: str | None = None,
    positions: npt.NDArray[np.int64] | None = None,
    offsets: npt.NDArray[np.int64] | None = None,
    lo: int = 0,
    hi: int | None = None,
    on_bad: OnBad = refuse_damage,
    refused_flags: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The messages in ``records`` as batches of ``wanted.columns``, in their order.

    ``records`` are stored records back to back (a pull answer), or any buffer with the starts of
    those to take in ``positions`` (a part of a log); with ``offsets`` these must have those queue
    offsets. Messages with a queue offset outside ``lo <= offset < hi`` are left out. ``topic``
    replaces the topic of the records. Bodies are decompressed. ``on_bad`` decides about records
    that are damaged or unreadable; by default bytes that are not a record, and a wrong checksum,
    raise ``ProtocolError``, and a body that does not decompress is null. Records with one of the
    ``refused_flags`` raise ``UnusualRecords``.
    """
    buffer = memoryview(records)
    maker = _BatchMaker(broker, topic, wanted, lo, _ENDLESS if hi is None else hi, on_bad)
    is_salvaged = False
    if positions is None:
        starts, listed = _walked(buffer, on_bad), None
    else:
        starts, listed = np.asarray(positions, np.int64), offsets
    while len(starts):
        try:
            part, fields = maker.portion(buffer, starts, listed)
        except ProtocolError as error:
            # Rare, so the damaged ones are found one by one; all others stay.
            if positions is None and not is_salvaged:
                starts, is_salvaged = salvaged(buffer, int(starts[0]), on_bad), True
                continue
            is_kept = np.ones(len(starts), np.bool_)
            is_kept[:BATCH_ROWS] = whole_among(buffer, starts[:BATCH_ROWS], listed, on_bad)
            if is_kept.all():
                raise AssertionError("a record was refused, yet all are whole") from error
            starts, listed = starts[is_kept], None if listed is None else listed[is_kept]
            continue
        if fields.all_flags & refused_flags:
            raise UnusualRecords(f"flags {fields.all_flags & refused_flags:#x}")
        yield from maker.batches(part, fields)
        starts = starts[len(fields) :]
        listed = None if listed is None else listed[len(fields) :]


def _walked(buffer: memoryview, on_bad: OnBad) -> Numbers:
    try:
        return walk(buffer)
    except ProtocolError:
        return salvaged(buffer, 0, on_bad)


def _near(starts: Numbers, sizes: Numbers) -> tuple[int, int, int]:
    """The range of the first records that are close enough for one batch, and their count."""
    count = len(starts)
    while True:
        first = int(starts[:count].min())
        end = int((starts[:count] + sizes[:count]).max())
        if end - first <= _MAX_SPAN or count == 1:
            return first, end, count
        count //= 2


class _BatchMaker:
    """Makes batches from records that fit into one."""

    def __init__(
        self,
        broker: str,
        topic: str | None,
        wanted: Wanted,
        lo: int,
        hi: int,
        on_bad: OnBad,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._wanted = wanted
        self._lo, self._hi = lo, hi
        self._on_bad = on_bad
        self._schema = arrow_schema(wanted.columns)
        needed = _TAIL_COLUMNS.intersection(wanted.columns) - ({"topic"} if topic else set())
        self._needs_tail = bool(needed) or wanted.tags is not None or wanted.keys is not None

    def portion(
        self, buffer: memoryview, starts: Numbers, listed: Numbers | None
    ) -> tuple[memoryview, RecordFields]:
        """The fields of the first records, as many as fit, and the part of the buffer they are in.

        All that is needed of them is checked here.
        """
        head = starts[:BATCH_ROWS]
        part = buffer
        if len(buffer) > _MAX_SPAN:
            first, end, count = _near(head, record_sizes(buffer, head))
            part, head = buffer[first:end], head[:count] - first
        fields = RecordFields(part, head)
        if fields.size.sum() > BATCH_BYTES:
            count = int(np.searchsorted(np.cumsum(fields.size), BATCH_BYTES, side="right"))
            fields = RecordFields(part, head[: max(1, count)])
        if self._needs_tail:
            fields.find_tail(part)
        if listed is not None:
            fields.check_offsets(listed[: len(fields)])
        return part, fields

    def batches(self, buffer: memoryview, fields: RecordFields) -> Iterator[pa.RecordBatch]:
        if fields.all_flags & _UNWRAP != _UNWRAP:
            yield from self._plain(buffer, fields)
            return
        is_wrapped = (fields.sys_flag & _UNWRAP) == _UNWRAP
        # An inner batch has several messages in one record; few brokers store them.
        starts, done = fields.starts, 0
        for index in np.flatnonzero(is_wrapped).tolist():
            if index > done:
                yield from self._plain(buffer, RecordFields(buffer, starts[done:index]))
            record = bytes(buffer[starts[index] : fields.end[index]])
            yield from self._unwrapped(record, int(fields.sys_flag[index]))
            done = index + 1
        if done < len(starts):
            yield from self._plain(buffer, RecordFields(buffer, starts[done:]))

    def _plain(self, buffer: memoryview, fields: RecordFields) -> Iterator[pa.RecordBatch]:
        offsets = fields.queue_offset
        if len(offsets) and (offsets.min() < self._lo or offsets.max() >= self._hi):
            is_kept = (offsets >= self._lo) & (offsets < self._hi)
            fields = RecordFields(buffer, fields.starts[is_kept])
        wanted = self._wanted
        if len(fields) and (wanted.tags is not None or wanted.keys is not None):
            is_kept = _passing(properties_of(buffer, fields), wanted)
            if not is_kept.all():
                fields = RecordFields(buffer, fields.starts[is_kept])
        while len(fields):
            bodies, count = self._bodies(buffer, fields)
            rest = fields.starts[count:]
            if len(rest):
                fields = RecordFields(buffer, fields.starts[:count])
            columns = BatchColumns(
                buffer,
                fields,
                self._broker,
                self._topic,
                bodies,
                include_properties=wanted.include_properties,
            )
            yield columns.batch(self._schema)
            if not len(rest):
                return
            fields = RecordFields(buffer, rest)

    def _bodies(self, buffer: memoryview, fields: RecordFields) -> tuple[pa.Array | None, int]:
        """The decompressed bodies, and their count: they may be too large for one batch."""
        if "body" not in self._wanted.columns:
            return None, len(fields)
        stored = _stored_bodies(buffer, fields)
        count = len(fields)
        is_compressed = None
        opened: dict[int, bytes | None] = {}
        if fields.all_flags & SysFlag.COMPRESSED:
            is_compressed = (fields.sys_flag & SysFlag.COMPRESSED) != 0
        for index in self._wrong(stored, fields):
            opened[index] = None
        if is_compressed is None:
            return (_replaced(stored, opened) if opened else stored), count
        total = 0
        for index in np.flatnonzero(is_compressed).tolist():
            if index not in opened:
                body = self._inflated(stored[index].as_py(), fields, index)
                opened[index] = body
                total += len(body or b"")
                if total >= BATCH_BYTES:
                    count = index + 1
                    break
        kept = {index: body for index, body in opened.items() if index < count}
        return _replaced(stored[:count], kept), count

    def _wrong(self, stored: pa.Array, fields: RecordFields) -> list[int]:
        """The numbers of damaged bodies."""
        if not self._wanted.check_bodies:
            return []
        wrong: list[int] = wrong_bodies(stored, fields.body_crc).tolist()
        for index in wrong:
            why = "its body does not have the checksum that the record states"
            self._on_bad(BadRecord(int(fields.queue_offset[index]), why, is_damaged=True))
        return wrong

    def _inflated(self, body: bytes, fields: RecordFields, index: int) -> bytes | None:
        try:
            return decompress(body, int(fields.sys_flag[index]))
        except ProtocolError as error:
            self._unreadable(int(fields.queue_offset[index]), error)
            return None

    def _unreadable(self, queue_offset: int, error: ProtocolError) -> None:
        # A body that only needs a missing library is not lost.
        if isinstance(error.__cause__, ImportError):
            raise error
        self._on_bad(BadRecord(queue_offset, str(error), is_damaged=False))

    def _unwrapped(self, record: bytes, sys_flag: int) -> Iterator[pa.RecordBatch]:
        """The messages of an inner batch, one by one; a record that is none is one row."""
        check_crc = self._wanted.check_bodies and "body" in self._wanted.columns
        whole = decode_record(record)
        is_readable = False
        if check_crc and body_crc(whole.body) != whole.body_crc:
            why = "its body does not have the checksum that the record states"
            self._on_bad(BadRecord(whole.queue_offset, why, is_damaged=True))
            found = [_without_body(whole, self._broker)]
        else:
            try:
                found = messages_from_pull(record, self._broker)
                is_readable = True
            except ProtocolError as error:
                self._unreadable(whole.queue_offset, error)
                found = [_without_body(whole, self._broker)]
        messages = [
            message
            for message in found
            if self._lo <= message.queue_offset < self._hi and _lets_through(self._wanted, message)
        ]
        if messages:
            rows = [
                message_row(message, sys_flag, include_properties=self._wanted.include_properties)
                for message in messages
            ]
            if not is_readable:
                rows = [{**row, "body": None} for row in rows]
            if self._topic is not None:
                rows = [{**row, "topic": self._topic} for row in rows]
            yield pa.RecordBatch.from_pylist(rows, schema=self._schema)


def _stored_bodies(buffer: memoryview, fields: RecordFields) -> pa.Array:
    """The bodies as they are stored."""
    lengths = fields.body_length
    width = int(lengths[0])
    if width and (lengths == width).all():
        return pieces_of_one_length(buffer, fields.body_start, width)
    return Pieces(pa.py_buffer(buffer), fields.body_start, fields.body_end).all()


def _replaced(stored: pa.Array, others: dict[int, bytes | None]) -> pa.Array:
    """The bodies, some of them replaced."""
    where = np.arange(len(stored))
    where[list(others)] = len(stored) + np.arange(len(others))
    both = pa.concat_arrays([stored, pa.array(others.values(), pa.binary())])
    return both.take(pa.array(where))


def _without_body(record: Record, broker: str) -> StoredMessage:
    plain = record._replace(body=b"", sys_flag=record.sys_flag & ~(_UNWRAP | SysFlag.COMPRESSED))
    return message_from_record(plain, broker)


def _passing(table: PropertyTable, wanted: Wanted) -> npt.NDArray[np.bool_]:
    """A mask of the messages with one of the tags, and one of the keys."""
    passing: npt.NDArray[np.bool_] | None = None
    if wanted.tags is not None:
        tags = table.values(Property.TAGS)
        is_in = pc.is_in(tags, value_set=pa.array(sorted(wanted.tags), pa.string()))
        passing = np.asarray(is_in)
    if wanted.keys is not None:
        lists = key_lists(table)
        values = pa.array(sorted(wanted.keys), pa.string())
        rows = np.asarray(pc.list_parent_indices(lists))
        has_key = np.zeros(len(lists), np.bool_)
        has_key[rows[np.asarray(pc.is_in(pc.list_flatten(lists), value_set=values))]] = True
        passing = has_key if passing is None else passing & has_key
    assert passing is not None
    return passing


def _lets_through(wanted: Wanted, message: StoredMessage) -> bool:
    if wanted.tags is not None and message.tag not in wanted.tags:
        return False
    return wanted.keys is None or not wanted.keys.isdisjoint(message.keys)
