"""Futures of sends that threads wait for, and the window of open ones.

Results come from the session's thread, those of a batch together; `async_send_futures` is the same
for event loops.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from penstock.client.producing.receipts import Receipt
from penstock.errors import PenstockError

_RECHECK_SECONDS: Final = 1.0
_PARTS: Final = frozenset(vars(Future()))
"""The attributes of an ordinary future."""


class SendFuture(Future[Receipt]):
    """A future that becomes an ordinary one only when that is needed.

    To make and to settle an ordinary future, with its condition, lock and two lists, takes longer
    than everything else a client does for a message. Most futures are only asked for their result,
    after it has come. So this one has just a place for its result. The other attributes are made
    when a caller waits, adds a callback or passes it to `concurrent.futures.wait`.
    """

    _outcome: Receipt | PenstockError | None = None
    _is_whole = False

    def __init__(self, window: Window) -> None:
        # Future.__init__ is not called: `__getattr__` makes the attributes when needed.
        self.window = window

    def __call__(self, result: Receipt | PenstockError) -> None:
        """Set the result; called on the session's loop."""
        self.window.settle((self,), (result,))

    def done(self) -> bool:
        return self._outcome is not None or (self._is_whole and super().done())

    def result(self, timeout: float | None = None) -> Receipt:
        outcome = self._outcome
        return outcome if type(outcome) is Receipt else super().result(timeout)

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self.window.lock:
            if not self._is_whole:
                whole: Future[Receipt] = Future()
                whole.set_running_or_notify_cancel()
                _settle(whole, self._outcome)
                # In one step: another thread sees none of them or all.
                vars(self).update(vars(whole))
                self._is_whole = True
        return vars(self)[name]


class Window:
    """Limits the open sends of one producer; used by any number of threads."""

    __slots__ = ("_has_room", "_is_wanted", "_limit", "_submitted", "answered", "lock")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._submitted = itertools.count(1)
        self._has_room = threading.Event()
        self._is_wanted = False
        self.answered = 0
        self.lock = threading.Lock()
        """Held while a future becomes an ordinary one, and while results are set."""

    def expect(self) -> SendFuture:
        """A new future; waits while the window is full."""
        number = next(self._submitted)
        if number - self.answered > self._limit:
            self._wait_for_room(number)
        return SendFuture(self)

    def _wait_for_room(self, number: int) -> None:
        while number - self.answered > self._limit:
            self._is_wanted = True
            self._has_room.clear()
            if number - self.answered > self._limit:
                self._has_room.wait(_RECHECK_SECONDS)
            self._is_wanted = False

    def settle(
        self, futures: Sequence[SendFuture], results: Sequence[Receipt | PenstockError]
    ) -> None:
        """Give each future its result; called on the session's loop."""
        watched: list[tuple[SendFuture, Receipt | PenstockError]] = []
        with self.lock:
            for future, result in zip(futures, results, strict=True):
                if future._is_whole:
                    watched.append((future, result))
                else:
                    future._outcome = result
        self.answered += len(futures)
        if self._is_wanted:
            self._has_room.set()
        for future, result in watched:
            _settle(future, result)


def _settle(future: Future[Receipt], result: Receipt | PenstockError | None) -> None:
    if isinstance(result, Receipt):
        future.set_result(result)
    elif result is not None:
        future.set_exception(result)
