"""What rows are called: names in a property, and the unique ids that follow from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.buffers import Numbers, fixed
from penstock.protocol.extensions import ROW_BY_ID, ROW_NAME

ROW_PROPERTY: Final = ROW_NAME
"""Key of the property that identifies a row: query/batch/partition/row, or query/batch/id/ID.

One property, to keep it short: it is sent and stored with every row.
"""
_PREFIX_BYTES: Final = 10
_HEX: Final = np.frombuffer(b"".join(b"%04X" % number for number in range(1 << 16)), dtype="S4")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of rows: a query or a write, its micro-batch, the task's partition."""

    query: str
    batch: int
    partition: int

    @property
    def common(self) -> bytes:
        """The row property of all messages of a task, up to the row number."""
        return f"{ROW_PROPERTY}\x01{self.query}/{self.batch}/{self.partition}/".encode()

    @property
    def common_to_ids(self) -> bytes:
        """The same for rows with ids of their own, which may be in any partition of the batch."""
        return f"{ROW_PROPERTY}\x01{self.query}/{self.batch}/{ROW_BY_ID}/".encode()

    @property
    def id_prefix(self) -> bytes:
        """What makes the user's id of a row the id of this row in this batch.

        In update mode each batch sends rows with the same ids again, and these are other messages,
        also if their bodies are those of an earlier batch.
        """
        return _digest(f"{self.query}/{self.batch}").encode() + b"-"


class RowIds:
    """Unique message ids of one task: a constant part, then a counter of 32 bits.

    RocketMQ's scheme (`protocol.records.message_ids`) has 48 bits there, milliseconds and a
    counter; here the milliseconds begin at the start of the task, so that tools still read a time,
    or at 0 where ids follow from names.
    """

    def __init__(self, prefix: str, elapsed_ms: int) -> None:
        self._prefix = prefix
        self._high = elapsed_ms
        self._next = 0

    @classmethod
    def of(cls, origin: Origin) -> RowIds:
        """The ids that follow from the names of rows: the same whenever a task runs again."""
        name = f"{origin.query}/{origin.batch}/{origin.partition}"
        return cls(_digest(name), 0)

    def text(self, row: int) -> str:
        """The id of one row, by its number."""
        number = (self._high << 16) + row
        return f"{self._prefix}{number & 0xFFFF_FFFF_FFFF:012X}"

    def take(self, count: int) -> tuple[Numbers, Numbers]:
        """The two variable parts of the next ``count`` ids: milliseconds and counter."""
        numbers = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        high = (self._high + (numbers >> 16)) & 0xFFFF_FFFF
        return high, numbers & 0xFFFF

    def columns(self, count: int) -> pa.Array:
        """The next ``count`` ids."""
        high, low = self.take(count)
        text = np.empty((count, 3), dtype="S4")
        text[:, 0] = _HEX[high >> 16]
        text[:, 1] = _HEX[high & 0xFFFF]
        text[:, 2] = _HEX[low]
        tails = fixed(text.tobytes(), count, 12)
        return pc.binary_join_element_wise(self._prefix.encode(), tails, b"")


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper()
