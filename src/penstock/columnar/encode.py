"""Encodes rows as the messages of batch sends, a column at a time. Pure.

`model.record_layout` draws the item of a message, which `protocol.records.batches` encodes singly.
Here the same bytes are made for all rows of an Arrow batch at once: headers by numpy, the variable
parts by Arrow's element-wise join, so that no Python code runs for a single row. The result is one
binary array, and because its values are contiguous, any range of rows is a complete request body.

Every message also names its task and row (`Origin`). A task or micro-batch that runs again sends
the same rows with the same names, by which `deduplicate` recognises them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import (
    Numbers,
    as_binary,
    controls_in,
    fixed,
    has_controls,
    lengths_of,
    offsets_of,
)
from penstock.columnar.row_ids import ROW_PROPERTY, Origin, RowIds
from penstock.errors import IllegalMessage
from penstock.model.names import Property
from penstock.model.properties import MAX_PROPERTIES_BYTES
from penstock.model.record_layout import (
    ITEM_FIELDS,
    ITEM_HEAD,
    MIN_ITEM_BYTES,
    PROPERTIES_LENGTH,
)
from penstock.protocol.delays import DELAY_LEVELS
from penstock.protocol.validation import MAX_MESSAGE_BYTES, RESERVED_PROPERTIES

MAX_ROWS_BYTES: Final = 256 << 20
"""Rows with more bytes than this are encoded in halves: Arrow counts in 31 bits."""
HEAD: Final = np.dtype([(name, ">i4") for name in ITEM_FIELDS])
assert HEAD.itemsize == ITEM_HEAD.size


# Set by the columns, the broker or this module; a map that was read from a topic has many.
_DROPPED: Final = sorted({*RESERVED_PROPERTIES, ROW_PROPERTY})
_TIMERS: Final = (
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
)
MAX_ID_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The index of the column that each part of a message is taken from; None: there is none."""

    body: int
    topic: int | None = None
    keys: int | None = None
    tags: int | None = None
    properties: int | None = None
    sharding_key: int | None = None
    delay: int | None = None
    broker: int | None = None
    queue_id: int | None = None
    id: int | None = None
    """The user's own ids: with an origin they are unique within a batch, else anywhere."""


@dataclass(frozen=True)
class EncodedRows:
    """Rows ready to be sent."""

    items: pa.Array
    """Body and properties of each row as one message of a batch."""
    delayed: Numbers | None
    """A mask of the rows with a delay, which cannot be in a batch; None: no row has one."""
    _all_bodies: pa.Array
    _parts: Sequence[Any]
    """The parts that the property texts of all encoded rows are joined from."""
    _rows: Numbers | None = None
    """The indices of these rows among them; None: all."""
    _first_row: int = 0
    _ids: pa.Array | None = None

    def number(self, index: int) -> int:
        """The number of a row in its task."""
        return self._first_row + (index if self._rows is None else int(self._rows[index]))

    def given_id(self, index: int) -> str:
        """The unique id of a row that follows from one of the user's."""
        assert self._ids is not None, "there is a column of ids"
        text: bytes = self._ids[index if self._rows is None else int(self._rows[index])].as_py()
        return text.decode()

    @functools.cached_property
    def bodies(self) -> pa.Array:
        """The bodies alone, for messages that are sent singly."""
        return self._chosen(self._all_bodies)

    @functools.cached_property
    def properties(self) -> pa.Array:
        """The property texts alone."""
        return self._chosen(pc.binary_join_element_wise(*self._parts, b""))

    def _chosen(self, values: pa.Array) -> pa.Array:
        return values if self._rows is None else values.take(pa.array(self._rows))

    def take(self, rows: Numbers) -> EncodedRows:
        """Some of the rows, in the order given."""
        return EncodedRows(
            self.items.take(pa.array(rows)),
            None if self.delayed is None else self.delayed[rows],
            self._all_bodies,
            self._parts,
            rows if self._rows is None else self._rows[rows],
            self._first_row,
            self._ids,
        )


