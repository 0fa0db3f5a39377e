"""The responses of which there is one for each message, as bytes.

A fast path: an object of protobuf for each part of a message takes three times as long. Its
specification are the objects that the handlers make; the bytes are the same.

A field is a tag, ``number << 3 | kind``, and its value: a varint, or a length and bytes. Fields
without a value are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_MAX_SHORT: Final = 1024
_MAX_HOSTS: Final = 256
_MAX_TIMES: Final = 1024
"""Messages that are stored together have their times in common."""


def _varint(value: int) -> bytes:
    made = bytearray()
    if value < 0:
        # As a number of 64 bits, of which the first one is the sign.
        value += 1 << 64
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SHORT: Final = tuple(map(_varint, range(_MAX_SHORT)))


def varint(value: int) -> bytes:
    """A number of 64 bits, or fewer."""
    return _SHORT[value] if 0 <= value < _MAX_SHORT else _varint(value)


def field(tag: bytes, content: bytes) -> bytes:
    """A text or a message, with its length."""
    size = len(content)
    return tag + (_SHORT[size] if size < _MAX_SHORT else _varint(size)) + content


def text(tag: bytes, value: str) -> bytes:
    """A text; nothing if it is empty."""
    return field(tag, value.encode()) if value else b""


@lru_cache(_MAX_HOSTS)
def host(tag: bytes, value: str) -> bytes:
    """The `text` of an address, of which there are few."""
    return text(tag, value)


def number(tag: bytes, value: int) -> bytes:
    """A number; nothing if it is 0."""
    return tag + varint(value) if value else b""


@lru_cache(_MAX_TIMES)
def timestamp(tag: bytes, time_ms: int) -> bytes:
    """A Timestamp of milliseconds since 1970."""
    seconds, rest = divmod(time_ms, 1000)
    return field(tag, number(b"\x08", seconds) + number(b"\x10", rest * 1_000_000))


def send_response(status: bytes, message_id: str, offset: int, recall_handle: str) -> bytes:
    """A SendMessageResponse with one entry; ``status`` are the bytes of a Status."""
    id_ = message_id.encode()
    common = field(b"\x0a", status)
    entry = (
        common
        + field(b"\x12", id_)
        + field(b"\x1a", id_)
        + number(b"\x20", offset)
        + text(b"\x2a", recall_handle)
    )
    return common + field(b"\x12", entry)


def ack_response(status: bytes, message_id: str, receipt_handle: str) -> bytes:
    """An AckMessageResponse with one entry; ``status`` are the bytes of a Status."""
    entry = text(b"\x0a", message_id) + text(b"\x12", receipt_handle) + field(b"\x1a", status)
    return field(b"\x0a", status) + field(b"\x12", entry)


def receive_response(
    topic: str,
    user_properties: Iterable[tuple[str, str]],
    system_properties: bytes,
    body: bytes,
) -> bytes:
    """A ReceiveMessageResponse with a message; the system properties are bytes already."""
    entries = [
        field(b"\x12", field(b"\x0a", key.encode()) + field(b"\x12", value.encode()))
        for key, value in user_properties
    ]
    message = b"".join(
        (
            field(b"\x0a", text(b"\x12", topic)),
            *entries,
            field(b"\x1a", system_properties),
            field(b"\x22", body) if body else b"",
        )
    )
    return field(b"\x12", message)
