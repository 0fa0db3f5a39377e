"""The columns of messages as a table, and their Arrow types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", "UTC")

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {
        "topic": _TEXT,
        "broker": _TEXT,
        "queue_id": pa.int32(),
        "offset": pa.int64(),
        "msg_id": _TEXT,
        "keys": pa.list_(pa.field("element", _TEXT)),
        "tags": _TEXT,
        "body": pa.binary(),
        "properties": pa.map_(_TEXT, _TEXT),
        "born_timestamp": _TIME,
        "store_timestamp": _TIME,
        "reconsume_times": pa.int32(),
        "born_host": _TEXT,
        "store_host": _TEXT,
        "sys_flag": pa.int32(),
    }
)
"""The Arrow type of every column, in the order of the default schema."""

ALL: Final = tuple(ARROW_TYPES)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of batches with these columns."""
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in names])