def encode_rows(
    rows: pa.RecordBatch,
    columns: MessageColumns,
    origin: Origin | None,
    first_row: int,
    ids: RowIds | None,
) -> EncodedRows:
    """The rows as messages; `IllegalMessage` names a row that cannot be one.

    Without ``origin`` messages do not name their row.
    Without ``ids`` messages have only the broker's id, which saves the broker two fifths of its
    work: it indexes every unique id.
    """
    count = rows.num_rows
    where = _Where(origin, first_row)
    bodies = as_binary(rows.column(columns.body))
    lengths = _check_bodies(bodies, where)
    delays, is_delayed = _delays(rows, columns, where)
    properties, has_timer = _properties(rows, columns, where)
    parts: list[Any] = [
        *properties,
        *_named(rows, columns.tags, Property.TAGS, where),
        *_named(rows, columns.keys, Property.KEYS, where),
        *_named(rows, columns.sharding_key, Property.SHARDING_KEY, where),
        *delays,
        # No WAIT property, which clients always add: the default is the same.
    ]
    given = None if columns.id is None else _given_ids(rows, columns.id, where)
    if origin is not None and given is not None:
        parts += (origin.common_to_ids, given, b"\x02")
        given = pc.binary_join_element_wise(origin.id_prefix, given, b"")
    elif origin is not None:
        numbers = pa.array(np.arange(first_row, first_row + count))
        parts += (origin.common, numbers.cast(pa.string()).cast(pa.binary()), b"\x02")
    if given is not None:
        parts += (f"{Property.UNIQUE_KEY}\x01".encode(), given, b"\x02")
    elif ids is not None:
        parts += (f"{Property.UNIQUE_KEY}\x01".encode(), ids.columns(count), b"\x02")
    # Joined once, with the bodies: the texts alone are rarely needed.
    text_lengths = np.zeros(count, np.int64)
    for part in parts:
        text_lengths += len(part) if isinstance(part, bytes) else lengths_of(part)
    _check_properties(text_lengths, where)
    heads = np.zeros(count, HEAD)
    heads["size"] = MIN_ITEM_BYTES + lengths + text_lengths
    heads["body_length"] = lengths
    items = pc.binary_join_element_wise(
        fixed(heads.tobytes(), count, HEAD.itemsize),
        bodies,
        fixed(text_lengths.astype(">u2").tobytes(), count, 2),
        *parts,
        b"",
    )
    if has_timer is not None:
        is_delayed = has_timer if is_delayed is None else is_delayed | has_timer
    return EncodedRows(items, is_delayed, bodies, parts, None, first_row, given)


