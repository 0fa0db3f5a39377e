"""Durations as users write them: seconds, a `timedelta`, or text such as ``"10s"`` or ``"2h"``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from penstock.errors import InvalidArgument

Duration = float | int | str | timedelta

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MAX_TEXT = 64


def seconds(duration: Duration, *, allow_negative: bool = False) -> float:
    """A duration in seconds.

    Text is a number with a unit (``ms s m h d``), several of them in a row (``"1h 30m"``), or a
    bare number, which counts seconds like the number itself.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        value = _parse(duration)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        value = float(duration)
    else:
        raise _refused(duration)
    if not math.isfinite(value) or (value < 0 and not allow_negative):
        raise _refused(duration)
    return value


def milliseconds(duration: Duration) -> int:
    """A duration in whole milliseconds, as the protocol carries it."""
    return round(seconds(duration) * 1000)


def _parse(text: str) -> float:
    stripped = text.strip()
    sign = 1.0
    if stripped.startswith("-"):
        sign, stripped = -1.0, stripped[1:].lstrip()
    if not stripped or len(stripped) > _MAX_TEXT:
        raise _refused(text)
    if _PLAIN_NUMBER.fullmatch(stripped):
        return sign * float(stripped)
    value = 0.0
    position = 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            raise _refused(text)
        value += float(part[1]) * _UNIT_SECONDS[part[2].lower()]
        position = part.end()
    return sign * value


def _refused(duration: object) -> InvalidArgument:
    shown = repr(duration)
    return InvalidArgument(
        f"{shown[:_MAX_TEXT]} is not a duration",
        expected='seconds, a timedelta, or text such as "500ms", "10s", "1h30m"',
    )
