"""Reads queues without a consumer group: ranges merged by store time, then new messages.

It uses `Admin.messages`, which pulls with RocketMQ's group for tools and commits nothing, so no
consumer group is affected. Following polls the ends of the queues, as ``tail -f`` polls the size of
a file; that also finds new queues and brokers.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
CHUNK_BYTES = 1 << 20
"""After so many bytes a request has enough: each queue that is read holds a chunk in memory."""
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
        count = min(CHUNK, part.end - offset)
        found = admin.messages(queue, offset, count=count, max_bytes=CHUNK_BYTES)
        for message in found.messages:
            if part.start <= message.queue_offset < part.end:
                yield message
        on_read(min(found.next_offset, part.end) - offset)
        if found.next_offset <= offset:
            # The queue was cleaned or deleted meanwhile and ends here.
            return
        offset = found.next_offset


@dataclass(slots=True)
class Collected:
    """The newest messages of those that were found, bounded in number and bytes.

    Ranges are read from the newest to the oldest, but within a range the oldest messages come
    first. So they go again as newer ones come.
    """

    max_bytes: int | None = None
    max_count: int | None = None
    gone: StoredMessage | None = None
    """The newest message that had to go because the bodies are too large."""
    _kept: list[StoredMessage] = field(default_factory=list)
    _range: deque[StoredMessage] = field(default_factory=deque)
    _bytes: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether messages had to go because the bodies are too large."""
        return self.gone is not None

    def add(self, message: StoredMessage) -> None:
        """Take a message that is newer than the others of its range."""
        self._range.append(message)
        self._bytes += len(message.body)
        if self.max_count is not None and len(self._range) > self.max_count:
            self._drop()
        # One message is always shown, however large it is.
        while self.max_bytes is not None and self._bytes > self.max_bytes and len(self._range) > 1:
            dropped = self._drop()
            if self.gone is None or _order(dropped) > _order(self.gone):
                self.gone = dropped

    def _drop(self) -> StoredMessage:
        dropped = self._range.popleft()
        self._bytes -= len(dropped.body)
        return dropped

    def messages(self) -> list[StoredMessage]:
        """What was found so far, oldest first."""
        self._kept += self._range
        self._range.clear()
        self._kept.sort(key=_order)
        return self._kept

    def drop_up_to(self, last: StoredMessage) -> None:
        """Keep what is newer than a message that is missing, so that there is no gap."""
        found = self.messages()
        self._kept = [one for one in found if _order(one) > _order(last)] or found[-1:]


def newest(
    admin: Admin,
    held: Mapping[MessageQueue, Stretch],
    count: int,
    wanted: Callable[[StoredMessage], bool],
    *,
    into: Collected | None = None,
) -> list[StoredMessage]:
    """The newest messages that pass ``wanted``, oldest first, read backwards from the ends.

    ``into`` bounds their bytes, and has what was found if ``wanted`` ends the search by an error.
    """
    collected = Collected() if into is None else into
    collected.max_count = max(count, 1)
    left = dict(held)
    size = max(count, 1)
    while True:
        # Read the last `size` messages of each queue; go further back only if needed.
        parts = {q: Stretch(max(part.start, part.end - size), part.end) for q, part in left.items()}
        for message in filter(wanted, read(admin, parts)):
            collected.add(message)
        left = {
            queue: Stretch(part.start, parts[queue].start)
            for queue, part in left.items()
            if parts[queue].start > part.start
        }
        if collected.gone is not None:
            missing = [collected.gone, *_last_of(admin, left)]
            collected.drop_up_to(max(missing, key=_order))
            left = {}
        found = collected.messages()
        if not left or (len(found) >= count and not _may_be_newer(admin, left, found[-count])):
            return found[-count:] if count else []
        size = min(size * 4, CHUNK * 16)


def _may_be_newer(
    admin: Admin, left: Mapping[MessageQueue, Stretch], oldest: StoredMessage
) -> bool:
    """Whether the unread part of a queue may have something newer than what was found."""
    return any(_order(last) > _order(oldest) for last in _last_of(admin, left))


def _last_of(admin: Admin, left: Mapping[MessageQueue, Stretch]) -> Iterator[StoredMessage]:
    """The newest message of each unread part."""
    for queue, part in left.items():
        yield from admin.messages(queue, part.end - 1, count=1).messages[:1]


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
