"""Several messages in one body: of a batch send, or of an inner-batch record.

`model.record_layout` draws an item; items follow each other. Magic and checksum are written as 0
and ignored when read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import IllegalMessage, ProtocolError
from penstock.model.properties import MAX_PROPERTIES_BYTES, value_of
from penstock.model.record_layout import ITEM_HEAD, MIN_ITEM_BYTES, PROPERTIES_LENGTH

_PROPERTIES_AT = ITEM_HEAD.size + PROPERTIES_LENGTH.size


class BatchItem(NamedTuple):
    """One message of a batch; topic, queue and the rest belong to the batch as a whole."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(items: Iterable[BatchItem | tuple[bytes, bytes, int]]) -> bytes:
    """The body that carries ``items``."""
    parts: list[bytes] = []
    head = properties_head = b""
    shape: tuple[int, int, int] | None = None
    for body, properties, flag in items:
        # Messages of one producer tend to be of one shape, and then have the same heads.
        if shape != (len(body), len(properties), flag):
            shape = (len(body), len(properties), flag)
            head, properties_head = _item_heads(*shape, number=len(parts) // 4)
        parts += (head, body, properties_head, properties)
    return b"".join(parts)


def _item_heads(
    body_length: int, properties_length: int, flag: int, *, number: int
) -> tuple[bytes, bytes]:
    """What stands before the body and before the properties of a message."""
    if properties_length > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"message properties take {properties_length} bytes in message {number} of a batch",
            expected=f"at most {MAX_PROPERTIES_BYTES}, all keys and values together",
        )
    size = MIN_ITEM_BYTES + body_length + properties_length
    try:
        head = ITEM_HEAD.pack(size, 0, 0, flag, body_length)
    except struct.error as error:
        raise IllegalMessage(
            f"flag {flag} or body of {body_length} bytes has no room in a batch",
            expected="a flag of 32 bits and a body below 2 GiB",
        ) from error
    return head, PROPERTIES_LENGTH.pack(properties_length)


def decode_batch(body: bytes) -> list[BatchItem]:
    """The messages in ``body``, which they must fill."""
    return list(iterate_batch(body))


def iterate_batch(body: bytes) -> Iterator[BatchItem]:
    """The same one by one, for readers that may need only the first."""
    number = 0
    position = 0
    while position < len(body):
        left = len(body) - position
        if left < MIN_ITEM_BYTES:
            raise _damaged(number, position, f"{left} bytes", f"{MIN_ITEM_BYTES} or more")
        size, _, _, flag, body_length = ITEM_HEAD.unpack_from(body, position)
        if not MIN_ITEM_BYTES <= size <= left:
            expected = f"{MIN_ITEM_BYTES} to the {left} that are left"
            raise _damaged(number, position, f"a size of {size} bytes", expected)
        if not 0 <= body_length <= size - MIN_ITEM_BYTES:
            expected = f"at most {size - MIN_ITEM_BYTES} in a message of {size} bytes"
            raise _damaged(number, position, f"a body of {body_length} bytes", expected)
        body_start = position + ITEM_HEAD.size
        body_end = body_start + body_length
        (properties_length,) = PROPERTIES_LENGTH.unpack_from(body, body_end)
        properties_start = body_end + PROPERTIES_LENGTH.size
        position += size
        if properties_length != position - properties_start:
            found = f"properties of {properties_length} bytes"
            expected = f"{position - properties_start}, to the end of the message"
            raise _damaged(number, position - size, found, expected)
        yield BatchItem(body[body_start:body_end], body[properties_start:position], flag)
        number += 1


def batch_values(body: bytes, key: bytes) -> list[bytes]:
    """`value_of` a property, of each message in ``body``; in a third of the time of decoding it."""
    values: list[bytes] = []
    append, unpack = values.append, ITEM_HEAD.unpack_from
    position, total = 0, len(body)
    while position < total:
        left = total - position
        size, length = -1, -1
        if left >= MIN_ITEM_BYTES:
            size, _, _, _, length = unpack(body, position)
        if not MIN_ITEM_BYTES <= size <= left or not 0 <= length <= size - MIN_ITEM_BYTES:
            decode_batch(body)
            raise AssertionError(f"message {len(values)} of a batch was refused, yet it is whole")
        properties_at = position + _PROPERTIES_AT + length
        position += size
        append(value_of(body[properties_at:position], key))
    return values


def _damaged(index: int, position: int, found: str, expected: str) -> ProtocolError:
    return ProtocolError(f"{found} for message {index} at {position} of a batch", expected=expected)
