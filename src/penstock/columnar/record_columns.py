"""The columns of one batch of records, each built as a whole when it is needed. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.property_table import Pieces, PropertyTable, text
from penstock.columnar.record_fields import Numbers, RecordFields
from penstock.columnar.schema import ALL, ARROW_TYPES
from penstock.model.hosts import offset_message_id, unpack_host
from penstock.model.names import Property

# Python and Spark have no times outside of these years; such a timestamp is a mistake.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
_TIME: Final = ARROW_TYPES["store_timestamp"]
_HEX: Final = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), "<u2")


class BatchColumns:
    """The columns of one batch, each built when it is needed."""

    def __init__(
        self,
        buffer: memoryview,
        fields: RecordFields,
        broker: str,
        topic: str | None,
        bodies: pa.Array | None,
        *,
        include_properties: bool,
    ) -> None:
        self._buffer = buffer
        self._fields = fields
        self._broker = broker
        self._topic = topic
        self._include_properties = include_properties
        self._bodies = bodies
        self._table: PropertyTable | None = None

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The batch with the columns of ``schema``."""
        arrays = [_BUILDERS[name](self) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    @property
    def _properties(self) -> PropertyTable:
        if self._table is None:
            self._table = properties_of(self._buffer, self._fields)
        return self._table

    def topic(self) -> pa.Array:
        fields = self._fields
        if self._topic is not None:
            return _repeated(self._topic, len(fields))
        tail = fields.find_tail(self._buffer)
        data = pa.py_buffer(self._buffer)
        return text(Pieces(data, tail.topic_start, tail.topic_end).all())

    def broker(self) -> pa.Array:
        return _repeated(self._broker, len(self._fields))

    def queue_id(self) -> pa.Array:
        return _int32(self._fields.queue_id)

    def offset(self) -> pa.Array:
        return pa.array(self._fields.queue_offset)

    def msg_id(self) -> pa.Array:
        given = self._properties.values(Property.UNIQUE_KEY)
        return pc.coalesce(given, self._offset_ids()) if given.null_count else given

    def _offset_ids(self) -> pa.Array:
        fields = self._fields
        if fields.is_wide:
            hosts = fields.packed_hosts(born=False)
            places = fields.log_position.tolist()
            ids = [offset_message_id(*pair) for pair in zip(hosts, places, strict=True)]
            return pa.array(ids, pa.string())
        packed = np.stack((fields.hosts(born=False), fields.log_position), axis=1).astype(">i8")
        digits = _HEX[packed.view(np.uint8)]
        width = 2 * packed.itemsize * 2
        offsets = np.arange(0, width * len(fields) + 1, width, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        return pa.Array.from_buffers(pa.string(), len(fields), buffers)

    def keys(self) -> pa.Array:
        return key_lists(self._properties)

    def tags(self) -> pa.Array:
        return self._properties.values(Property.TAGS)

    def body(self) -> pa.Array:
        return self._bodies

    def properties(self) -> pa.Array:
        if not self._include_properties:
            return pa.nulls(len(self._fields), ARROW_TYPES["properties"])
        return self._properties.maps()

    def born_timestamp(self) -> pa.Array:
        return _times(self._fields.born_timestamp)

    def store_timestamp(self) -> pa.Array:
        return _times(self._fields.store_timestamp)

    def reconsume_times(self) -> pa.Array:
        return _int32(self._fields.reconsume_times)

    def born_host(self) -> pa.Array:
        return self._hosts(born=True)

    def store_host(self) -> pa.Array:
        return self._hosts(born=False)

    def _hosts(self, *, born: bool) -> pa.Array:
        fields = self._fields
        if fields.is_wide:
            return pa.array([unpack_host(host) for host in fields.packed_hosts(born=born)])
        packed = fields.hosts(born=born)
        if (packed == packed[0]).all():
            return _repeated(_host(int(packed[0])), len(fields))
        encoded = pc.dictionary_encode(pa.array(packed))
        names = pa.array([_host(host) for host in encoded.dictionary.to_pylist()], pa.string())
        return names.take(encoded.indices)

    def sys_flag(self) -> pa.Array:
        return _int32(self._fields.sys_flag)


_BUILDERS: Final[dict[str, Callable[[BatchColumns], pa.Array]]] = {
    name: getattr(BatchColumns, name) for name in ALL
}


def properties_of(buffer: memoryview, fields: RecordFields) -> PropertyTable:
    """The properties of the records, not parsed yet."""
    start = fields.find_tail(buffer).properties_start
    return PropertyTable(Pieces(pa.py_buffer(buffer), start, fields.end).all())


def key_lists(table: PropertyTable) -> pa.Array:
    """The keys of each message; null for one without."""
    joined = table.values(Property.KEYS)
    kind = ARROW_TYPES["keys"]
    content = np.frombuffer(joined.buffers()[2] or b"", np.uint8)
    # Any kind of white space may separate two keys; most messages have one key.
    if len(content) and (content.min() <= ord(" ") or content.max() > ord("~")):
        split = [None if keys is None else keys.split() for keys in joined.to_pylist()]
        return pa.array(split, kind)
    ends = np.cumsum(np.asarray(joined.is_valid()))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    valid = joined.buffers()[0] if joined.null_count else None
    return pa.Array.from_buffers(
        kind, len(joined), [valid, pa.py_buffer(offsets)], children=[joined.drop_null()]
    )


def _host(packed: int) -> str:
    return unpack_host(packed.to_bytes(8, "big", signed=True))


@functools.lru_cache(maxsize=16)
def _repeated(value: str, count: int) -> pa.Array:
    """A column with one value; the next batch usually needs the same one."""
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _int32(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.astype(np.int32))


def _times(millis: Numbers) -> pa.Array:
    if len(millis) and (millis.min() < _FIRST_MS or millis.max() > _LAST_MS):
        millis = np.clip(millis, _FIRST_MS, _LAST_MS)
    micros = millis * 1000
    return pa.Array.from_buffers(_TIME, len(micros), [None, pa.py_buffer(micros)])


def micros(millis: int) -> int:
    """A time as the columns of times have it."""
    return min(max(millis, _FIRST_MS), _LAST_MS) * 1000
