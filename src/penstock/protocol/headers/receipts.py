"""Texts inside pop headers: receipt handles, and which offsets a pop handed out.

A pop answer names its offsets per queue; the client makes a receipt handle of them for every
message, and hands it back to acknowledge:

    startOffsetInfo   flag queue start                 joined by ;       0 3 100;1 0 5
    msgOffsetInfo     flag queue offset,offset,...     joined by ;       0 3 100,101,103;1 0 5
    orderCountInfo    flag queue times                 joined by ;       0 3 2
                      or, for one message, flag qo<queue>%<offset> times
    handle            start popTime invisibleTime reviveQueue flag brokerName queue offset

``flag`` says whose queue it is: 0 the topic's, 1 and 2 its retry topic's, in two spellings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.protocol.headers.codec import read_int64

NORMAL_TOPIC: Final = 0
RETRY_TOPIC_V1: Final = 1
RETRY_TOPIC_V2: Final = 2
ORDERLY_REVIVE_QUEUE: Final = 999
"""The revive queue of an orderly pop, which has none."""

_HANDLE_ITEMS: Final = 8
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1


class FlaggedQueue(NamedTuple):
    """A queue of the topic or of one of its retry topics."""

    flag: int
    queue_id: int


class ReceiptHandle(NamedTuple):
    """What a popped message is acknowledged by."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    flag: int
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        items = text.split(" ", _HANDLE_ITEMS + 2)
        if len(items) >= _HANDLE_ITEMS:
            # Proxies add the log position of the record, or two more items; nothing needs them.
            del items[_HANDLE_ITEMS:]
            broker_name = items.pop(5)
            try:
                numbers = list(map(int, items))
            except ValueError:
                numbers = []
            # All at once: a handle is read for every acknowledgement.
            if numbers and min(numbers) >= _LEAST and max(numbers) <= _GREATEST:
                start, popped, invisible, revive, flag, queue_id, offset = numbers
                return cls(start, popped, invisible, revive, flag, broker_name, queue_id, offset)
        raise ProtocolError(
            f"receipt handle {text[:100]!r}",
            expected="eight items or more with blanks between, all but the broker's name numbers",
        )

    def __str__(self) -> str:
        start, popped, invisible, revive, flag, broker_name, queue_id, offset = self
        return f"{start} {popped} {invisible} {revive} {flag} {broker_name} {queue_id} {offset}"


def parse_start_offsets(text: str | None) -> dict[FlaggedQueue, int]:
    """The first offset per queue of a pop answer."""
    return {queue: _number(item, text) for queue, item in _entries(text)}


def format_start_offsets(starts: Mapping[FlaggedQueue, int]) -> str:
    return ";".join(f"{flag} {queue_id} {start}" for (flag, queue_id), start in starts.items())


def parse_message_offsets(text: str | None) -> dict[FlaggedQueue, list[int]]:
    """The offsets per queue of a pop answer, in the order of its messages."""
    return {
        queue: [_number(offset, text) for offset in item.split(",")]
        for queue, item in _entries(text)
    }


def format_message_offsets(offsets: Mapping[FlaggedQueue, Sequence[int]]) -> str:
    return ";".join(
        f"{flag} {queue_id} {','.join(map(str, items))}"
        for (flag, queue_id), items in offsets.items()
    )


def parse_order_counts(text: str | None) -> dict[tuple[FlaggedQueue, int | None], int]:
    """How often messages of an orderly pop were handed out: per queue, or per offset in it."""
    counts: dict[tuple[FlaggedQueue, int | None], int] = {}
    for entry in text.split(";") if text else ():
        flag, queue, times = _items(entry)
        queue_id, of_message, offset = queue.removeprefix("qo").partition("%")
        flagged = FlaggedQueue(_number(flag, text), _number(queue_id, text))
        counts[flagged, _number(offset, text) if of_message else None] = _number(times, text)
    return counts


def format_order_counts(counts: Mapping[tuple[FlaggedQueue, int | None], int]) -> str:
    return ";".join(
        f"{flag} {queue_id} {times}" if offset is None else f"{flag} qo{queue_id}%{offset} {times}"
        for ((flag, queue_id), offset), times in counts.items()
    )


def _entries(text: str | None) -> list[tuple[FlaggedQueue, str]]:
    entries: list[tuple[FlaggedQueue, str]] = []
    for entry in text.split(";") if text else ():
        flag, queue_id, rest = _items(entry)
        entries.append((FlaggedQueue(_number(flag, text), _number(queue_id, text)), rest))
    return entries


def _items(entry: str) -> list[str]:
    items = entry.split(" ")
    if len(items) != 3:
        raise ProtocolError(
            f"pop entry {entry[:100]!r}", expected="three items with blanks between"
        )
    return items


def _number(item: str, text: str | None) -> int:
    try:
        return read_int64(item)
    except ValueError:
        raise ProtocolError(
            f"{item[:40]!r} in pop offsets {(text or '')[:100]!r}", expected="a 64-bit integer"
        ) from None
