"""Pops that found nothing and wait: long polling of pop consumption.

Unlike a held pull, a held pop takes what it finds from the others. So one message wakes one pop of
each group, and that one wakes the next if it left something. A pop is woken in a turn of its own,
after the turn in which the message was written: it appends a record, and its answer must not leave
before that record is written.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final

from penstock.model.names import pop_retry_topic, pop_retry_topic_v2
from penstock.remoting import Peer
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

ANY_QUEUE: Final = -1
WAKE_EVERY: Final = 800
"""At each such offset a pop is woken even if its filter rejects the message, so that stretches
without a match are passed."""
_SPARE_ENTRIES: Final = 1024

PopKey = tuple[str, str, int]
"""Topic, group, queue id or -1."""
Run = Callable[[bool], bool | None]
"""Runs a held pop again; with True it must be answered. None: it waits on; else it was answered,
and True means that more is there."""


class HeldPop:
    """One waiting pop."""

    __slots__ = ("deadline", "is_answered", "key", "matches", "peer", "run")

    def __init__(
        self,
        key: PopKey,
        deadline: float,
        run: Run,
        *,
        matches: Callable[[int, bytes], bool] | None = None,
        peer: Hashable | None = None,
    ) -> None:
        """``matches`` is asked with tags code and properties; None accepts every message."""
        self.key = key
        self.deadline = deadline
        self.run = run
        self.matches = matches
        self.peer = peer
        self.is_answered = False


_Entry = tuple[float, int, HeldPop]


class _Topics(Collection[tuple[str, int]]):
    """The queues that a store has to report: all queues of the topics that pops wait for."""

    def __init__(self, watched: dict[str, dict[tuple[str, str], int]]) -> None:
        self._watched = watched

    def __contains__(self, queue: object) -> bool:
        return isinstance(queue, tuple) and queue[0] in self._watched

    def __len__(self) -> int:
        return len(self._watched)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        raise TypeError("the queues of a watched topic are not listed")


class HeldPops(Service):
    """All held pops of a broker, by key and by deadline."""

    TICK = 0.05

    def __init__(
        self,
        clock: Clock,
        *,
        limit_at_key: Callable[[], int] = lambda: 1024,
        limit: Callable[[], int] = lambda: 100_000,
        is_newest_first: bool = False,
        listen: Callable[[HeldPops, bool], None] = lambda held, is_wanted: None,
    ) -> None:
        """With ``is_newest_first`` the last to expire is woken first.

        ``listen`` is called with True when arrivals matter from now on, with False when not: while
        no pop waits, sends and their readers pay nothing for it.
        """
        self._listen = listen
        super().__init__()
        self._clock = clock
        self._limit_at_key = limit_at_key
        self._limit = limit
        self._sign = -1 if is_newest_first else 1
        self._by_key: dict[PopKey, list[_Entry]] = {}
        self._counts: dict[PopKey, int] = {}
        self._by_peer: dict[Hashable, dict[HeldPop, None]] = {}
        self._by_deadline: list[_Entry] = []
        self._watched: dict[str, dict[tuple[str, str], int]] = {}
        """By topic that has records: topic and group of the pops that want them."""
        self.queues = _Topics(self._watched)
        """A live view of the queues that pops wait for."""
        self._order = itertools.count()
        self._count = 0
        self._to_wake: dict[PopKey, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._wake_at = math.inf
        self.is_released = False
        """Whether pops are no longer held."""

    def __len__(self) -> int:
        return self._count

    def count_at(self, key: PopKey) -> int:
        """How many pops are held at a key."""
        return self._counts.get(key, 0)

    def has_room(self, key: PopKey) -> bool:
        """Whether one more pop may be held at this key."""
        return self._count < self._limit() and self.count_at(key) < self._limit_at_key()

    # Holding

    def hold(self, pop: HeldPop) -> None:
        """Keep a pop until something comes or its time is up."""
        order = next(self._order)
        entries = self._by_key.setdefault(pop.key, [])
        heapq.heappush(entries, (self._sign * pop.deadline, order, pop))
        heapq.heappush(self._by_deadline, (pop.deadline, order, pop))
        self._counts[pop.key] = self._counts.get(pop.key, 0) + 1
        self._count += 1
        if pop.peer is not None:
            self._by_peer.setdefault(pop.peer, {})[pop] = None
        if self._counts[pop.key] == 1:
            self._watch(pop.key, 1)
        if pop.deadline < self._wake_at:
            self._woken.set()
        if len(self._by_deadline) > 2 * self._count + _SPARE_ENTRIES:
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].is_answered]
            heapq.heapify(self._by_deadline)
        if len(entries) > 2 * self._counts[pop.key] + _SPARE_ENTRIES:
            entries[:] = [entry for entry in entries if not entry[2].is_answered]
            heapq.heapify(entries)

    def _watch(self, key: PopKey, step: int) -> None:
        topic, group, _ = key
        pair = (topic, group)
        if step > 0 and not self._watched:
            self._listen(self, True)
        for name in (topic, pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)):
            pairs = self._watched.setdefault(name, {})
            count = pairs.get(pair, 0) + step
            if count:
                pairs[pair] = count
            else:
                del pairs[pair]
                if not pairs:
                    del self._watched[name]
        if not self._watched:
            self._listen(self, False)

    # Waking

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        """Wake one pop of each group for a message that became visible; called by the store."""
        for pair in self._watched.get(topic, ()):
            is_retry = topic != pair[0]
            for key in ((*pair, ANY_QUEUE), (*pair, queue_id)):
                if key in self._to_wake:
                    continue
                first = self._first(key)
                if first is not None and (
                    is_retry
                    or first.matches is None
                    or next_offset % WAKE_EVERY == 1
                    or first.matches(tags_code, properties)
                ):
                    self.wake_soon(key)

    def wake_soon(self, key: PopKey) -> None:
        """Run the first pop of a key again in the next turn."""
        if not self._to_wake:
            assert self._loop is not None, "the service was started"
            self._loop.call_soon(self._wake)
        self._to_wake[key] = None

    def wake_group(self, topic: str, group: str | None = None) -> None:
        """Run the pops of a topic again: of a group, or of all groups."""
        for key in list(self._by_key):
            if key[0] == topic and group in (None, key[1]):
                self.wake_soon(key)

    def _wake(self) -> None:
        keys, self._to_wake = self._to_wake, {}
        for key in keys:
            first = self._first(key)
            if first is not None and self._run_again(first, is_last=False):
                self.wake_soon(key)

    def _first(self, key: PopKey) -> HeldPop | None:
        entries = self._by_key.get(key)
        while entries:
            pop = entries[0][2]
            if not pop.is_answered:
                if not (isinstance(pop.peer, Peer) and pop.peer.is_closed):
                    return pop
                self._remove(pop)
            heapq.heappop(entries)
        self._by_key.pop(key, None)
        return None

    def _run_again(self, pop: HeldPop, *, is_last: bool) -> bool:
        """Run a held pop; whether it was answered and left something."""
        try:
            result = pop.run(is_last)
        except Exception:
            # A pop that cannot be answered must not block the others.
            log.exception("held pop not answered key=%s", pop.key)
            result = False
        if result is not None:
            self._remove(pop)
        return bool(result)

    def _remove(self, pop: HeldPop) -> None:
        if pop.is_answered:
            return
        pop.is_answered = True
        self._count -= 1
        left = self._counts[pop.key] - 1
        if left:
            self._counts[pop.key] = left
        else:
            del self._counts[pop.key]
            self._by_key.pop(pop.key, None)
            self._watch(pop.key, -1)
        if pop.peer is not None:
            of_peer = self._by_peer[pop.peer]
            del of_peer[pop]
            if not of_peer:
                del self._by_peer[pop.peer]

    def drop_peer(self, peer: Hashable) -> None:
        """Drop the pops of a closed connection."""
        for pop in list(self._by_peer.get(peer, ())):
            self._remove(pop)

    def release(self) -> None:
        """Answer all pops and hold no more: the broker is about to stop."""
        self.is_released = True
        for _, _, pop in sorted(self._by_deadline):
            if not pop.is_answered:
                self._run_again(pop, is_last=True)

    # By time

    async def _run(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        ready()
        while True:
            await self._sleep()
            now = self._clock.monotonic()
            heap = self._by_deadline
            while heap and (heap[0][2].is_answered or heap[0][0] <= now):
                pop = heapq.heappop(heap)[2]
                if not pop.is_answered:
                    self._run_again(pop, is_last=True)

    async def _sleep(self) -> None:
        """Sleep at least a tick, until the next deadline or until a pop is held."""
        self._woken.clear()
        now = self._clock.monotonic()
        self._wake_at = math.inf
        if self._count:
            self._wake_at = max(self._by_deadline[0][0], now + self.TICK)
        timer = None
        if self._wake_at < math.inf:
            timer = self._clock.call_later(self._wake_at - now, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
