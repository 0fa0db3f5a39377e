"""The messages of one queue between the pull that brought them and the commit that ends them.

Pure: no clock, no locks, no I/O; times are handed in. It lives on the session loop alone, and it
is the only place that does arithmetic with queue offsets.

Messages are kept in a dict by offset, and their order in a deque of offsets. A broker answers in
ascending order, so nearly every put is an append, and what finishes is mostly near the low end.
Removal therefore only touches the dict; an offset that is no longer in it is *stale* and leaves the
deque when it reaches an end:

    order   3 | 5 8 9 | 12       3 and 12 are stale: skipped and dropped by the next look at an end
    cached      5 · 9            8 finished in the middle: stale, too, but nobody has to care yet

Both ends of the range, all a commit or a span needs, cost O(1) on average. What breaks the order
(a queue pulled again from below) is rare and pays with a sort.

For orderly consumption the lowest messages are *taken*: they stay counted but move to a second
range until they are committed or put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Property

NOTHING_REMOVED = -1
LOCK_LIFE_SECONDS = 30.0
PULL_IDLE_SECONDS = 120.0
EXPIRED_A_ROUND = 16


class ProcessQueue:
    """What a consumer holds of one queue, sorted by offset.

    The times are monotonic seconds: ``last_pull_at``, ``last_consume_at``, ``last_lock_at``.
    """

    __slots__ = (
        "_cached",
        "_highest",
        "_largest",
        "_on_room",
        "_order",
        "_room_at",
        "_taken",
        "accumulated",
        "body_bytes",
        "count",
        "is_consuming",
        "is_dropped",
        "is_leaving",
        "is_locked",
        "last_consume_at",
        "last_lock_at",
        "last_pull_at",
        "queue",
        "unlock_attempts",
    )

    def __init__(self, queue: MessageQueue, now: float) -> None:
        self.queue: MessageQueue = queue
        self.last_pull_at: float = now
        self.last_consume_at: float = now
        self.last_lock_at: float = now
        self.is_dropped: bool = False
        self.is_leaving: bool = False
        """Dropped by a rebalance that waits for the handler: what it still handles counts."""
        self.is_locked: bool = False
        self.unlock_attempts: int = 0
        self._on_room: Callable[[], None] | None = None
        self._room_at = 0
        self.clear()

    def clear(self) -> None:
        """Forget all messages; flags of ownership and times stay."""
        self.count: int = 0
        self.body_bytes: int = 0
        self.accumulated: int = 0
        self.is_consuming: bool = False
        self._cached: dict[int, StoredMessage] = {}
        self._order: deque[int] = deque()
        self._taken: dict[int, StoredMessage] = {}
        self._largest = 0
        self._highest = -1

    def when_down_to(self, count: int, on_room: Callable[[], None] | None) -> None:
        """Call ``on_room`` once, as soon as no more than ``count`` messages are left."""
        self._room_at = count
        self._on_room = on_room

    def __contains__(self, queue_offset: object) -> bool:
        """Whether a message at that offset waits or was taken."""
        return queue_offset in self._cached or queue_offset in self._taken

    def __iter__(self) -> Iterator[StoredMessage]:
        """The messages that wait, lowest offset first."""
        return iter([self._cached[offset] for offset in sorted(self._cached)])

    def put(self, messages: Sequence[StoredMessage], max_offset: int = 0) -> bool:
        """Add pulled messages; true when the queue was idle and now has something to consume.

        An offset that is already there is replaced, and not counted again. ``max_offset`` is where
        the broker's queue ended when it answered.
        """
        cached, order = self._cached, self._order
        self._trim()
        added_bytes = added = 0
        last = order[-1] if order else -1
        in_order = True
        for message in messages:
            offset = message.queue_offset
            old = cached.get(offset)
            cached[offset] = message
            added_bytes += len(message.body)
            if old is not None:
                added_bytes -= len(old.body)
                continue
            added += 1
            self._largest = offset
            if offset > last:
                order.append(offset)
                last = offset
            else:
                in_order = False
        if not in_order:
            self._order = deque(sorted(cached))
        if last > self._highest:
            self._highest = last
        self.count += added
        self.body_bytes += added_bytes
        if messages and max_offset > messages[-1].queue_offset:
            self.accumulated = max_offset - messages[-1].queue_offset
        if cached and not self.is_consuming:
            self.is_consuming = True
            return True
        return False

    def passed(self, next_offset: int, max_offset: int) -> None:
        """A pull went on to ``next_offset``, past what was filtered out."""
        self.accumulated = max(0, max_offset - next_offset + 1)

    def remove(self, messages: Iterable[StoredMessage]) -> int:
        """Take finished messages out; return the offset that may be committed now.

        That is the lowest offset still here, or one past the largest ever put when nothing is left;
        `NOTHING_REMOVED` when nothing was here in the first place.
        """
        cached = self._cached
        if not cached:
            return NOTHING_REMOVED
        removed = removed_bytes = 0
        for message in messages:
            old = cached.pop(message.queue_offset, None)
            if old is not None:
                removed += 1
                removed_bytes += len(old.body)
        self._shrink(removed, removed_bytes)
        first = self._first()
        return self._largest + 1 if first is None else first

    def take(self, limit: int) -> list[StoredMessage]:
        """Move up to ``limit`` of the lowest messages to those being consumed, and return them.

        With nothing left to take the queue becomes idle: the next put announces work again.
        """
        batch: list[StoredMessage] = []
        while len(batch) < limit:
            first = self._first()
            if first is None:
                break
            self._order.popleft()
            message = self._cached.pop(first)
            self._taken[first] = message
            batch.append(message)
        if not batch:
            self.is_consuming = False
        return batch

    def commit(self, up_to: int | None = None) -> int:
        """Finish what was taken, up to an offset if given; return the offset after it.

        `NOTHING_REMOVED` when nothing was taken.
        """
        done = self._taken
        if up_to is not None:
            done = {offset: message for offset, message in done.items() if offset <= up_to}
        if not done:
            return NOTHING_REMOVED
        after = max(done) + 1
        self._shrink(len(done), sum(len(message.body) for message in done.values()))
        if len(done) == len(self._taken):
            self._taken = {}
        else:
            for offset in done:
                del self._taken[offset]
        return after

    def finish(self, messages: Iterable[StoredMessage]) -> None:
        """Finish just these of the taken messages; the others stay taken."""
        done = [
            taken
            for message in messages
            if (taken := self._taken.pop(message.queue_offset, None)) is not None
        ]
        self._shrink(len(done), sum(len(message.body) for message in done))

    def roll_back(self) -> None:
        """Put everything taken back where it came from."""
        self._put_back(list(self._taken.values()))
        self._taken = {}

    def consume_again(self, messages: Iterable[StoredMessage]) -> None:
        """Put just these of the taken messages back."""
        back = [
            taken
            for message in messages
            if (taken := self._taken.pop(message.queue_offset, None)) is not None
        ]
        self._put_back(back)

    @property
    def span(self) -> int:
        """From the lowest to the highest waiting offset; zero when empty."""
        first = self._first()
        if first is None:
            return 0
        return self._last(first) - first

    @property
    def reach(self) -> int:
        """From the lowest waiting offset to the highest ever put; zero when empty.

        What one stuck message holds back, also after everything behind it has finished: the
        committed offset cannot pass it, so a crash repeats all of that.
        """
        first = self._first()
        return 0 if first is None else self._highest - first

    @property
    def highest(self) -> int:
        """The highest offset ever put; -1 before."""
        return self._highest

    @property
    def lowest(self) -> StoredMessage | None:
        """The waiting message with the lowest offset."""
        first = self._first()
        return None if first is None else self._cached[first]

    @property
    def cached_range(self) -> tuple[int, int, int]:
        """Lowest and highest waiting offset and their number; zeros when there is none."""
        first = self._first()
        return (0, 0, 0) if first is None else (first, self._last(first), len(self._cached))

    @property
    def taken_range(self) -> tuple[int, int, int]:
        """Lowest and highest offset being consumed and their number; zeros when there is none."""
        taken = self._taken
        return (min(taken), max(taken), len(taken)) if taken else (0, 0, 0)

    @property
    def is_empty(self) -> bool:
        """Whether no message waits; taken ones are not asked."""
        return not self._cached

    def is_lock_expired(self, now: float) -> bool:
        """Whether the broker may have given the lock to somebody else."""
        return now - self.last_lock_at > LOCK_LIFE_SECONDS

    def is_pull_expired(self, now: float) -> bool:
        """Whether nobody pulled for so long that the pull loop must have been lost."""
        return now - self.last_pull_at > PULL_IDLE_SECONDS

    def expired(self, now_ms: int, timeout_ms: int, *, scan_all: bool) -> list[StoredMessage]:
        """Messages whose listener has been running for more than ``timeout_ms``, at most sixteen.

        RocketMQ stops at the first one that is not late, so a stuck message is only seen once it
        is the lowest; with ``scan_all`` a quick one before it does not hide it.
        """
        late: list[StoredMessage] = []
        for message in self:
            if len(late) == EXPIRED_A_ROUND:
                break
            started = message.peek(Property.CONSUME_START_TIME)
            if started is not None and now_ms - int(started) > timeout_ms:
                late.append(message)
            elif not scan_all:
                break
        return late

    def _first(self) -> int | None:
        order, cached = self._order, self._cached
        while order:
            if order[0] in cached:
                return order[0]
            order.popleft()
        return None

    def _last(self, default: int) -> int:
        self._trim()
        return self._order[-1] if self._order else default

    def _trim(self) -> None:
        order, cached = self._order, self._cached
        while order and order[-1] not in cached:
            order.pop()

    def _put_back(self, messages: Sequence[StoredMessage]) -> None:
        if not messages:
            return
        first = self._first()
        offsets = sorted(message.queue_offset for message in messages)
        for message in messages:
            if message.queue_offset in self._cached:
                # Pulled a second time while it was taken: two copies were counted, one stays.
                self._shrink(1, len(message.body))
            self._cached[message.queue_offset] = message
        if first is None or offsets[-1] < first:
            self._order.extendleft(reversed(offsets))
        else:
            self._order = deque(sorted(self._cached))

    def _shrink(self, removed: int, removed_bytes: int) -> None:
        self.count -= removed
        self.body_bytes = self.body_bytes - removed_bytes if self.count > 0 else 0
        if self._on_room is not None and self.count <= self._room_at:
            on_room, self._on_room = self._on_room, None
            on_room()
