"""Records of the timer topic: what is read of them, and what they become when due."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.model.java_hash import java_hash
from penstock.model.names import TIMER_TOPIC, Property
from penstock.model.properties import encode_stored, parse_properties, value_of
from penstock.model.record_layout import (
    BODY_POSITION,
    HEADS,
    HOST_BITS,
    MAGIC_V1,
    PROPERTIES_LENGTH,
)
from penstock.protocol.records.codec import Record, decode_record
from penstock.store import Draft

_new_tuple: Final = tuple.__new__
_unpack_head: Final = HEADS[0].unpack_from
_TOPIC: Final = bytes((len(TIMER_TOPIC),)) + TIMER_TOPIC.encode()
_TOPIC_BYTES: Final = len(_TOPIC)
_PROPERTIES_AT: Final = _TOPIC_BYTES + PROPERTIES_LENGTH.size
_unpack_length: Final = PROPERTIES_LENGTH.unpack_from
_MAX_DIGITS: Final = 18
_OUT_MS: Final = Property.TIMER_OUT_MS.encode() + b"\x01"
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode() + b"\x01"
_REAL_QUEUE_ID: Final = Property.REAL_QUEUE_ID.encode() + b"\x01"
DELETE_MARK: Final = Property.TIMER_DELETE_KEY.encode() + b"\x01"
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode() + b"\x01"
ENQUEUE_MARK: Final = Property.TIMER_ENQUEUE_MS.encode() + b"\x01"
DEQUEUE_MARK: Final = Property.TIMER_DEQUEUE_MS.encode() + b"\x01"
_ROLL_TIMES: Final = Property.TIMER_ROLL_TIMES.encode() + b"\x01"
_MAX_QUEUE_DIGITS: Final = 9
_OUT_MS_BEHIND: Final = b"\x02" + _OUT_MS
USUAL_END: Final = re.compile(
    rb"\x02TIMER_OUT_MS\x01([0-9]{1,18})"
    rb"\x02REAL_TOPIC\x01([^\x01\x02]+)"
    rb"\x02REAL_QID\x01([0-9]{1,9})\x02?\Z"
)


def starts_as_parked(tail: bytes) -> int:
    """Where the properties begin in what follows the body of a parked record; 0 if it is none."""
    if tail.startswith(_TOPIC) and len(tail) >= _PROPERTIES_AT:
        stated = _unpack_length(tail, _TOPIC_BYTES)[0]
        return _PROPERTIES_AT if stated == len(tail) - _PROPERTIES_AT else 0
    return 0


class Parked(NamedTuple):
    """A message of the timer topic."""

    slot_ms: int
    topic: str
    """Where it goes when it is due."""
    queue_id: int
    delete_key: str
    """Not empty: it is a delete mark."""
    head: tuple[Any, ...]
    """The head of its record, up to the length of the body: the first fields of a `Record`."""
    body: bytes | memoryview
    properties: bytes

    @property
    def size(self) -> int:
        """The bytes of its record."""
        return self.head[0]  # type: ignore[no-any-return]

    @property
    def queue_offset(self) -> int:
        """Its place in the timer topic."""
        return self.head[5]  # type: ignore[no-any-return]

    @property
    def log_position(self) -> int:
        """Where its record begins, as that says."""
        return self.head[6]  # type: ignore[no-any-return]

    @property
    def store_timestamp(self) -> int:
        """When it was parked."""
        return self.head[10]  # type: ignore[no-any-return]

    @property
    def unique_id(self) -> str:
        """The id that a delete mark names."""
        return value_of(self.properties, _UNIQUE_KEY).decode("utf-8", "replace")

    @property
    def topic_hash(self) -> int:
        """The hash that the timer log has of the topic."""
        return java_hash(self.topic)

    @property
    def deletes(self) -> tuple[str, str]:
        """Topic and unique id of the message that a delete mark is for.

        Releases differ in whether the key has the topic before the id.
        """
        return self.topic, self.delete_key.removeprefix(f"{self.topic}+")


def read_parked(view: memoryview) -> Parked:
    """A record of the timer topic; `ProtocolError` says why it is none.

    Another program may have written it, and one that cannot be read must not stop the others.
    """
    # The usual record has IPv4 hosts, and its broker wrote the three properties last: the last
    # value counts, so nothing else needs to be searched.
    if len(view) >= BODY_POSITION:
        head = _unpack_head(view)
        topic_at = BODY_POSITION + head[14]
        if (
            head[0] == len(view)
            and head[1] == MAGIC_V1
            and not head[7] & HOST_BITS
            and topic_at >= BODY_POSITION
        ):
            tail = bytes(view[topic_at:])
            usual = USUAL_END.match(tail, tail.rfind(_OUT_MS_BEHIND))
            properties = tail[_PROPERTIES_AT:]
            if (
                usual is not None
                and tail.startswith(_TOPIC)
                and _unpack_length(tail, _TOPIC_BYTES)[0] == len(properties)
                and DELETE_MARK not in properties
            ):
                slot, topic, queue_id = usual.groups()
                return _new_tuple(
                    Parked,
                    (
                        int(slot),
                        topic.decode("utf-8", "replace"),
                        int(queue_id),
                        "",
                        head[:14],
                        view[BODY_POSITION:topic_at],
                        properties,
                    ),
                )
    return read_unusual_parked(decode_record(view))


def read_unusual_parked(record: Record) -> Parked:
    """`read_parked` for any record; the specification of its fast path."""
    properties = record.properties
    slot = value_of(properties, _OUT_MS)
    queue_id = value_of(properties, _REAL_QUEUE_ID)
    topic = value_of(properties, _REAL_TOPIC)
    if record.topic != TIMER_TOPIC:
        raise ProtocolError(f"a record of topic {record.topic}", expected=TIMER_TOPIC)
    if not (slot.isdigit() and len(slot) <= _MAX_DIGITS):
        raise ProtocolError(
            f"property {Property.TIMER_OUT_MS} is {slot[:_MAX_DIGITS]!r}", expected="a time"
        )
    if not topic or not (queue_id.isdigit() and len(queue_id) <= _MAX_QUEUE_DIGITS):
        raise ProtocolError(
            f"{Property.REAL_TOPIC} is {topic[:64]!r}, "
            f"{Property.REAL_QUEUE_ID} is {queue_id[:_MAX_QUEUE_DIGITS]!r}",
            expected="topic and queue of a message",
        )
    return Parked(
        int(slot),
        topic.decode("utf-8", "replace"),
        int(queue_id),
        value_of(properties, DELETE_MARK).decode("utf-8", "replace"),
        record[:14],
        record.body,
        properties,
    )


def due(parked: Parked, enqueued_ms: int, now_ms: int) -> Draft:
    """The message to store when a parked one is due."""
    properties = _with_times(parked.properties, enqueued_ms, now_ms)
    return _draft(parked, parked.topic, parked.queue_id, properties)


def rolled(parked: Parked, enqueued_ms: int, now_ms: int) -> Draft:
    """The message to park once more: its time is further away than the wheel reaches."""
    properties = parse_properties(parked.properties)
    times = properties.get(Property.TIMER_ROLL_TIMES, "0")
    count = int(times) if times.isdecimal() and len(times) < _MAX_DIGITS else 0
    properties[Property.TIMER_ROLL_TIMES] = str(count + 1)
    encoded = _with_times(encode_stored(properties), enqueued_ms, now_ms)
    return _draft(parked, TIMER_TOPIC, 0, encoded)


def _with_times(properties: bytes, enqueued_ms: int, now_ms: int) -> bytes:
    """The properties with the times of wheel and delivery, and without those of an earlier roll."""
    if ENQUEUE_MARK in properties or DEQUEUE_MARK in properties:
        parsed = parse_properties(properties)
        parsed.pop(Property.TIMER_ENQUEUE_MS, None)
        parsed.pop(Property.TIMER_DEQUEUE_MS, None)
        properties = encode_stored(parsed)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return b"%b%b%d\x02%b%d\x02" % (properties, ENQUEUE_MARK, enqueued_ms, DEQUEUE_MARK, now_ms)


def _draft(parked: Parked, topic: str, queue_id: int, properties: bytes) -> Draft:
    (_, _, _, _, flag, _, _, sys_flag, born, born_host, _, store_host, times, prepared) = (
        parked.head
    )
    return _new_tuple(
        Draft,
        (
            topic,
            queue_id,
            bytes(parked.body),
            properties,
            flag,
            sys_flag,
            born,
            born_host,
            store_host,
            times,
            prepared,
            value_of(properties, _UNIQUE_KEY),
        ),
    )
