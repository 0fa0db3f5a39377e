"""Recall handles: what a producer shows to take a timer message back before it is due.

    base64url of "v1 <topic> <broker name> <time> <unique id>", with padding

The time is that of the message's slot in the timer wheel plus one millisecond, so that rounding
finds the same slot again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from penstock.errors import InvalidArgument

_VERSION: Final = "v1"
_ITEMS: Final = 5
_MAX_HANDLE: Final = 4096
_MAX_DIGITS: Final = 18


class RecallHandle(NamedTuple):
    """The items of a handle."""

    topic: str
    broker_name: str
    time_text: str
    """As it is in the handle: a broker checks the topic first."""
    unique_id: str

    @property
    def time_ms(self) -> int | None:
        """The time; None if it is no number."""
        text = self.time_text
        is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        return int(text) if is_number else None


def encode_handle(topic: str, broker_name: str, time_ms: int, unique_id: str) -> str:
    """The handle of a timer message."""
    text = f"{_VERSION} {topic} {broker_name} {time_ms} {unique_id}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(handle: str) -> RecallHandle:
    """The items of a handle; `InvalidArgument` if it is none."""
    if not 0 < len(handle) <= _MAX_HANDLE:
        raise _invalid(handle)
    padded = handle.rstrip("=") + "=" * (-len(handle.rstrip("=")) % 4)
    try:
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise _invalid(handle) from error
    version, *items = text.split(" ")
    if version != _VERSION or len(items) < _ITEMS - 1:
        raise _invalid(handle)
    topic, broker_name, time_text, unique_id = items[: _ITEMS - 1]
    return RecallHandle(topic, broker_name, time_text, unique_id)


def _invalid(handle: str) -> InvalidArgument:
    return InvalidArgument(
        f"recall handle is invalid: {handle[:64]!r}",
        expected="the recall_handle of a receipt of a timer message",
    )
