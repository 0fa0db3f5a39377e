"""Reads queues without a consumer group: ranges merged by store time, then new messages.

It uses `Admin.messages`, which pulls with RocketMQ's group for tools and commits nothing, so no
consumer group is affected. Following polls the ends of the queues, as ``tail -f`` polls the size of
a file; that also finds new queues and brokers.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import (
    PenstockError,
    RemotingError,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import MessageQueue, StoredMessage

if TYPE_CHECKING:
    from penstock.admin.blocking import Admin

CHUNK = 512
"""Messages per request."""
POLL_SECONDS = 0.3
TROUBLE_SECONDS = 1.0


class Stretch(NamedTuple):
    """A range of a queue: from ``start`` to ``end``, exclusive."""

    start: int
    end: int


def ends(admin: Admin, topic: str) -> dict[MessageQueue, Stretch]:
    """The range that each queue of a topic holds now."""
    return {
        MessageQueue(topic, row.broker_name, row.queue_id): Stretch(row.min_offset, row.max_offset)
        for row in admin.topic_stats(topic)
    }


def read(
    admin: Admin,
    stretches: Mapping[MessageQueue, Stretch],
    *,
    on_read: Callable[[int], None] = lambda count: None,
) -> Iterator[StoredMessage]:
    """The messages of several ranges, merged by store time."""
    parts = [_read_one(admin, queue, part, on_read) for queue, part in sorted(stretches.items())]
    return heapq.merge(*parts, key=_order)


def _order(message: StoredMessage) -> tuple[int, str, int, int]:
    # Within a millisecond, the log of one broker defines the order; two brokers have none.
    return (
        message.store_timestamp,
        message.queue.broker_name,
        message.log_position,
        message.queue_offset,
    )


def _read_one(
    admin: Admin, queue: MessageQueue, part: Stretch, on_read: Callable[[int], None]
) -> Iterator[StoredMessage]:
    offset = part.start
    while offset < part.end:
        found = admin.messages(queue, offset, count=min(CHUNK, part.end - offset))
        for message in found.messages:
            if part.start <= message.queue_offset < part.end:
                yield message
        on_read(min(found.next_offset, part.end) - offset)
        if found.next_offset <= offset:
            # The queue was cleaned or deleted meanwhile and ends here.
            return
        offset = found.next_offset


def newest(
    admin: Admin,
    held: Mapping[MessageQueue, Stretch],
    count: int,
    wanted: Callable[[StoredMessage], bool],
) -> list[StoredMessage]:
    """The newest messages that pass ``wanted``, oldest first, read backwards from the ends."""
    found: list[StoredMessage] = []
    left = dict(held)
    size = max(count, 1)
    while True:
        # Read the last `size` messages of each queue; go further back only if needed.
        parts = {q: Stretch(max(part.start, part.end - size), part.end) for q, part in left.items()}
        found += filter(wanted, read(admin, parts))
        left = {
            queue: Stretch(part.start, parts[queue].start)
            for queue, part in left.items()
            if parts[queue].start > part.start
        }
        found.sort(key=_order)
        if not left or (len(found) >= count and not _may_be_newer(admin, left, found[-count])):
            return found[-count:] if count else []
        size = min(size * 4, CHUNK * 16)


def _may_be_newer(
    admin: Admin, left: Mapping[MessageQueue, Stretch], oldest: StoredMessage
) -> bool:
    """Whether the unread part of a queue may have something newer than what was found."""
    for queue, part in left.items():
        found = admin.messages(queue, part.end - 1, count=1).messages
        if found and _order(found[0]) > _order(oldest):
            return True
    return False


def follow(
    admin: Admin,
    topic: str,
    read_to: Mapping[MessageQueue, int],
    *,
    queue_id: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    on_trouble: Callable[[PenstockError | None], object] = lambda error: None,
) -> Iterator[StoredMessage]:
    """New messages, endlessly; new queues are read from their start.

    It waits for servers that are down: ``on_trouble`` is called with the first error, and with None
    when they are back.
    """
    position = dict(read_to)
    is_in_trouble = False
    while True:
        try:
            for message in _grown(admin, topic, position, queue_id):
                place = message.queue
                queue = MessageQueue(topic, place.broker_name, place.queue_id)
                position[queue] = message.queue_offset + 1
                yield message
        except (RemotingError, ServiceNotAvailable, TopicNotFound) as error:
            if not is_in_trouble:
                on_trouble(error)
            is_in_trouble = True
            sleep(TROUBLE_SECONDS)
            continue
        if is_in_trouble:
            on_trouble(None)
        is_in_trouble = False
        sleep(POLL_SECONDS)


def _grown(
    admin: Admin, topic: str, position: dict[MessageQueue, int], queue_id: int | None
) -> Iterator[StoredMessage]:
    """New messages since the last call, until there are none; updates ``position``."""
    while True:
        grown = {
            queue: Stretch(max(position.get(queue, part.start), part.start), part.end)
            for queue, part in ends(admin, topic).items()
            if (queue_id is None or queue.queue_id == queue_id)
        }
        for queue, part in grown.items():
            if part.start > part.end:
                # The topic was deleted and created again: start at its beginning.
                grown[queue] = Stretch(0, part.end)
        stretches = {queue: part for queue, part in grown.items() if part.start < part.end}
        yield from read(admin, stretches)
        position.update({queue: part.end for queue, part in grown.items()})
        if not stretches:
            return
