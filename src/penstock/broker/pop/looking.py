"""Looking at what a group could pop, without taking it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.broker.delivery.filters import EVERYTHING, Filter
from penstock.broker.pop.popping import MAX_MESSAGES, first_offset, retry_topics
from penstock.broker.state import BrokerState
from penstock.protocol.headers.receipts import NORMAL_TOPIC
from penstock.store import ReadResult, ReadStatus


class Peeked(NamedTuple):
    """Messages that a group would get next."""

    slices: list[memoryview]
    rest: int


def peek(broker: BrokerState, group: str, topic: str, queue_id: int, max_messages: int) -> Peeked:
    """The next messages of a group."""
    slices: list[memoryview] = []
    room, rest = min(max_messages, MAX_MESSAGES), 0
    for name, one in _queues(broker, group, topic, queue_id, is_orderly=False):
        start = _frontier(broker, group, name, one)
        if room <= 0:
            rest += max(0, broker.storage.max_offset(name, one) - start)
            continue
        result = _read(broker, name, one, start, room, EVERYTHING)
        rest += max(0, result.max_offset - result.next_offset)
        slices += result.slices
        room -= result.count
    return Peeked(slices, rest)


def has_messages(
    broker: BrokerState,
    group: str,
    topic: str,
    queue_id: int,
    filter_: Filter = EVERYTHING,
    *,
    is_orderly: bool = False,
    attempt_id: str | None = None,
) -> bool:
    """Whether a pop would find something; of a long queue only the first messages are filtered."""
    now = broker.clock.time_ms()
    for name, one in _queues(broker, group, topic, queue_id, is_orderly=is_orderly):
        if is_orderly and broker.pop.orders.is_blocked(name, group, one, attempt_id, now):
            continue
        start = _frontier(broker, group, name, one)
        if start >= broker.storage.max_offset(name, one):
            continue
        if filter_.codes is None or name != topic:
            return True
        result = _read(broker, name, one, start, MAX_MESSAGES, filter_)
        if result.count or result.next_offset < result.max_offset:
            return True
    return False


def _queues(
    broker: BrokerState, group: str, topic: str, queue_id: int, *, is_orderly: bool
) -> Iterator[tuple[str, int]]:
    if queue_id >= 0:
        yield topic, queue_id
    else:
        for one in range(broker.topics.require(topic).read_queue_nums):
            yield topic, one
    if not is_orderly:
        for flag, name in retry_topics(broker, group, topic):
            assert flag != NORMAL_TOPIC
            for one in range(broker.topics.require(name).read_queue_nums):
                yield name, one


def _frontier(broker: BrokerState, group: str, topic: str, queue_id: int) -> int:
    committed = broker.offsets.committed(group, topic, queue_id)
    if committed is None:
        return first_offset(broker, topic, queue_id, starts_first=True)
    return committed


def _read(
    broker: BrokerState, topic: str, queue_id: int, start: int, room: int, filter_: Filter
) -> ReadResult:
    read = broker.storage.read
    result = read(topic, queue_id, start, max_count=room, matches=filter_.of_record)
    if result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY):
        start = result.next_offset
        result = read(topic, queue_id, start, max_count=room, matches=filter_.of_record)
    return result
