"""Records of the revive topic: check-points and acknowledgements, as Apache RocketMQ writes them.

    tag ck     {"bm":0,"bn":broker,"c":group,"d":[0,1,3],"it":60000,"n":3,"pt":popTime,"q":3,
                "reviveTime":due,"ro":0,"so":100,"sp":false,"t":topic}     d: distances from so
    tag ack    {"ao":103,"bn":...,"c":...,"pt":...,"q":...,"so":...,"t":...}
    tag bAck   the same with "ao":-1 and "aol":[100,103]

A check-point from here has a key of our own, which Apache ignores: "nx", where the group went on
after this pop, or -1 if the record says nothing about that.

The property TIMER_DELIVER_MS has the time of writing. Apache's reader waits for the newest such
time before it judges a check-point; a time in the future would make it revive the others too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from penstock.broker.pop.check_points import CheckPoint
from penstock.broker.pop.early_acks import ReceiptKey
from penstock.model.properties import get_property
from penstock.protocol.records.codec import Record

CHECK_POINT: Final = b"ck"
ACK: Final = b"ack"
BATCH_ACK: Final = b"bAck"
MAX_BODY_BYTES: Final = 1 << 20
NO_POP: Final = -1
"""In place of the next offset: a renewed check-point, or one that was written once more."""
_MAX_OFFSETS: Final = 65_536
_INT64: Final = 1 << 63
_TIMED: Final = b"TIMER_OUT_MS"


class ReadCheckPoint(NamedTuple):
    """A check-point as a record says it."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_time: int
    invisible_ms: int
    offsets: tuple[int, ...]
    is_suspended: bool
    is_timed: bool
    """Whether it came through Apache's timer: its acknowledgements may follow up to 2 s later."""
    next_offset: int | None = None
    """Where the group went on; `NO_POP`: the record is not that of a pop; None: not from here."""


class ReadAck(NamedTuple):
    """Acknowledgements as a record says them."""

    group: str
    topic: str
    queue_id: int
    pop_time: int
    offsets: tuple[int, ...]
    due: int = 0
    """If it is an early one: when its check-point is due."""


def properties_of(tag: bytes, now_ms: int) -> bytes:
    """The properties of a record that is written now."""
    return b"TAGS\x01%b\x02TIMER_DELIVER_MS\x01%d\x02" % (tag, now_ms)


def check_point_body(
    point: CheckPoint, offsets: Sequence[int], broker_name: str, next_offset: int | None = None
) -> bytes:
    """The body of a check-point with these messages; without ``next_offset``, as Apache's."""
    start = point.start_offset
    queue = point.queue
    body: dict[str, object] = {
        "bm": 0,
        "bn": broker_name,
        "c": queue.group,
        "d": [offset - start for offset in offsets],
        "it": point.invisible_ms,
        "n": len(offsets),
        "pt": point.pop_time,
        "q": queue.queue_id,
        "reviveTime": point.due,
        "ro": 0,
        "so": start,
        "sp": point.is_suspended,
        "t": queue.topic,
    }
    if next_offset is not None:
        body["nx"] = next_offset
    return orjson.dumps(body)


def ack_body(point: CheckPoint, offsets: Sequence[int], broker_name: str) -> bytes:
    """The body of the acknowledgement of one message or of several."""
    queue = point.queue
    body: dict[str, object] = {"ao": offsets[0] if len(offsets) == 1 else -1}
    if len(offsets) > 1:
        body["aol"] = list(offsets)
    body |= {
        "bn": broker_name,
        "c": queue.group,
        "pt": point.pop_time,
        "q": queue.queue_id,
        "so": point.start_offset,
        "t": queue.topic,
    }
    return orjson.dumps(body)


def early_ack_body(key: ReceiptKey, due: int, broker_name: str) -> bytes:
    """The body of an acknowledgement whose check-point is not known; ``it`` is a key of our own."""
    group, topic, queue_id, pop_time, offset = key
    return orjson.dumps(
        {
            "ao": offset,
            "bn": broker_name,
            "c": group,
            "it": due - pop_time,
            "pt": pop_time,
            "q": queue_id,
            "so": offset,
            "t": topic,
        }
    )


def read_revive_record(record: Record, broker_name: str) -> ReadCheckPoint | ReadAck | None:
    """What a record of the revive topic says; None if it is damaged or of another broker."""
    tag = get_property(record.properties, b"TAGS")
    if len(record.body) > MAX_BODY_BYTES:
        return None
    try:
        body = orjson.loads(record.body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(body, dict) or body.get("bn") not in (None, broker_name):
        return None
    group, topic = body.get("c"), body.get("t")
    queue_id, start, pop_time = _int(body.get("q")), _int(body.get("so")), _int(body.get("pt"))
    if (
        not isinstance(group, str)
        or not isinstance(topic, str)
        or queue_id is None
        or start is None
        or pop_time is None
    ):
        return None
    if tag == CHECK_POINT:
        return _check_point(record, body, (group, topic, queue_id, start, pop_time))
    if tag == ACK:
        offset = _int(body.get("ao"))
        invisible = _int(body.get("it"))
        due = 0 if invisible is None else pop_time + invisible
        return None if offset is None else ReadAck(group, topic, queue_id, pop_time, (offset,), due)
    if tag == BATCH_ACK:
        offsets = _ints(body.get("aol"))
        return None if offsets is None else ReadAck(group, topic, queue_id, pop_time, offsets)
    return None


def _check_point(
    record: Record, body: dict[str, object], head: tuple[str, str, int, int, int]
) -> ReadCheckPoint | None:
    group, topic, queue_id, start, pop_time = head
    invisible, number = _int(body.get("it")), _int(body.get("n"))
    if invisible is None or number is None or not 0 <= number <= _MAX_OFFSETS:
        return None
    distances = body.get("d")
    # Releases before 4.9.5 have no list: the messages follow each other.
    steps = tuple(range(number)) if not distances else _ints(distances)
    if steps is None:
        return None
    return ReadCheckPoint(
        group,
        topic,
        queue_id,
        start,
        pop_time,
        invisible,
        tuple(start + step for step in steps),
        body.get("sp") is True,
        get_property(record.properties, _TIMED) is not None,
        _int(body.get("nx")),
    )


def _int(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
        return value
    return None


def _ints(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list) or len(values) > _MAX_OFFSETS:
        return None
    numbers = tuple(number for number in map(_int, values) if number is not None)
    return numbers if len(numbers) == len(values) else None
