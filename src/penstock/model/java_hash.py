"""Java's ``String.hashCode``: of tags, of sharding keys, of index keys."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def utf16_units(text: str) -> Iterable[int]:
    """The code units that Java sees; a character outside the basic plane counts as two."""
    if text.isascii():
        return text.encode()
    wide = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(wide) // 2}H", wide)


def hash_units(units: Iterable[int], value: int = 0) -> int:
    """The unsigned hash of ``units`` that follow a text with the hash ``value``."""
    for unit in units:
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value


def java_hash(text: str) -> int:
    """``String.hashCode``: signed 32 bits over the UTF-16 code units."""
    value = hash_units(utf16_units(text))
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
