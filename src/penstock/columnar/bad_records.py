"""Records that cannot be given as they were sent, and what becomes of them.

Two kinds of records have no body to give. A *damaged* one changed after it was stored: its body
does not have the checksum that the record states, or its lengths do not add up. An *unreadable*
one is whole, but its sender announced a compressed body or an inner batch that the body is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ProtocolError
from penstock.model.record_layout import MAGIC_V1, MAGIC_V2, head_offset
from penstock.protocol.records.codec import Record, decode_record

_MAGIC: Final = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2))
)
_MAGIC_POSITION: Final = head_offset("magic")


UNKNOWN_OFFSET: Final = -1


class BadRecord(NamedTuple):
    """One such record; a damaged head may have a wrong queue offset."""

    queue_offset: int
    """`UNKNOWN_OFFSET` if no record before it says which one follows."""
    why: str
    is_damaged: bool

    @property
    def what(self) -> str:
        """Which message it is, for errors."""
        if self.queue_offset < 0:
            return "a message at an unknown offset"
        return f"the message at offset {self.queue_offset}"


OnBad = Callable[[BadRecord], None]
"""Called for each bad record. It raises, or the record is skipped; if only its body is bad, the
row is kept and its body is null."""


def refuse_damage(bad: BadRecord) -> None:
    """Raise for damage; an unreadable body is null."""
    if bad.is_damaged:
        raise ProtocolError(f"{bad.what} is damaged: {bad.why}")


def whole_among(
    buffer: memoryview,
    starts: npt.NDArray[np.int64],
    listed: npt.NDArray[np.int64] | None,
    on_bad: OnBad,
) -> npt.NDArray[np.bool_]:
    """A mask of the whole records among those at ``starts``; ``on_bad`` gets the others.

    ``listed`` are the queue offsets that the consume queue has for them.
    """
    is_whole = np.ones(len(starts), np.bool_)
    following = UNKNOWN_OFFSET
    for index, position in enumerate(starts.tolist()):
        expected = following if listed is None else int(listed[index])
        try:
            record = decode_record(buffer, position)
            if listed is not None and record.queue_offset != expected:
                raise ProtocolError(
                    f"a message with queue offset {record.queue_offset}",
                    expected=f"the one with {expected}",
                )
            following = record.queue_offset + 1
        except ProtocolError as error:
            is_whole[index] = False
            on_bad(BadRecord(expected, str(error), is_damaged=True))
            following = _after(expected)
    return is_whole


def salvaged(buffer: memoryview, position: int, on_bad: OnBad) -> npt.NDArray[np.int64]:
    """Where whole records start, from ``position`` on; ``on_bad`` gets what is damaged.

    The size of a damaged record cannot be trusted. So the next one is searched by the number that
    records begin with; it has to be of the same queue and later, since a body may look like one.
    """
    data = bytes(buffer)
    starts: list[int] = []
    last: Record | None = None
    is_searching = False
    while position < len(data):
        try:
            record = decode_record(data, position)
            if is_searching and last is not None and not _follows(record, last):
                raise ProtocolError("a record of another queue")
        except ProtocolError as error:
            if not is_searching:
                expected = UNKNOWN_OFFSET if last is None else last.queue_offset + 1
                on_bad(BadRecord(expected, str(error), is_damaged=True))
            is_searching = True
            position = _next_magic(data, position + 1)
            continue
        is_searching = False
        starts.append(position)
        position += record.size
        last = record
    return np.array(starts, np.int64)


def _after(queue_offset: int) -> int:
    return UNKNOWN_OFFSET if queue_offset < 0 else queue_offset + 1


def _follows(record: Record, last: Record) -> bool:
    return record.queue_id == last.queue_id and record.queue_offset > last.queue_offset


def _next_magic(data: bytes, position: int) -> int:
    """The next position at which a record may start; the end of the data if there is none."""
    found = _MAGIC.search(data, position + _MAGIC_POSITION)
    return len(data) if found is None else found.start() - _MAGIC_POSITION
