"""Open pop receipts in memory: what was handed out and is not finished.

A check-point is what one pop took from one queue; a pop receipt is one of its messages. Receipts
are found by pop time and queue offset, check-points by the time they are due and by their place in
the journal. Nothing here is searched: each step costs the same with ten open receipts or with ten
thousand.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

REVIVE_QUEUES: Final = 8
# The heap is rebuilt when it has this many entries of finished check-points.
_SPARE_ENTRIES: Final = 1024
_SPARE_OFFSETS: Final = 64

PopQueueKey = tuple[str, str, int]
"""Group, topic that has the records, queue id."""


class PopQueue:
    """The open receipts of a group in one queue."""

    __slots__ = ("_by_offset", "group", "last_pop_time", "queue_id", "receipts", "topic")

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.receipts: dict[tuple[int, int], CheckPoint] = {}
        """By pop time and queue offset."""
        self.last_pop_time = 0
        self._by_offset: list[tuple[int, int, CheckPoint]] = []
        """A heap of check-points by an offset that none of their open ones is below."""

    def free_pop_time(self, wanted: int, offsets: Sequence[int]) -> int:
        """The first time from ``wanted`` on at which no receipt has one of these offsets."""
        while wanted <= self.last_pop_time and any(
            (wanted, offset) in self.receipts for offset in offsets
        ):
            wanted += 1
        return wanted

    def note(self, point: CheckPoint, order: int) -> None:
        """Take a check-point with open receipts into account for `lowest`."""
        heap = self._by_offset
        heapq.heappush(heap, (min(point.offsets), order, point))
        if len(heap) > 2 * len(self.receipts) + _SPARE_OFFSETS:
            self._by_offset = [entry for entry in heap if entry[2].left]
            heapq.heapify(self._by_offset)

    @property
    def lowest(self) -> int | None:
        """The lowest offset that is not finished."""
        heap = self._by_offset
        while heap:
            offset, order, point = heap[0]
            first = min(point.open_offsets, default=None)
            if first == offset:
                return offset
            if first is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (first, order, point))
        return None


class CheckPoint:
    """The messages that one pop took from one queue."""

    __slots__ = (
        "due",
        "invisible_ms",
        "is_suspended",
        "left",
        "offsets",
        "pop_time",
        "queue",
        "redelivered",
        "revive_offset",
        "revive_queue_id",
        "start_offset",
        "written_ms",
    )

    def __init__(
        self,
        queue: PopQueue,
        start_offset: int,
        offsets: Sequence[int],
        pop_time: int,
        invisible_ms: int,
        revive_queue_id: int,
        *,
        is_suspended: bool = False,
    ) -> None:
        self.queue = queue
        self.start_offset = start_offset
        self.offsets = offsets
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.due = pop_time + invisible_ms
        self.revive_queue_id = revive_queue_id
        self.is_suspended = is_suspended
        """Whether the next delivery does not count as a retry."""
        self.left = 0
        """How many of the messages are not finished."""
        self.revive_offset = -1
        """Of its newest record in the journal."""
        self.redelivered: set[int] = set()
        """Messages that are stored again, while the record of their end may still be lost."""
        self.written_ms = 0

    @property
    def open_offsets(self) -> list[int]:
        """The messages that are not finished."""
        receipts, pop_time = self.queue.receipts, self.pop_time
        return [offset for offset in self.offsets if (pop_time, offset) in receipts]


class CheckPoints:
    """All open check-points of a broker."""

    def __init__(self) -> None:
        self._queues: dict[PopQueueKey, PopQueue] = {}
        self._by_due: list[tuple[int, int, CheckPoint]] = []
        self._order = itertools.count()
        self._by_place: list[deque[tuple[int, CheckPoint]]] = [
            deque() for _ in range(REVIVE_QUEUES)
        ]
        self.count = 0
        """Open receipts of all groups."""
        self._open = 0

    def __len__(self) -> int:
        return self._open

    # Queues

    def queue(self, group: str, topic: str, queue_id: int) -> PopQueue:
        """The receipts of a group in a queue; made if need be."""
        key = (group, topic, queue_id)
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = PopQueue(group, topic, queue_id)
        return found

    def find_queue(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """The receipts of a group in a queue, if it ever had one."""
        return self._queues.get((group, topic, queue_id))

    def queues(self, *, group: str | None = None, topic: str | None = None) -> list[PopQueue]:
        """The queues of a group, of a topic, or of both."""
        return [
            queue
            for queue in self._queues.values()
            if (group is None or queue.group == group) and (topic is None or queue.topic == topic)
        ]

    def forget(self, queue: PopQueue) -> None:
        """Drop a queue without open receipts."""
        assert not queue.receipts, "receipts are finished first"
        self._queues.pop((queue.group, queue.topic, queue.queue_id), None)

    # Receipts

    def add(self, point: CheckPoint, unfinished: Sequence[int] | None = None) -> None:
        """Open a check-point: all of its messages, or those that are ``unfinished``."""
        queue, pop_time = point.queue, point.pop_time
        offsets = point.offsets if unfinished is None else unfinished
        receipts = queue.receipts
        for offset in offsets:
            receipts[pop_time, offset] = point
        point.left = len(offsets)
        self.count += point.left
        self._open += 1
        if pop_time > queue.last_pop_time:
            queue.last_pop_time = pop_time
        order = next(self._order)
        queue.note(point, order)
        heapq.heappush(self._by_due, (point.due, order, point))
        if len(self._by_due) > 2 * self._open + _SPARE_ENTRIES:
            self._by_due = [entry for entry in self._by_due if entry[2].left]
            heapq.heapify(self._by_due)

    def finish(self, queue: PopQueue, pop_time: int, offset: int) -> CheckPoint | None:
        """End a receipt; its check-point, or None if there is no such receipt."""
        point = queue.receipts.pop((pop_time, offset), None)
        if point is not None:
            point.left -= 1
            self.count -= 1
            if not point.left:
                self._open -= 1
        return point

    def restore(self, point: CheckPoint, offsets: Sequence[int]) -> None:
        """Open receipts again whose end could not be stored."""
        for offset in offsets:
            point.queue.receipts[point.pop_time, offset] = point
        if not point.left and offsets:
            self._open += 1
            # Its entries may have been dropped meanwhile; a second one does no harm.
            order = next(self._order)
            point.queue.note(point, order)
            heapq.heappush(self._by_due, (point.due, order, point))
            self._replace(point)
        point.left += len(offsets)
        self.count += len(offsets)

    # By time

    @property
    def next_due(self) -> int | None:
        """When the next open check-point is due, in milliseconds."""
        heap = self._by_due
        while heap and not heap[0][2].left:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ms: int) -> CheckPoint | None:
        """The next open check-point that is due; the caller finishes it or puts it back."""
        due = self.next_due
        if due is None or due > now_ms:
            return None
        return heapq.heappop(self._by_due)[2]

    def put_back(self, point: CheckPoint, due: int) -> None:
        """Look at a check-point again at another time."""
        heapq.heappush(self._by_due, (due, next(self._order), point))

    # By place in the journal

    def placed(self, point: CheckPoint, revive_offset: int, now_ms: int) -> None:
        """Note the newest record of a check-point; none of its queue is behind it."""
        point.revive_offset = revive_offset
        point.written_ms = now_ms
        self._by_place[point.revive_queue_id].append((revive_offset, point))

    def placed_before(self, point: CheckPoint, revive_offset: int) -> None:
        """The newest record of a check-point could not be written; this one still counts."""
        point.revive_offset = revive_offset
        self._replace(point)

    def _replace(self, point: CheckPoint) -> None:
        places = self._by_place[point.revive_queue_id]
        places.append((point.revive_offset, point))
        self._by_place[point.revive_queue_id] = deque(sorted(places, key=lambda place: place[0]))

    def first_open(self, revive_queue_id: int) -> CheckPoint | None:
        """The open check-point with the lowest place in a queue of the journal."""
        places = self._by_place[revive_queue_id]
        while places and (not places[0][1].left or places[0][1].revive_offset != places[0][0]):
            places.popleft()
        return places[0][1] if places else None

    def __iter__(self) -> Iterator[CheckPoint]:
        seen: set[int] = set()
        for _, _, point in self._by_due:
            if point.left and id(point) not in seen:
                seen.add(id(point))
                yield point