def halves(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that Arrow can join; usually one."""
    if rows.nbytes <= MAX_ROWS_BYTES or rows.num_rows < 2:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from halves(rows.slice(0, middle))
    yield from halves(rows.slice(middle))


def cut(
    items: pa.Array, max_bytes: int, max_rows: int | None = None
) -> Iterator[tuple[int, int, memoryview]]:
    """Ranges of rows of at most ``max_bytes``, or one row: first, end, request body."""
    offsets = offsets_of(items)
    data = memoryview(items.buffers()[2] or b"")
    start, total = 0, len(items)
    while start < total:
        end = int(np.searchsorted(offsets, offsets[start] + max_bytes, side="right")) - 1
        end = max(end, start + 1)
        if max_rows is not None:
            end = min(end, start + max_rows)
        yield start, end, data[offsets[start] : offsets[end]]
        start = end


def with_first_id(body: memoryview, unique_id: str) -> tuple[bytes, memoryview]:
    """A request body whose first message also has a unique id, and with it the whole batch.

    The broker indexes every id, which takes two fifths of its work: one a batch costs nothing. In
    two parts, the first message and the others: these are a megabyte, and not copied.
    """
    size, magic, crc, flag, body_length = ITEM_HEAD.unpack_from(body)
    properties_at = ITEM_HEAD.size + body_length
    (length,) = PROPERTIES_LENGTH.unpack_from(body, properties_at)
    pair = f"{Property.UNIQUE_KEY}\x01{unique_id}\x02".encode()
    if length + len(pair) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"message properties take {length} bytes, and the unique id {len(pair)}",
            expected=f"at most {MAX_PROPERTIES_BYTES}, all keys and values together",
            hint="move large values into the body",
        )
    first = b"".join(
        (
            ITEM_HEAD.pack(size + len(pair), magic, crc, flag, body_length),
            body[ITEM_HEAD.size : properties_at],
            PROPERTIES_LENGTH.pack(length + len(pair)),
            body[properties_at + PROPERTIES_LENGTH.size : size],
            pair,
        )
    )
    return first, body[size:]


# ------------------------------------------------------------------------------- the columns


class _Where:
    """Names a row in an error."""

    def __init__(self, origin: Origin | None, first_row: int) -> None:
        self._suffix = "" if origin is None else f" of partition {origin.partition}"
        self._first_row = first_row

    def row(self, index: int) -> str:
        return f"row {self._first_row + index}{self._suffix}"


def _check_bodies(bodies: pa.Array, where: _Where) -> Numbers:
    if bodies.null_count:
        row = int(np.flatnonzero(bodies.is_null().to_numpy(zero_copy_only=False))[0])
        raise IllegalMessage(
            f"the body in {where.row(row)} is null", expected="at least one byte in every row"
        )
    lengths = lengths_of(bodies)
    if len(lengths) and not lengths.min():
        row = int(np.argmin(lengths))
        raise IllegalMessage(
            f"the body in {where.row(row)} is empty", expected="at least one byte in every row"
        )
    if len(lengths) and lengths.max() > MAX_MESSAGE_BYTES:
        row = int(np.argmax(lengths))
        raise IllegalMessage(
            f"the body in {where.row(row)} has {lengths[row]} bytes",
            expected=f"at most {MAX_MESSAGE_BYTES}",
        )
    return lengths


def _check_properties(lengths: Numbers, where: _Where) -> None:
    if len(lengths) and lengths.max() > MAX_PROPERTIES_BYTES:
        row = int(np.argmax(lengths))
        raise IllegalMessage(
            f"message properties take {lengths[row]} bytes in {where.row(row)}",
            expected=f"at most {MAX_PROPERTIES_BYTES}, all keys and values together",
            hint="move large values into the body",
        )


def _named(rows: pa.RecordBatch, column: int | None, key: str, where: _Where) -> list[Any]:
    """The property of a text column, or of a column of lists of texts."""
    if column is None:
        return []
    values = rows.column(column)
    if values.null_count == len(values):
        return []
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        if values.flatten().null_count:
            raise IllegalMessage(
                f"a null in column {rows.schema.field(column).name!r}", expected="text"
            )
        # Arrow does not join lists whose type excludes nulls, nor large texts.
        values = pc.binary_join(values.cast(pa.list_(pa.string())), " ")
    values = as_binary(values)
    _check_text(values, key, where)
    pairs = pc.binary_join_element_wise(f"{key}\x01".encode(), values, b"\x02", b"")
    if values.null_count:
        pairs = pairs.fill_null(b"")
    lengths = lengths_of(values)
    if not lengths.all():
        # An empty text is the same as none: readers drop a property without a value.
        pairs = pc.if_else(pa.array(lengths > 0), pairs, b"")
    return [pairs]


def _given_ids(rows: pa.RecordBatch, column: int, where: _Where) -> pa.Array:
    """The user's ids, one in every row."""
    values = as_binary(rows.column(column))
    lengths = lengths_of(values.fill_null(b"") if values.null_count else values)
    bad = (lengths == 0) | (lengths > MAX_ID_BYTES)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise IllegalMessage(
            f"an id of {lengths[row]} bytes in {where.row(row)}",
            expected=f"1 to {MAX_ID_BYTES} in every row",
        )
    _check_text(values, Property.UNIQUE_KEY, where)
    return values


def _delays(
    rows: pa.RecordBatch, columns: MessageColumns, where: _Where
) -> tuple[list[Any], Numbers | None]:
    if columns.delay is None:
        return [], None
    values = rows.column(columns.delay)
    if values.null_count == len(values):
        return [], None
    encoded = values.dictionary_encode()
    levels: list[int] = []
    for value in encoded.dictionary.to_pylist():
        try:
            levels.append(0 if value in (None, "") else DELAY_LEVELS.level_of(value))
        except IllegalMessage:
            raise
        except ValueError as error:
            row = encoded.indices.to_pylist().index(len(levels))
            raise IllegalMessage(f"{error}; in {where.row(row)}") from error
    of_level = [f"{Property.DELAY}\x01{level}\x02".encode() if level else b"" for level in levels]
    indices = encoded.indices.fill_null(len(levels))
    texts = pa.array([*of_level, b""], pa.binary()).take(indices)
    is_delayed = np.array([*(level > 0 for level in levels), False])[indices.to_numpy()]
    return [texts], is_delayed if is_delayed.any() else None


def _properties(
    rows: pa.RecordBatch, columns: MessageColumns, where: _Where
) -> tuple[list[Any], Numbers | None]:
    """The user's properties in the map column, as one text a row."""
    if columns.properties is None:
        return [], None
    maps = rows.column(columns.properties)
    if maps.null_count == len(maps):
        return [], None
    offsets = maps.offsets.to_numpy().astype(np.int64)
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0])
    values = maps.items.slice(offsets[0], offsets[-1] - offsets[0])
    offsets -= offsets[0]
    keep = pc.invert(pc.is_in(keys, value_set=pa.array(_dropped(columns), keys.type)))
    kept = keep.to_numpy(zero_copy_only=False)
    if not kept.all():
        keys, values = keys.filter(keep), values.filter(keep)
        offsets = np.concatenate(([0], np.cumsum(kept)))[offsets]
    keys, values = as_binary(keys), as_binary(values)
    _check_pairs(keys, values, offsets, where)
    pairs = pc.binary_join_element_wise(keys, b"\x01", values, b"\x02", b"")
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pairs)
    texts = pc.binary_join(lists, b"")
    timers = pc.is_in(keys, value_set=pa.array([key.encode() for key in _TIMERS], pa.binary()))
    is_timer = timers.to_numpy(zero_copy_only=False)
    if not is_timer.any():
        return [texts], None
    counts = np.concatenate(([0], np.cumsum(is_timer)))[offsets]
    return [texts], np.diff(counts) > 0


