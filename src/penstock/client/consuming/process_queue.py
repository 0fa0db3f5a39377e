"""The messages of one queue between the pull that brought them and the commit that ends them.

Pure: no clock, no locks, no I/O; times are passed in. It lives on the session loop alone, and it
is the only place that does arithmetic with queue offsets.

Batches are kept in a dict by their first offset, and their order in a deque of first offsets. A
broker answers in ascending order, so nearly every put is an append, and what finishes is mostly
near the low end. Removal therefore only touches the dict; an offset that is no longer in it is
*stale* and leaves the deque when it reaches an end:

    order   3 | 5 8 9 | 12       3 and 12 are stale: skipped and dropped by the next look at an end
    cached      5 · 9            8 finished in the middle: stale, too, but harmless for now

Both ends of the range, all a commit or a span needs, cost O(1) on average. What breaks the order
(a queue pulled again from below) is rare and costs a sort.

A batch is put and removed as a whole. When some of its messages end differently (a handler that
failed, a timeout) it is split into batches of one message.

For orderly consumption the lowest messages are *taken*: they stay counted but move to a second
range until they are committed or put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from penstock.client.consuming.message_batches import MessageBatch, batches_of
from penstock.errors import BodyDamaged
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Property

NOTHING_REMOVED = -1
LOCK_LIFE_SECONDS = 30.0
"""RocketMQ's; half of the time after which a broker gives a lock to another member."""
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
        "damaged",
        "is_consuming",
        "is_dropped",
        "is_leaving",
        "is_locked",
        "last_consume_at",
        "last_lock_at",
        "last_pull_at",
        "lock_life",
        "queue",
        "unlock_attempts",
    )

    def __init__(self, queue: MessageQueue, now: float) -> None:
        self.queue: MessageQueue = queue
        self.last_pull_at: float = now
        self.last_consume_at: float = now
        self.last_lock_at: float = now
        self.lock_life: float = LOCK_LIFE_SECONDS
        """How long after ``last_lock_at`` the lock is relied on."""
        self.is_dropped: bool = False
        self.is_leaving: bool = False
        """Dropped by a rebalance that waits for the handler: what it still handles counts."""
        self.is_locked: bool = False
        self.unlock_attempts: int = 0
        self.damaged: dict[int, BodyDamaged] = {}
        """Messages whose body is not the one that was stored, by offset; handlers never get them.
        Nearly always empty."""
        self._on_room: Callable[[], None] | None = None
        self._room_at = 0
        self.clear()

    def clear(self) -> None:
        """Forget all messages; flags of ownership and times stay."""
        self.count: int = 0
        self.body_bytes: int = 0
        self.accumulated: int = 0
        self.is_consuming: bool = False
        self._cached: dict[int, MessageBatch] = {}
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
        return (
            queue_offset in self._cached
            or queue_offset in self._taken
            or (isinstance(queue_offset, int) and self._holder(queue_offset) is not None)
        )

    def __iter__(self) -> Iterator[StoredMessage]:
        """The messages that wait, lowest offset first."""
        cached = self._cached
        return iter([message for first in sorted(cached) for message in cached[first].messages])

    def put(self, batches: Sequence[MessageBatch], max_offset: int = 0) -> bool:
        """Add a pull; true when the queue was idle and now has something to consume.

        An offset that is already there is replaced, and not counted again. ``max_offset`` is where
        the broker's queue ended when it answered.
        """
        cached, order = self._cached, self._order
        last = self._last(-1)
        added = added_bytes = 0
        for number, batch in enumerate(batches):
            first = batch.first_offset
            if first <= last:
                self._put_singly(batches[number:])
                last = self._last(last)
                break
            cached[first] = batch
            order.append(first)
            self._largest = last = batch.last_offset
            added += batch.count
            added_bytes += batch.body_bytes
        if last > self._highest:
            self._highest = last
        self.count += added
        self.body_bytes += added_bytes
        if batches and max_offset > batches[-1].last_offset:
            self.accumulated = max_offset - batches[-1].last_offset
        if cached and not self.is_consuming:
            self.is_consuming = True
            return True
        return False

    def _put_singly(self, batches: Iterable[MessageBatch]) -> None:
        """Add batches that may overlap others, message by message."""
        self._split_all()
        cached = self._cached
        for single in batches_of([message for batch in batches for message in batch.messages], 1):
            offset = single.first_offset
            old = cached.get(offset)
            if old is None:
                self.count += 1
                self._largest = offset
            else:
                self.body_bytes -= old.body_bytes
            self.body_bytes += single.body_bytes
            cached[offset] = single
        self._order = deque(sorted(cached))

    def note_damaged(self, damaged: Mapping[int, BodyDamaged]) -> None:
        """Remember which messages of a pull are damaged; forget those that are finished."""
        first = self._first()
        self.damaged = {
            offset: error
            for offset, error in self.damaged.items()
            if (first is not None and offset >= first) or offset in self._taken
        }
        self.damaged.update(damaged)

    def passed(self, next_offset: int, max_offset: int) -> None:
        """A pull went on to ``next_offset``, past what was filtered out."""
        self.accumulated = max(0, max_offset - next_offset + 1)

    def remove(self, batches: Iterable[MessageBatch]) -> int:
        """Take finished batches out; return the offset that may be committed now.

        That is the lowest offset still here, or one past the largest ever put when nothing is left;
        `NOTHING_REMOVED` when nothing was here in the first place. A batch need not be one that was
        put: its messages are found by their offsets.
        """
        cached = self._cached
        if not cached:
            return NOTHING_REMOVED
        removed = removed_bytes = 0
        for batch in batches:
            first = batch.first_offset
            if cached.get(first) is batch:
                del cached[first]
                removed += batch.count
                removed_bytes += batch.body_bytes
                continue
            for message in batch.messages:
                single = self._pop(message.queue_offset)
                if single is not None:
                    removed += 1
                    removed_bytes += single.body_bytes
        self._shrink(removed, removed_bytes)
        return self._may_commit()

    def _pop(self, offset: int) -> MessageBatch | None:
        """Take one message out, of whichever batch it is in."""
        holder = self._holder(offset)
        if holder is None:
            return None
        self._split(holder)
        return self._cached.pop(offset)

    def _may_commit(self) -> int:
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
            self._split(self._cached[first])
            self._order.popleft()
            message = self._cached.pop(first).messages[0]
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
        return None if first is None else self._cached[first].messages[0]

    @property
    def cached_range(self) -> tuple[int, int, int]:
        """Lowest and highest waiting offset and their number; zeros when there is none."""
        first = self._first()
        if first is None:
            return 0, 0, 0
        return first, self._last(first), self.count - len(self._taken)

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
        """Whether the broker may have given the lock to another member."""
        return now - self.last_lock_at > self.lock_life

    def is_pull_expired(self, now: float) -> bool:
        """Whether the last pull is so long ago that the pull loop must have been lost."""
        return now - self.last_pull_at > PULL_IDLE_SECONDS

    def expired(self, now_ms: int, timeout_ms: int, *, scan_all: bool) -> list[StoredMessage]:
        """Messages whose listener has been running for more than ``timeout_ms``, at most sixteen.

        RocketMQ stops at the first one that is not late, so a stuck message is only seen once it
        is the lowest; with ``scan_all`` a quick one before it does not hide it.
        """
        if scan_all and not any(batch.is_decoded for batch in self._cached.values()):
            return []  # No handler has begun.
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
        order, cached = self._order, self._cached
        while order:
            batch = cached.get(order[-1])
            if batch is not None:
                return batch.last_offset
            order.pop()
        return default

    def _holder(self, offset: int) -> MessageBatch | None:
        """The batch that holds the message at this offset."""
        batch = self._cached.get(offset)
        if batch is not None:
            return batch
        return next((batch for batch in self._cached.values() if batch.holds(offset)), None)

    def _split(self, batch: MessageBatch) -> None:
        """Replace a batch by batches of one message each."""
        if batch.count == 1:
            return
        del self._cached[batch.first_offset]
        for single in batches_of(batch.messages, 1):
            self._cached[single.first_offset] = single
        self._order = deque(sorted(self._cached))

    def _split_all(self) -> None:
        for batch in [batch for batch in self._cached.values() if batch.count > 1]:
            self._split(batch)

    def _put_back(self, messages: Sequence[StoredMessage]) -> None:
        if not messages:
            return
        self._split_all()
        first = self._first()
        offsets = sorted(message.queue_offset for message in messages)
        for single in batches_of(messages, 1):
            old = self._cached.get(single.first_offset)
            if old is not None:
                # Pulled a second time while it was taken: two copies were counted, one stays.
                self._shrink(1, old.body_bytes)
            self._cached[single.first_offset] = single
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
