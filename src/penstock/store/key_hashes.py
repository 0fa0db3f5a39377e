"""Java's string hash, of one key or of many at once.

The hash of a text of n characters is the sum of character * 31^(n-1-i), modulo 2^32; the index
keeps its absolute value, of ``topic#key``. Every message has a key, its unique id, so this is on
the way of every append.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import mul

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
MAX_SHORT_KEY = 64
POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(MAX_SHORT_KEY + 1))
_FACTORS = tuple(tuple(reversed(POWERS[:length])) for length in range(MAX_SHORT_KEY + 1))
_LAST = 8
_LAST_FACTORS = _FACTORS[_LAST]
_MAX_CACHED_HEADS = 4096
_head_hashes: dict[bytes, int] = {}


def _utf16(text: bytes) -> tuple[int, ...]:
    """What Java sees of a UTF-8 text: characters outside the basic plane are two."""
    wide = text.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(wide) // 2}H", wide)


def _hash(units: Iterable[int], value: int = 0) -> int:
    for unit in units:
        value = (31 * value + unit) & _MASK
    return value


class TopicHash:
    """Hashes of ``topic#key`` for one topic, without a loop in Python for most keys.

    Ids of one producer differ in their last characters only, so the hash of what comes before
    them is remembered.
    """

    __slots__ = ("of_topic",)

    def __init__(self, topic: bytes) -> None:
        self.of_topic = _hash(_utf16(topic + b"#"))
        """The hash of ``topic#``, which a key of n characters moves up by 31^n."""

    def of(self, key: bytes) -> int:
        """The absolute value of Java's hash; the smallest number has none and counts as 0."""
        length = len(key)
        if length <= MAX_SHORT_KEY and key.isascii():
            if length <= 2 * _LAST:
                value: int = self.of_topic * POWERS[length] + sum(map(mul, key, _FACTORS[length]))
            else:
                head = _head_hashes.get(key[:-_LAST])
                if head is None:
                    head = _remember_head(key[:-_LAST])
                value = (
                    self.of_topic * POWERS[length]
                    + head
                    + sum(map(mul, key[-_LAST:], _LAST_FACTORS))
                )
            value &= _MASK
        else:
            value = _hash(_utf16(key), self.of_topic)
        if value & _SIGN:
            value = (1 << 32) - value
            return 0 if value == _SIGN else value
        return value


def _remember_head(head: bytes) -> int:
    if len(_head_hashes) >= _MAX_CACHED_HEADS:
        _head_hashes.clear()
    value = _hash(head) * POWERS[_LAST]
    _head_hashes[head] = value
    return value


# Many keys are hashed at once, as digits of one large number. A key takes a lane of 32 bytes,
# zeros in front, which add nothing to its hash. Each step folds neighbours together: characters
# to pairs, high * 31 + low, pairs to fours, high * 31^2 + low, and so on, in all lanes at a time.
# No lane overflows, since 31 is less than the 256 that a byte is worth in its place.
_LANE_BYTES = 32
_LANES = 64


def _fold(width: int) -> tuple[int, int, int]:
    """The bits of one half of a fold, the mask of all low halves, the factor of the high ones."""
    mask = (bytes(width) + b"\xff" * width) * (_LANES * _LANE_BYTES // (2 * width))
    return width * 8, int.from_bytes(mask, "big"), 31**width


_FOLDS = tuple(_fold(width) for width in (1, 2, 4, 8, 16))
_unpack_lanes = tuple(struct.Struct(">" + "28xI" * count).unpack for count in range(_LANES + 1))

IndexEntry = tuple[int, int, int]
"""A key on its way into the index: its hash, log position and store timestamp of its message."""

Keyed = tuple[TopicHash, bytes, int, int]
"""A key to be hashed: its topic, itself, log position and store timestamp of its message."""


def hash_keys(keys: Sequence[Keyed]) -> list[IndexEntry]:
    """What the index keeps of each key; the same numbers as ``TopicHash.of`` gives."""
    entries: list[IndexEntry] = []
    for start in range(0, len(keys), _LANES):
        group = keys[start : start + _LANES]
        lanes = b"".join([key.rjust(_LANE_BYTES, b"\0") for _, key, _, _ in group])
        size = len(group) * _LANE_BYTES
        if len(lanes) != size or not lanes.isascii():
            entries += [(topic.of(key), position, time) for topic, key, position, time in group]
            continue
        sums = int.from_bytes(lanes, "big")
        for shift, mask, factor in _FOLDS:
            sums = (sums >> shift & mask) * factor + (sums & mask)
        hashes = _unpack_lanes[len(group)](sums.to_bytes(size, "big"))
        for (topic, key, position, time), hashed in zip(group, hashes, strict=True):
            value = topic.of_topic * POWERS[len(key)] + hashed & _MASK
            if value & _SIGN:
                value = 0 if value == _SIGN else (1 << 32) - value
            entries.append((value, position, time))
    return entries
