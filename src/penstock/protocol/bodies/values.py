"""Reading and writing the leaves of a body: scalars, enumerations, queues.

A reader raises ``Misfit`` for a value that does not fit; the containers around it put their step
in front of the path as it passes, so the happy path pays nothing for it.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Container, Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

from penstock.errors import ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.fastjson.dialect import FrozenObject, Json, Key, loads

Decode: TypeAlias = Callable[[Json], object]
Encode: TypeAlias = Callable[[Any], Json]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1
_EXACT_FLOAT = 1 << 53


class Between(NamedTuple):
    """Bounds of an integer, both included."""

    least: int
    most: int


INT32_BOUNDS = Between(-(1 << 31), (1 << 31) - 1)
Int32 = Annotated[int, INT32_BOUNDS]


class WireEnum(StrEnum):
    """An enumeration that travels by name; the order of its members is that of Java's ordinals."""


class Misfit(Exception):
    """A value that does not fit; containers put their step in front of the path on its way up."""

    def __init__(self, what: str, expected: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.path = ""

    def under(self, step: str) -> Misfit:
        """The same complaint, one step further from the value."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{step}{joint}{self.path}"
        return self

    def __str__(self) -> str:
        return f"{self.path or 'the body'} {self.what}"


_KINDS: dict[type, str] = {
    dict: "an object",
    FrozenObject: "an object",
    list: "a list",
    tuple: "a list",
    str: "text",
    bool: "a boolean",
}


def misfit(value: Json, expected: str) -> Misfit:
    """The complaint about ``value``."""
    if value is None:
        return Misfit("is missing", expected)
    kind = _KINDS.get(type(value), "a number")
    shown = f" {str(value)[:60]!r}" if isinstance(value, (bool, int, float, str)) else ""
    return Misfit(f"is {kind}{shown}", expected)


def decode_int(value: Json) -> int:
    """An integer, also as text or as a float without a fraction."""
    number = _MAX_INT64 + 1
    if type(value) is int:
        number = value
    elif isinstance(value, str):
        if _INTEGER.fullmatch(value):
            number = int(value)
    elif isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        number = int(value)
    if not _MIN_INT64 <= number <= _MAX_INT64:
        raise misfit(value, "a 64-bit integer")
    return number


def decode_bool(value: Json) -> bool:
    """A boolean, also as text or as 0 and 1."""
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, (int, str)) else ""
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise misfit(value, "true or false")


def decode_float(value: Json) -> float:
    """A finite number, also as text."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise misfit(value, "a number")


def decode_str(value: Json) -> str:
    """Text; numbers and booleans become text, as fastjson makes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise misfit(value, "text")


def decode_bytes(value: Json) -> bytes:
    """Bytes from base64 text."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise misfit(value, "base64 text")


def encode_bytes(value: bytes) -> Json:
    """Bytes as base64 text."""
    return base64.b64encode(value).decode()


def same(value: Any) -> Json:
    """A value that is JSON already."""
    return cast("Json", value)


def decode_any(value: Json) -> object:
    """Any JSON value."""
    return value


SCALARS: dict[object, tuple[Decode, Encode]] = {
    bool: (decode_bool, same),
    int: (decode_int, same),
    float: (decode_float, same),
    str: (decode_str, same),
    bytes: (decode_bytes, encode_bytes),
    object: (decode_any, same),
}


def bounded(bounds: Between) -> Callable[[Json], int]:
    """A reader of integers within bounds."""
    least, most = bounds

    def decode(value: Json) -> int:
        number = decode_int(value)
        if not least <= number <= most:
            raise misfit(value, f"{least} to {most}")
        return number

    return decode


_decode_int32 = bounded(INT32_BOUNDS)


def folded(name: str) -> str:
    """A member's name without what the spellings of different languages differ in."""
    return name.replace("_", "").replace("-", "").lower()


def other_spellings(value: Mapping[Any, Json], known: Container[str]) -> dict[str, Json]:
    """The members that are not ``known`` as they are spelt, by their folded names.

    The .NET client writes ClientID and GroupName: the JSON library of RocketMQ 4 overlooks case,
    underlines and hyphens, and a heartbeat that is refused leaves a consumer without messages.
    """
    return {
        folded(name): member
        for name, member in value.items()
        if type(name) is str and name not in known and member is not None
    }


_QUEUE_MEMBERS = ("topic", "brokerName", "queueId")


def decode_queue(value: Json) -> MessageQueue:
    """A queue from its object."""
    members: Mapping[Any, Json]
    if isinstance(value, FrozenObject):
        members = value.members()
    elif isinstance(value, dict):
        members = value
    else:
        raise misfit(value, "a message queue")
    if not all(name in members for name in _QUEUE_MEMBERS):
        respelt = other_spellings(members, _QUEUE_MEMBERS)
        members = {name: members.get(name, respelt.get(folded(name))) for name in _QUEUE_MEMBERS}
    step = "topic"
    try:
        topic = decode_str(members.get(step))
        step = "brokerName"
        broker_name = decode_str(members.get(step))
        step = "queueId"
        return MessageQueue(topic, broker_name, _decode_int32(members.get(step)))
    except Misfit as wrong:
        raise wrong.under(step) from None


def encode_queue(queue: MessageQueue) -> Json:
    """A queue as an object."""
    topic, broker_name, queue_id = queue
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def decode_queue_key(key: Json) -> MessageQueue:
    """A queue that is the key of a map."""
    # Some tools quote the whole object; fastjson before 2.0 reads that, so do we.
    if isinstance(key, str) and key.startswith("{"):
        try:
            return decode_queue(loads(key.encode()))
        except (ProtocolError, UnicodeEncodeError):
            raise misfit(key, "a message queue") from None
    return decode_queue(key)


def encode_queue_key(queue: MessageQueue) -> Key:
    """A queue as the key of a map."""
    topic, broker_name, queue_id = queue
    return FrozenObject((("brokerName", broker_name), ("queueId", queue_id), ("topic", topic)))


def enumeration(cls: type[WireEnum]) -> Decode:
    """A reader of an enumeration: by name, or by ordinal as the C++ client sends them."""
    by_name = {member.value: member for member in cls}
    by_fold = {folded(member.value): member for member in cls}
    by_ordinal = list(cls)
    expected = ", ".join(by_name) + ", or an ordinal"

    def decode(value: Json) -> WireEnum:
        if isinstance(value, str) and value in by_name:
            return by_name[value]
        if isinstance(value, str) and (member := by_fold.get(folded(value))) is not None:
            return member
        try:
            ordinal = decode_int(value)
        except Misfit:
            ordinal = -1
        if 0 <= ordinal < len(by_ordinal) and not isinstance(value, bool):
            return by_ordinal[ordinal]
        raise misfit(value, expected)

    return decode
