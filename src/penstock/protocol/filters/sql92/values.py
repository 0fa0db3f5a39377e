"""The comparison of two values in a SQL92 filter, with Java's conversions as RocketMQ uses them.

Properties are texts. Numbers come from literals only and are Java's Integer (``int``, 32 bits),
Long (``Long``) or Double (``float``). A text compared with a number is converted to the type of the
number; if this fails, the two are `Incomparable`.
"""

from __future__ import annotations

import math
import re

_INTEGER_BITS = 31
_LONG_BITS = 63
_MAX_INTEGER_TEXT = 4096
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]+")
_DOUBLE_TEXT = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)


class Long(int):
    """A whole number that a Java Long holds; a plain ``int`` here is a Java Integer."""

    __slots__ = ()


Value = str | bool | int | float


class Incomparable(Exception):
    """Two values that cannot be compared; the message does not match."""


def number_from_literal(text: str) -> Value | None:
    """The number a literal stands for; ``None`` if it is out of range."""
    digits = text.rstrip("lL")
    if not digits.isdigit():
        number = float(text)
        return number if math.isfinite(number) else None
    if len(digits) > len(str(1 << _LONG_BITS)):
        return None
    whole = int(digits)
    if whole >> _INTEGER_BITS == 0:
        return whole
    return Long(whole) if whole >> _LONG_BITS == 0 else None


def compare_ordered(first: Value, second: Value) -> int:
    """As `compare`, for ``<`` and the like: two texts compare as decimal numbers."""
    if isinstance(first, str) and isinstance(second, str):
        return _compare_doubles(_double(first), _double(second))
    return compare(first, second)


def compare(first: Value, second: Value) -> int:
    """Negative, 0 or positive as ``first`` is less than, equal to or greater than ``second``."""
    if isinstance(first, str):
        if isinstance(second, str):
            return (first > second) - (first < second)
        if isinstance(second, bool):
            return (first.lower() == "true") - second
        return _compare_numbers(_number_like(second, first), second)
    if isinstance(first, bool):
        if isinstance(second, bool):
            return first - second
        if isinstance(second, str):
            # RocketMQ fails here (it casts the wrong side), so no broker has a result.
            raise Incomparable
        return -1
    if isinstance(second, bool):
        return -1
    if isinstance(second, str):
        return _compare_numbers(first, _number_like(first, second))
    return _compare_numbers(first, second)


def _compare_numbers(first: int | float, second: int | float) -> int:
    if isinstance(first, float) or isinstance(second, float):
        return _compare_doubles(float(first), float(second))
    return (first > second) - (first < second)


def _compare_doubles(first: float, second: float) -> int:
    if math.isnan(first) or math.isnan(second):
        # Double.compareTo: NaN equals itself and is greater than everything else.
        return math.isnan(first) - math.isnan(second)
    if first == second == 0.0:
        return int(math.copysign(1, first) - math.copysign(1, second))
    return (first > second) - (first < second)


def _number_like(sample: int | float, text: str) -> int | float:
    """``text`` as a number of the sample's type."""
    if isinstance(sample, float):
        return _double(text)
    # Check the length first: Python limits the digits that int() converts.
    if len(text) > _MAX_INTEGER_TEXT or not _INTEGER_TEXT.fullmatch(text):
        raise Incomparable
    number = int(text)
    bits = _LONG_BITS if isinstance(sample, Long) else _INTEGER_BITS
    if not -(1 << bits) <= number < 1 << bits:
        raise Incomparable
    return number


def _double(text: str) -> float:
    text = text.strip(" \t\n\r\f\v\x00")
    if not _DOUBLE_TEXT.fullmatch(text):
        raise Incomparable
    return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
