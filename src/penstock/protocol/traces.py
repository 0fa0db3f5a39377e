"""Message traces: the life of each message, as clients report it to a trace topic.

The text of Java's TraceDataEncoder. A trace message has one entry after the other, each ended by
0x02; an entry is its kind and the fields of its class here, in their order, separated by 0x01. An
absent value is written ``null``, as Java does: its reader drops empty fields at the end of a line.

    Pub 0x01 1794823803130 0x01 DefaultRegion 0x01 shop 0x01 orders ... 0x01 true 0x02

Times are epoch milliseconds, costs milliseconds.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import Field, astuple, dataclass, fields
from typing import Any, ClassVar, Final, TypeAlias

DEFAULT_REGION: Final = "DefaultRegion"
_FIELD: Final = "\x01"
_ENTRY: Final = "\x02"
_NULL: Final = "null"
_MAX_ENTRIES: Final = 10_000

RETURN_CODES: Final = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")
"""How a handler call ended; the code is the place in this list (Java's ConsumeReturnType)."""


class TracedType:
    """What kind of message it is: the places of Java's MessageType."""

    NORMAL: Final = 0
    HALF: Final = 1
    COMMIT: Final = 2
    DELAY: Final = 3


@dataclass(frozen=True, slots=True)
class Published:
    """A message was sent, and the broker answered."""

    kind: ClassVar[str] = "Pub"

    time_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_msg_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class ConsumeBegun:
    """A handler was called with a message; ``request_id`` ties it to its end."""

    kind: ClassVar[str] = "SubBefore"

    time_ms: int
    region: str
    group: str
    request_id: str
    msg_id: str
    retries: int
    keys: str = ""


@dataclass(frozen=True, slots=True)
class ConsumeEnded:
    """The handler returned; ``code`` is the place of how it did in `RETURN_CODES`.

    The last two are missing in what earlier releases write.
    """

    kind: ClassVar[str] = "SubAfter"

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str = ""
    code: int = 0
    time_ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A producer decided about a transaction."""

    kind: ClassVar[str] = "EndTransaction"

    time_ms: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    from_check: bool


Trace: TypeAlias = Published | ConsumeBegun | ConsumeEnded | TransactionEnded


def encode_trace(trace: Trace) -> str:
    """One entry, its end included."""
    return _FIELD.join((trace.kind, *map(_text, astuple(trace)))) + _ENTRY


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or _NULL


def decode_traces(body: bytes) -> list[Trace]:
    """The entries of a trace message; one that cannot be read is left out."""
    found: list[Trace] = []
    for entry in body.decode("utf-8", "replace").split(_ENTRY)[:_MAX_ENTRIES]:
        kind, *values = entry.split(_FIELD)
        trace_type = _TYPES.get(kind)
        if trace_type is not None:
            with suppress(TypeError, ValueError):
                found.append(trace_type(*map(_value, values, fields(trace_type))))
    return found


def _value(text: str, wanted: Field[object]) -> object:
    if wanted.type == "int":
        return 0 if text == _NULL else int(text)
    if wanted.type == "bool":
        return text == "true"
    return "" if text == _NULL else text


_TYPES: Final[dict[str, Any]] = {
    one.kind: one for one in (Published, ConsumeBegun, ConsumeEnded, TransactionEnded)
}
