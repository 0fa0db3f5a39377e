"""The rules of a pop: which queues, from where, how much; and what is noted about it.

A pop looks at the queues of the topic and at the group's pop retry topic. Of each queue it takes
what follows the group's committed offset, which in pop consumption is the next message to hand out;
what was handed out and is not finished is behind it, in the check-points.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.delivery.filters import EVERYTHING, Filter
from penstock.broker.delivery.record_views import record_views
from penstock.broker.pop.check_points import CheckPoint, PopQueue
from penstock.broker.pop.redelivery import bury, record_of
from penstock.broker.state import BrokerState
from penstock.errors import RequestRefused, StoreError
from penstock.model.names import Property, pop_retry_topic, pop_retry_topic_v2
from penstock.model.properties import get_property
from penstock.model.record_layout import head_offset
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.headers.receipts import (
    NORMAL_TOPIC,
    ORDERLY_REVIVE_QUEUE,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
)
from penstock.protocol.records.codec import decode_record
from penstock.store import ReadResult, ReadStatus, RecordTest, TagFilter

log = logging.getLogger(__name__)

MAX_MESSAGES: Final = 32
ANY_QUEUE: Final = -1
_PERCENT: Final = 100
_OFFSET_AT: Final = head_offset("queue_offset")
_ORIGIN: Final = Property.ORIGIN_GROUP.encode()
_CORRECTED: Final = (
    ReadStatus.OFFSET_TOO_SMALL,
    ReadStatus.OFFSET_OVERFLOW_BADLY,
    ReadStatus.OFFSET_FOUND_NULL,
)


class PopAsk(NamedTuple):
    """A pop: who asks for what."""

    group: str
    topic: str
    queue_id: int = ANY_QUEUE
    """Below 0: every queue."""
    max_messages: int = MAX_MESSAGES
    invisible_ms: int = 60_000
    filter_: Filter = EVERYTHING
    starts_first: bool = False
    """Where a group without an offset begins: with the first message, not with the last one."""
    is_orderly: bool = False
    attempt_id: str | None = None


class PoppedQueue(NamedTuple):
    """What a pop took from one queue."""

    flag: int
    """Of the topic, or of one of its retry topics."""
    topic: str
    queue_id: int
    start_offset: int
    offsets: Sequence[int]
    counts: Mapping[int, int]
    """Orderly: how often messages were handed out before, where that is above 0."""


class Popped(NamedTuple):
    """What a pop took."""

    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    rest: int
    """How many messages the queues still have for the group."""
    queues: list[PoppedQueue]
    slices: list[memoryview]
    log_end: int
    """The answer relies on the log up to here; 0: on nothing."""
    has_moved: bool
    """Whether messages were passed that the filter rejects."""


class _Read(NamedTuple):
    """What was read of one queue and is not taken yet."""

    flag: int
    queue: PopQueue
    start_offset: int
    """As the group had it; the answer says so even if the queue does not begin there."""
    first: int
    """Where the read began."""
    offsets: Sequence[int]
    result: ReadResult


def pop(broker: BrokerState, ask: PopAsk) -> Popped:
    """Take messages for a group; they are invisible to its other members from now on."""
    return _Pop(broker, ask).run()


def retry_topics(broker: BrokerState, group: str, topic: str) -> list[tuple[int, str]]:
    """The pop retry topics of a group in a topic that exist, with their flags."""
    names = (
        (RETRY_TOPIC_V1, pop_retry_topic(group, topic)),
        (RETRY_TOPIC_V2, pop_retry_topic_v2(group, topic)),
    )
    return [(flag, name) for flag, name in names if name in broker.topics]


class _Pop:
    """One pop under way."""

    def __init__(self, broker: BrokerState, ask: PopAsk) -> None:
        self._broker = broker
        self._ask = ask
        self._now = broker.clock.time_ms()
        self._room = ask.max_messages
        self._rest = 0
        self._has_moved = False
        self._reads: list[_Read] = []

    def run(self) -> Popped:
        for flag, topic, queue_id in self._visited():
            self._visit(flag, topic, queue_id)
        if self._ask.is_orderly:
            return self._take_orderly()
        return self._take()

    # Which queues

    def _visited(self) -> Iterator[tuple[int, str, int]]:
        """The queues to look at, in order; retry topics come first in one pop of five."""
        ask, broker = self._ask, self._broker
        chance = broker.random_below(_PERCENT)
        retries: list[tuple[int, str, int]] = []
        if not ask.is_orderly:
            found = retry_topics(broker, ask.group, ask.topic)
            if chance % 2:
                found.reverse()
            retries = [
                (flag, name, queue_id)
                for flag, name in found
                for queue_id in range(broker.topics.require(name).read_queue_nums)
            ]
        topic = broker.topics.require(ask.topic)
        turn = chance
        is_retry_first = chance < broker.config.pop_from_retry_probability
        if topic.attributes and self._is_by_priority(topic):
            turn, is_retry_first = 0, False
        if is_retry_first:
            yield from retries
        if ask.queue_id >= 0:
            yield NORMAL_TOPIC, ask.topic, ask.queue_id
        else:
            count = topic.read_queue_nums
            for i in range(count):
                yield NORMAL_TOPIC, ask.topic, (count - 1 - i + turn) % count
        if not is_retry_first:
            yield from retries

    def _is_by_priority(self, topic: TopicConfig) -> bool:
        """Whether the queue with the highest number comes first; for some pops the group may
        choose otherwise, so that the others are not starved."""
        if (topic.attributes or {}).get("message.type") != "PRIORITY":
            return False
        group = self._broker.groups.require(self._ask.group)
        factor = (group.attributes or {}).get("priority.factor", str(_PERCENT))
        return self._broker.random_below(_PERCENT) < int(factor)

    # Reading

    def _visit(self, flag: int, topic: str, queue_id: int) -> None:
        broker, ask = self._broker, self._ask
        start = self._start(flag, topic, queue_id)
        end = broker.storage.max_offset(topic, queue_id)
        if start == end:
            return
        queue = broker.pop.points.queue(ask.group, topic, queue_id)
        if ask.is_orderly:
            if broker.pop.orders.is_blocked(topic, ask.group, queue_id, ask.attempt_id, self._now):
                return
        elif len(queue.receipts) >= broker.config.pop_inflight_message_threshold:
            self._rest += max(0, end - start)
            return
        if self._room <= 0:
            self._rest += max(0, end - start)
            return
        result = self._read(flag, topic, queue_id, start)
        first = start
        if result.status in _CORRECTED:
            first = result.next_offset
            self._commit(topic, queue_id, first)
            result = self._read(flag, topic, queue_id, first)
        self._rest += max(0, result.max_offset - result.next_offset)
        if result.status is ReadStatus.FOUND:
            offsets = _offsets(result, first)
            self._room -= result.count
            self._reads.append(_Read(flag, queue, start, first, offsets, result))
        elif result.next_offset > first:
            # Passed for good: the group does not want these messages.
            self._commit(topic, queue_id, result.next_offset)
            self._has_moved = True

    def _start(self, flag: int, topic: str, queue_id: int) -> int:
        """The next message to hand out; a group without an offset gets one."""
        broker, group = self._broker, self._ask.group
        reset = broker.offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            broker.pop.orders.forget(topic, group, queue_id)
            return reset
        committed = broker.offsets.committed(group, topic, queue_id)
        if committed is None:
            committed = first_offset(
                broker, topic, queue_id, starts_first=self._ask.starts_first or flag != NORMAL_TOPIC
            )
            self._commit(topic, queue_id, committed)
        return committed

    def _read(self, flag: int, topic: str, queue_id: int, offset: int) -> ReadResult:
        return self._broker.storage.read(
            topic, queue_id, offset, max_count=self._room, matches=self._matches(flag)
        )

    def _matches(self, flag: int) -> TagFilter | None:
        if flag != RETRY_TOPIC_V1:
            return self._ask.filter_.of_record
        # In this spelling the retry topics of two groups may have one name.
        group, filter_ = self._ask.group.encode(), self._ask.filter_

        def takes(tags_code: int, record: memoryview) -> bool:
            properties = decode_record(record).properties
            origin = get_property(properties, _ORIGIN)
            return origin in (None, group) and filter_.matches(tags_code, properties)

        return RecordTest(takes, filter_.steps)

    def _commit(self, topic: str, queue_id: int, offset: int) -> None:
        self._broker.offsets.commit(self._ask.group, topic, queue_id, offset, "pop")

    # Taking

    def _take(self) -> Popped:
        """Note what was read as handed out, in memory and in the journal."""
        ask, broker, reads = self._ask, self._broker, self._reads
        if not reads:
            return self._popped(self._now, 0, [])
        revive_queue_id = broker.pop.journal.next_revive_queue(ask.invisible_ms)
        pop_time = self._pop_time()
        taken: list[_Read] = []
        log_end = 0
        for read in reads:
            point = CheckPoint(
                read.queue,
                read.start_offset,
                read.offsets,
                pop_time,
                ask.invisible_ms,
                revive_queue_id,
            )
            try:
                log_end = broker.pop.journal.open(
                    point, self._undo(read), next_offset=read.result.next_offset
                )
            except StoreError:
                if not taken:
                    raise
                break
            queue = read.queue
            broker.offsets.commit_after_flush(
                ask.group, queue.topic, queue.queue_id, read.result.next_offset, log_end
            )
            taken.append(read)
        broker.pop.wake_reviver(pop_time + ask.invisible_ms)
        broker.stats.check_points(ask.group, ask.topic, len(taken))
        return self._popped(pop_time, revive_queue_id, taken, log_end)

    def _undo(self, read: _Read) -> Callable[[], object]:
        offsets, group, queue = self._broker.offsets, self._ask.group, read.queue
        return lambda: offsets.take_back(group, queue.topic, queue.queue_id, read.first)

    def _pop_time(self) -> int:
        """Now, or the first moment after it that makes every receipt a new one."""
        wanted = self._now
        while True:
            free = wanted
            for read in self._reads:
                free = read.queue.free_pop_time(free, read.offsets)
            if free == wanted:
                return free
            wanted = free

    def _take_orderly(self) -> Popped:
        ask, orders = self._ask, self._broker.pop.orders
        log_end = max(map(self._bury_used_up, range(len(self._reads))), default=0)
        self._reads = [read for read in self._reads if read.offsets]
        counts = {
            read.queue.queue_id: orders.deliver(
                ask.topic,
                ask.group,
                read.queue.queue_id,
                read.offsets,
                pop_time=self._now,
                invisible_ms=ask.invisible_ms,
                attempt_id=ask.attempt_id,
            )
            for read in self._reads
        }
        for read in self._reads:
            self._commit(ask.topic, read.queue.queue_id, read.offsets[0])
        popped = self._popped(self._now, ORDERLY_REVIVE_QUEUE, self._reads, log_end)
        return popped._replace(
            queues=[queue._replace(counts=counts[queue.queue_id]) for queue in popped.queues]
        )

    def _bury_used_up(self, index: int) -> int:
        """Make dead letters of the first messages of a read whose retries are used up.

        The log position that the answer relies on. Those behind a message that is still tried are
        left to a later pop: the committed offset passes none of them.
        """
        broker, ask, read = self._broker, self._ask, self._reads[index]
        queue_id = read.queue.queue_id
        max_times = broker.groups.require(ask.group).retry_max_times
        used_up = broker.pop.orders.used_up(
            ask.topic, ask.group, queue_id, ask.attempt_id, max_times
        )
        dead = log_end = 0
        for offset in itertools.takewhile(used_up.__contains__, read.offsets):
            record = record_of(broker, ask.topic, queue_id, offset)
            try:
                if record is not None:
                    log_end = bury(broker, ask.group, record, self._now, used_up[offset]) or log_end
            except RequestRefused as error:
                # No room for dead letters: better once more than never again.
                log.error(
                    "message is delivered although its retries are used up group=%s error=%s",
                    ask.group,
                    error,
                )
                break
            dead += 1
        if not dead:
            return 0
        left = read.offsets[dead:]
        views = list(record_views(read.result.slices))[dead:]
        result = read.result._replace(slices=views, count=len(views), size=sum(map(len, views)))
        self._reads[index] = read._replace(offsets=left, result=result)
        following = left[0] if left else result.next_offset
        broker.offsets.commit_after_flush(ask.group, ask.topic, queue_id, following, log_end)
        if log_end:
            broker.pop.journal.when_lost(log_end, self._undo(read))
        self._has_moved = True
        return log_end

    def _popped(
        self, pop_time: int, revive_queue_id: int, taken: Sequence[_Read], log_end: int = 0
    ) -> Popped:
        slices: list[memoryview] = []
        queues: list[PoppedQueue] = []
        for flag, queue, start, _, offsets, result in taken:
            slices += result.slices
            queues.append(PoppedQueue(flag, queue.topic, queue.queue_id, start, offsets, {}))
            self._broker.stats.get(
                self._ask.group, queue.topic, queue.queue_id, result.count, result.size, None
            )
        return Popped(
            pop_time,
            self._ask.invisible_ms,
            revive_queue_id,
            self._rest,
            queues,
            slices,
            log_end,
            self._has_moved,
        )


def first_offset(broker: BrokerState, topic: str, queue_id: int, *, starts_first: bool) -> int:
    """Where a group without an offset begins: with all messages, or with the newest one."""
    low = broker.storage.min_offset(topic, queue_id)
    if starts_first:
        return low
    if low <= 0 and broker.storage.store.is_in_memory(topic, queue_id, 0):
        return 0
    return max(0, broker.storage.max_offset(topic, queue_id) - 1)


def _offsets(result: ReadResult, first: int) -> Sequence[int]:
    """The queue offsets of the records of a read."""
    if result.count == result.next_offset - first:
        return range(first, result.next_offset)
    return [
        int.from_bytes(view[_OFFSET_AT : _OFFSET_AT + 8], "big")
        for view in record_views(result.slices)
    ]
