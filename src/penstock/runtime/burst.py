"""Items handed to another thread in bursts, with one wake-up for each burst.

Waking another thread costs a system call and a switch of the interpreter lock, often more than the
work itself. So only the first item of a burst requests a wake-up; the thread finds the later ones
when it arrives. The flag that says "requested" is cleared before the items are taken: an item put
after that requests a wake-up of its own, an item put before it is among those taken.

Two threads that put at the same moment may both request one. The second finds nothing to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

_T = TypeVar("_T")

Schedule: TypeAlias = Callable[[Callable[[], None]], object]
"""Has a function called by the other thread, such as ``loop.call_soon_threadsafe``."""


class WakeUp:
    """Has ``work`` called by another thread; requests made before that call count as one."""

    __slots__ = ("_is_due", "_schedule", "_work")

    def __init__(self, schedule: Schedule, work: Callable[[], None]) -> None:
        self._schedule = schedule
        self._work = work
        self._is_due = False

    def request(self) -> None:
        """Call it from any thread; what ``schedule`` raises is raised here."""
        if not self._is_due:
            self._is_due = True
            try:
                self._schedule(self._run)
            except BaseException:
                self._is_due = False
                raise

    def _run(self) -> None:
        self._is_due = False
        self._work()


class Burst(Generic[_T]):
    """A queue from any number of threads to one, which gets the items in lists.

    With a ``limit``, more items than that are taken in several calls, each of which ``reschedule``
    (by default ``schedule``) has made.
    """

    __slots__ = ("_is_due", "_items", "_limit", "_reschedule", "_schedule", "_take")

    def __init__(
        self,
        schedule: Schedule,
        take: Callable[[list[_T]], None],
        *,
        limit: int | None = None,
        reschedule: Schedule | None = None,
    ) -> None:
        self._schedule = schedule
        self._reschedule = reschedule or schedule
        self._take = take
        self._limit = limit
        self._items: deque[_T] = deque()
        # The same flag as in `WakeUp`, here because `put` runs once per message.
        self._is_due = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: _T) -> None:
        """Hand an item over; called from any thread. If ``schedule`` raises, it is not taken."""
        self._items.append(item)
        if not self._is_due:
            self._is_due = True
            try:
                self._schedule(self.drain)
            except BaseException:
                self._is_due = False
                self._items.remove(item)
                raise

    def drain(self) -> None:
        """Take what is here; called on the receiving thread, usually by the wake-up."""
        self._is_due = False
        items = self._items
        # What is here now and no more: fast senders must not keep the receiver here for good.
        count = len(items)
        if self._limit is not None and count > self._limit:
            count = self._limit
            self._is_due = True
            self._reschedule(self.drain)
        if count:
            pop = items.popleft
            self._take([pop() for _ in range(count)])
