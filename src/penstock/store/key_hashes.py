"""Java's string hash, of one key or of many at once.

The hash of a text of n characters is the sum of character * 31^(n-1-i), modulo 2^32; the index
keeps its absolute value, of ``topic#key``. Every message has a key, its unique id, so this is on
the way of every append.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import mul

from penstock.model.java_hash import hash_units, utf16_units

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
MAX_SHORT_KEY = 64
POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(MAX_SHORT_KEY + 1))
_FACTORS = tuple(tuple(reversed(POWERS[:length])) for length in range(MAX_SHORT_KEY + 1))
_LAST = 8
_LAST_FACTORS = _FACTORS[_LAST]
_MAX_CACHED_HEADS = 4096


def _utf16(text: bytes) -> Iterable[int]:
    return utf16_units(text.decode("utf-8", "replace"))


class TopicHash:
    """Hashes of ``topic#key`` for one topic, without a loop in Python for most keys.

    Ids of one producer differ in their last characters only, so the hash of what comes before
    them is remembered.
    """

    __slots__ = ("prefix_hash",)

    def __init__(self, topic: bytes) -> None:
        self.prefix_hash = hash_units(_utf16(topic + b"#"))
        """The hash of ``topic#``, which a key of n characters moves up by 31^n."""

    def hash(self, key: bytes) -> int:
        """The absolute value of Java's hash; the smallest number has none and counts as 0."""
        length = len(key)
        if length <= MAX_SHORT_KEY and key.isascii():
            if length <= 2 * _LAST:
                value: int = self.prefix_hash * POWERS[length] + sum(
                    map(mul, key, _FACTORS[length])
                )
            else:
                value = (
                    self.prefix_hash * POWERS[length]
                    + _head_hash(key[:-_LAST]) * POWERS[_LAST]
                    + sum(map(mul, key[-_LAST:], _LAST_FACTORS))
                )
            value &= _MASK
        else:
            value = hash_units(_utf16(key), self.prefix_hash)
        if value & _SIGN:
            value = (1 << 32) - value
            return 0 if value == _SIGN else value
        return value

    def hash_all(self, head: bytes, ends: Sequence[bytes]) -> list[int]:
        """``hash`` each key that begins with ``head`` and goes on with one of ``ends``.

        These are of one length. The shorter they are, the less there is to do.
        """
        length = len(ends[0])
        if not head and length > _LANE_BYTES:
            # Long ids of one producer: the shorter the lanes, the better.
            shorter = [end[-_LAST:] for end in ends]
            head = ends[0][:-_LAST]
            if head + head.join(shorter) == b"".join(ends):
                ends, length = shorter, _LAST
            else:
                head = b""
        total = len(head) + length
        if total > MAX_SHORT_KEY:
            return [self.hash(head + end) for end in ends]
        width = _WIDTHS[length]
        lanes = b"".join(ends if width == length else [end.rjust(width, b"\0") for end in ends])
        if not (lanes.isascii() and head.isascii()):
            return [self.hash(head + end) for end in ends]
        shared = self.prefix_hash * POWERS[total] + _head_hash(head) * POWERS[length]
        return _absolute(_fold_lanes(lanes, width, shared & _MASK))


@lru_cache(_MAX_CACHED_HEADS)
def _head_hash(head: bytes) -> int:
    return hash_units(head)


# Many keys are hashed at once, as digits of one large number. A key takes a lane, of 32 bytes say,
# zeros in front, which add nothing to its hash. Each step folds neighbours together: characters
# to pairs, high * 31 + low, pairs to fours, high * 31^2 + low, and so on, in all lanes at a time.
# No lane overflows, since 31 is less than the 256 that a byte is worth in its place.
_LANE_BYTES = 32
_GROUP_BYTES = 2048
_LANES = _GROUP_BYTES // _LANE_BYTES
_ENOUGH_ALIKE = 12
"""Fewer keys are not compared with one another."""


