"""Half messages and the records that close them, as every RocketMQ broker stores them.

    half topic, queue 0     the half message; copies of it, each with a higher count of checks
    op topic, queue 0       the queue offset of a half that is closed: 7  (from 5.1 on also 7,9,)
    the real topic          the committed message; it names the log position of its half

A half is open if no op record names its queue offset. Which offsets were looked at is saved as the
progress of the group CID_RMQ_SYS_TRANS in both queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.model.names import Property
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.records.codec import Record
from penstock.protocol.records.sys_flags import SysFlag

OP_PROPERTIES: Final = encode_properties({Property.WAIT: "true", Property.TAGS: "d"})
OP_TAG: Final = "d"
HALF_QUEUE: Final = 0
"""The only queue of both topics."""
_MAX_DIGITS: Final = 18


class TransactionKey(NamedTuple):
    """What all copies of the half message of one transaction share."""

    group: str
    topic: str
    unique_id: str


class HalfMessage(NamedTuple):
    """What a broker has to know of a half message."""

    key: TransactionKey
    queue_id: int
    """The queue of the real topic."""
    check_times: int
    immunity_ms: int | None
    """How long no check comes; None: as the broker is configured."""
    first_offset: int | None
    """The queue offset of the copy that a copy of Apache's broker replaces."""


def read_half(properties: Mapping[str, str], default_ms: int) -> HalfMessage | None:
    """The half message with these properties; None if they name no topic.

    ``default_ms`` is in force for an immunity that is no number, as in RocketMQ.
    """
    topic = properties.get(Property.REAL_TOPIC)
    if topic is None:
        return None
    immunity = properties.get(Property.CHECK_IMMUNITY_SECONDS)
    seconds = None if immunity is None else _number(immunity)
    first = properties.get(Property.TRANSACTION_FIRST_OFFSET)
    return HalfMessage(
        TransactionKey(
            properties.get(Property.PRODUCER_GROUP, ""),
            topic,
            properties.get(Property.UNIQUE_KEY, ""),
        ),
        _number(properties.get(Property.REAL_QUEUE_ID, "")) or 0,
        _number(properties.get(Property.TRANSACTION_CHECK_TIMES, "")) or 0,
        None if immunity is None else default_ms if seconds is None else seconds * 1000,
        None if first is None else _number(first),
    )


def is_commit_of(record: Record, key: TransactionKey) -> bool:
    """Whether a record is the committed message of a transaction."""
    if (
        record.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_COMMIT
        or record.topic != key.topic
    ):
        return False
    properties = parse_properties(record.properties)
    return (
        properties.get(Property.UNIQUE_KEY) == key.unique_id
        and properties.get(Property.PRODUCER_GROUP, "") == key.group
    )


# Op records


def op_body(offset: int) -> bytes:
    """The body of the op record that closes the half at an offset.

    Brokers from 5.1 on write several offsets into one record, each followed by a comma. Those
    before, 4.9 among them, do not read that; all of them read a single number.
    """
    return b"%d" % offset


def op_offsets(tag: str | None, body: bytes) -> list[int]:
    """The offsets that an op record closes; empty for one that is not read as such."""
    if tag != OP_TAG:
        return []
    numbers = (_number(part) for part in body.decode("ascii", "replace").split(","))
    return [number for number in numbers if number is not None]


def _number(text: str) -> int | None:
    """A number in a record, which another program may have written."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None