def _dropped(columns: MessageColumns) -> list[str]:
    """Keys of a map that are not sent; tags and keys are sent if they have no column."""
    instead = (
        (columns.tags, Property.TAGS),
        (columns.keys, Property.KEYS),
        (columns.sharding_key, Property.SHARDING_KEY),
    )
    allowed = {key for column, key in instead if column is None}
    return [key for key in _DROPPED if key not in allowed]


def _check_pairs(keys: pa.Array, values: pa.Array, offsets: Numbers, where: _Where) -> None:
    """Refuse properties that no reader could parse."""
    bad = np.zeros(len(keys), dtype=bool)
    if values.null_count:
        bad |= values.is_null().to_numpy(zero_copy_only=False)
    for side in (keys, values):
        bad |= lengths_of(side) == 0
        if has_controls(side):
            bad |= controls_in(side)
    if not bad.any():
        return
    pair = int(np.flatnonzero(bad)[0])
    row = int(np.searchsorted(offsets, pair, side="right")) - 1
    key, value = keys[pair].as_py(), values[pair].as_py()
    raise IllegalMessage(
        f"message property {key!r} = {value!r} in {where.row(row)}",
        expected="a key and a value, both not empty and without the characters 0x00 to 0x02",
        hint="leave the property out",
    )


def _check_text(values: pa.Array, key: str, where: _Where) -> None:
    if not has_controls(values):
        return
    row = int(np.flatnonzero(controls_in(values))[0])
    raise IllegalMessage(
        f"{key} {values[row].as_py()!r} in {where.row(row)}",
        expected="text without the characters 0x00 to 0x02",
    )