def _fold(width: int) -> tuple[int, int, int]:
    """The bits of one half of a fold, the mask of all low halves, the factor of the high ones."""
    mask = (bytes(width) + b"\xff" * width) * (_GROUP_BYTES // (2 * width))
    return width * 8, int.from_bytes(mask, "big"), 31**width


_FOLDS = tuple(_fold(width) for width in (1, 2, 4, 8, 16, 32))
_FOLDS_OF = {
    width: (
        _FOLDS[: width.bit_length() - 1],
        int.from_bytes((bytes(width - 1) + b"\1") * (_GROUP_BYTES // width), "big"),
    )
    for width in (8, 16, 32, 64)
}
"""By the bytes of a lane: how to fold it, and a one in each."""
_WIDTHS = [min(width for width in _FOLDS_OF if width >= key) for key in range(MAX_SHORT_KEY + 1)]
"""By the length of a key: the bytes of its lane."""


def _fold_lanes(lanes: bytes, width: int, shared: int) -> array[int]:
    """The hash of each lane of ``width`` bytes plus ``shared``, as Java has it: with a sign.

    All of ``lanes`` is ASCII.
    """
    hashes = array("i")
    step = width // hashes.itemsize
    folds, ones = _FOLDS_OF[width]
    for start in range(0, len(lanes), _GROUP_BYTES):
        group = lanes[start : start + _GROUP_BYTES]
        sums = int.from_bytes(group, "big")
        for shift, mask, factor in folds:
            sums = (sums >> shift & mask) * factor + (sums & mask)
        sums += (ones >> (_GROUP_BYTES - len(group)) * 8) * shared
        words = array("i", sums.to_bytes(len(group), "little"))
        if sys.byteorder != "little":
            words.byteswap()
        hashes += words[-step::-step]
    return hashes


IndexEntry = tuple[int, int, int]
"""A key on its way into the index: its hash, log position and store timestamp of its message."""

Keyed = tuple[TopicHash, bytes, int, int]
"""A key to be hashed: its topic, itself, log position and store timestamp of its message."""


def hash_keys(keys: Sequence[Keyed]) -> list[IndexEntry]:
    """What the index keeps of each key; the same numbers as ``TopicHash.hash`` gives."""
    entries: list[IndexEntry] = []
    for start in range(0, len(keys), _LANES):
        group = keys[start : start + _LANES]
        topics, texts, positions, times = zip(*group, strict=True)
        hashes = _hash_alike(topics, texts) if len(group) >= _ENOUGH_ALIKE else None
        if hashes is not None:
            entries += zip(hashes, positions, times, strict=True)
            continue
        lanes = b"".join([text.rjust(_LANE_BYTES, b"\0") for text in texts])
        if len(lanes) != len(group) * _LANE_BYTES or not lanes.isascii():
            entries += [(topic.hash(key), position, time) for topic, key, position, time in group]
        elif len(set(topics)) == 1 and len(b"".join(texts)) == len(lanes):
            # The unique ids of one topic fill their lanes: what they share is added in all at once.
            shared = topics[0].prefix_hash * POWERS[_LANE_BYTES] & _MASK
            hashes = _absolute(_fold_lanes(lanes, _LANE_BYTES, shared))
            entries += zip(hashes, positions, times, strict=True)
        else:
            for (topic, key, position, time), hashed in zip(
                group, _fold_lanes(lanes, _LANE_BYTES, 0), strict=True
            ):
                value = topic.prefix_hash * POWERS[len(key)] + hashed & _MASK
                if value & _SIGN:
                    value = 0 if value == _SIGN else (1 << 32) - value
                entries.append((value, position, time))
    return entries


def _hash_alike(topics: Sequence[TopicHash], keys: Sequence[bytes]) -> list[int] | None:
    """The hashes of long keys that differ in their last characters only; None for others.

    The ids of one producer do. With an IPv6 address they are too long for the lanes of all others.
    """
    length, head = len(keys[0]), keys[0][:-_LAST]
    ends = [key[-_LAST:] for key in keys]
    lanes = b"".join(ends)
    if (
        not 2 * _LAST < length <= MAX_SHORT_KEY
        # Keys of one length, put together: equal only if each is.
        or len(set(map(len, keys))) > 1
        or head + head.join(ends) != b"".join(keys)
        or not lanes.isascii()
        or not head.isascii()
    ):
        return None
    before = _head_hash(head) * POWERS[_LAST]
    shared = {topic: topic.prefix_hash * POWERS[length] + before for topic in set(topics)}
    folded = _fold_lanes(lanes, _LAST, 0)
    values = [shared[topic] + hashed & _MASK for topic, hashed in zip(topics, folded, strict=True)]
    if max(values) < _SIGN:
        return values
    return [
        value if value < _SIGN else 0 if value == _SIGN else (1 << 32) - value for value in values
    ]


def _absolute(hashes: array[int]) -> list[int]:
    """Absolute values; the smallest number has none and counts as 0."""
    values = list(map(abs, hashes))
    return [0 if value == _SIGN else value for value in values] if _SIGN in values else values
