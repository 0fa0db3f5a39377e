"""Records of one queue that are ready but for their places: all of one size, packed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.model.properties import KEYS, TAGS, UNIQUE_KEY
from penstock.model.record_layout import head_part
from penstock.store.bulk.batch_encoding import EncodedBatch
from penstock.store.bulk.rows import pack_rows

START_BYTES: Final = head_part("size", "flag").size
MIDDLE_BYTES: Final = head_part("sys_flag", "born_host").size
_PLACE_BYTES: Final = head_part("queue_offset", "log_position").size
_TIME_BYTES: Final = 8
_BEFORE_END: Final = START_BYTES + _PLACE_BYTES + MIDDLE_BYTES + _TIME_BYTES


class RecordRows(NamedTuple):
    """What the records of one queue consist of besides their places and the time."""

    size: int
    """That of each record."""
    sys_flag: int
    starts: Sequence[bytes]
    """Size to flag."""
    middles: Sequence[bytes]
    """System flag to the host of the sender."""
    ends: Sequence[bytes]
    """From the host of the store on."""
    properties: Sequence[bytes]

    def part(self, start: int, stop: int) -> RecordRows:
        """Some of them."""
        columns = (self.starts, self.middles, self.ends, self.properties)
        return RecordRows(self.size, self.sys_flag, *(column[start:stop] for column in columns))


def encode_rows(
    rows: RecordRows, queue_offset: int, position: int, now: int
) -> tuple[bytes, EncodedBatch]:
    """The records from these offsets on."""
    size, _, starts, middles, ends, properties = rows
    count = len(starts)
    positions = range(position, position + count * size, size)
    records = pack_rows(
        f"{START_BYTES}sqq{MIDDLE_BYTES}sq{size - _BEFORE_END}s",
        count,
        [b"", 0, 0, b"", now, b""],
        {
            0: starts,
            1: range(queue_offset, queue_offset + count),
            2: positions,
            3: middles,
            5: ends,
        },
    )
    blob = b"".join(properties)
    is_plain = not (UNIQUE_KEY in blob or KEYS in blob or TAGS in blob)
    width = len(properties[0])
    return records, EncodedBatch(positions, [size] * count, properties, blob, width, is_plain)
