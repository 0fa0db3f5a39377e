"""Pulls that found nothing and wait for a message: long polling.

A held pull is answered once: when a message arrives that its filter accepts, when its time is up,
or when its queue is woken (a reset of offsets, a deleted topic). Answering means running the pull
again without holding it, which its ``answer`` does.

RocketMQ notices the end of a hold only in a scan every five seconds; here it ends within one TICK.
The scan is kept for its other purpose: a pull whose filter rejected all new messages is answered,
so that its consumer does not read them again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Callable, Hashable, KeysView
from typing import TypeVar

from penstock.remoting import Peer
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

Matches = Callable[[int, bytes], bool]
QueueKey = tuple[str, int]
_Key = TypeVar("_Key", bound=Hashable)
MAX_HELD = 1 << 18
"""Pulls held by a broker, each some 700 bytes."""
MAX_HELD_AT_QUEUE = 1 << 14
"""One message may answer all of them at once, which takes 0.2 s; more than any group needs."""
# The heap is rebuilt when it has this many answered pulls.
_SPARE_DEADLINES = 1024


class HeldPull:
    """One waiting pull.

    ``matches`` is None when the pull accepts every message; else it is called with the tags code
    and the properties of each message that arrives.
    """

    __slots__ = (
        "answer",
        "deadline",
        "group",
        "is_answered",
        "matches",
        "offset",
        "peer",
        "queue",
    )

    def __init__(
        self,
        queue: QueueKey,
        offset: int,
        deadline: float,
        answer: Callable[[], None],
        *,
        matches: Matches | None = None,
        peer: Peer | None = None,
        group: str = "",
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.deadline = deadline
        self.answer = answer
        self.matches = matches
        self.peer = peer
        self.group = group
        self.is_answered = False


class HeldPulls(Service):
    """All held pulls of a broker, by queue and by deadline."""

    TICK = 0.1
    RECHECK = 5.0

    def __init__(
        self,
        clock: Clock,
        *,
        end_of: Callable[[str, int], int] = lambda topic, queue_id: 0,
        max_held: int = MAX_HELD,
        max_held_at_queue: int = MAX_HELD_AT_QUEUE,
    ) -> None:
        """``end_of`` returns the offset after the last message of a queue."""
        super().__init__()
        self._clock = clock
        self._end_of = end_of
        self._max_held = max_held
        self._max_held_at_queue = max_held_at_queue
        # Dicts are used as ordered sets: answers keep their order, and removal is cheap.
        self._by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._by_deadline: list[tuple[float, int, HeldPull]] = []
        self._order = itertools.count()
        self._count = 0
        self._woken = asyncio.Event()
        self._wake_at = math.inf
        self.is_released = False
        """Whether pulls are no longer held."""

    def __len__(self) -> int:
        return self._count

    @property
    def queues(self) -> KeysView[QueueKey]:
        """A live view of the queues that pulls wait for."""
        return self._by_queue.keys()

    def waits_for(self, queue: QueueKey) -> bool:
        """Whether any pull waits at this queue."""
        return queue in self._by_queue

    def has_room(self, queue: QueueKey) -> bool:
        """Whether one more pull may be held at this queue; else it is answered at once."""
        waiting = self._by_queue.get(queue, ())
        return self._count < self._max_held and len(waiting) < self._max_held_at_queue

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until something matches or its deadline passes."""
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        if pull.peer is not None:
            self._by_peer.setdefault(pull.peer, {})[pull] = None
        self._count += 1
        heapq.heappush(self._by_deadline, (pull.deadline, next(self._order), pull))
        if pull.deadline < self._wake_at:
            self._woken.set()
        if len(self._by_deadline) > 2 * self._count + _SPARE_DEADLINES:
            # A busy queue answers its pulls long before their deadlines; their entries would
            # stay in the heap until then.
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].is_answered]
            heapq.heapify(self._by_deadline)

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        """Answer the pulls of a queue that accept the message before ``next_offset``."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        woken = [
            pull
            for pull in waiting
            if next_offset > pull.offset
            and (pull.matches is None or pull.matches(tags_code, properties))
        ]
        for pull in woken:
            self._answer(pull)

    def wake(self, queue: QueueKey, group: str | None = None) -> None:
        """Answer all pulls of a queue, or those of one group."""
        for pull in list(self._by_queue.get(queue, ())):
            if group is None or pull.group == group:
                self._answer(pull)

    def release(self) -> None:
        """Answer all pulls and hold no more: the broker is about to stop."""
        self.is_released = True
        for queue in list(self._by_queue):
            self.wake(queue)

    def drop_peer(self, peer: Peer) -> None:
        """Drop the pulls of a closed connection."""
        for pull in list(self._by_peer.get(peer, ())):
            self._remove(pull)

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        checked = self._clock.monotonic()
        while True:
            await self._sleep(checked + self.RECHECK)
            now = self._clock.monotonic()
            self._answer_overdue(now)
            if now - checked >= self.RECHECK:
                checked = now
                self._answer_passed()

    async def _sleep(self, recheck_at: float) -> None:
        """Sleep at least a tick, until the next deadline or check, or until a pull is held."""
        self._woken.clear()
        now = self._clock.monotonic()
        self._wake_at = math.inf
        if self._count:
            first = min(self._by_deadline[0][0], recheck_at)
            self._wake_at = max(first, now + self.TICK)
        timer = None
        if self._wake_at < math.inf:
            timer = self._clock.call_later(self._wake_at - now, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _answer_passed(self) -> None:
        for queue, waiting in list(self._by_queue.items()):
            end = self._end_of(*queue)
            for pull in [pull for pull in waiting if pull.offset < end]:
                self._answer(pull)

    def _answer_overdue(self, now: float) -> None:
        overdue = self._by_deadline
        while overdue and (overdue[0][2].is_answered or overdue[0][0] <= now):
            self._answer(heapq.heappop(overdue)[2])

    def _answer(self, pull: HeldPull) -> None:
        if pull.is_answered:
            return
        self._remove(pull)
        try:
            pull.answer()
        except Exception:
            # A pull that cannot be answered must not block the others.
            log.exception("held pull not answered queue=%s offset=%d", pull.queue, pull.offset)

    def _remove(self, pull: HeldPull) -> None:
        if pull.is_answered:
            return
        pull.is_answered = True
        self._count -= 1
        _discard(self._by_queue, pull.queue, pull)
        if pull.peer is not None:
            _discard(self._by_peer, pull.peer, pull)


def _discard(table: dict[_Key, dict[HeldPull, None]], key: _Key, pull: HeldPull) -> None:
    waiting = table[key]
    del waiting[pull]
    if not waiting:
        del table[key]
