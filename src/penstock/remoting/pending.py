"""Requests that wait for their answers, and the one timer for their deadlines.

A timer handle per request would cost more than the request. Instead one loop timer is set to the
earliest deadline. When it fires, the table is walked once: overdue requests fail, and the timer is
set to the earliest remaining deadline, at least `TICK_SECONDS` later, so walks stay rare however
many requests time out. Nearly every request is answered long before, which costs one dictionary
lookup and does not touch the timer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import ConnectionLost, RemotingError, RequestTimeout
from penstock.protocol.codes import request_name
from penstock.protocol.commands import Command

log = logging.getLogger(__name__)

Done = Callable[[Command | RemotingError], None]

TICK_SECONDS = 0.05
"""How late a timeout may be noticed, at most."""

MAX_ABANDONED = 1024
"""Abandoned requests whose late answers are still recognised as such."""


class _Waiting(NamedTuple):
    deadline: float
    done: Done
    code: int
    timeout: float


class PendingRequests:
    """The unanswered requests of one connection; it owns their timer."""

    __slots__ = ("_abandoned", "_loop", "_remote", "_sweep_at", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, remote: str) -> None:
        self._loop = loop
        self._remote = remote
        self._waiting: dict[int, _Waiting] = {}
        self._abandoned: dict[int, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request_id: int, code: int, timeout: float, done: Done) -> None:
        """Expect an answer to ``request_id`` within ``timeout`` seconds."""
        deadline = self._loop.time() + timeout
        self._waiting[request_id] = _Waiting(deadline, done, code, timeout)
        if deadline < self._sweep_at:
            self._sweep_no_later_than(deadline)

    def take(self, request_id: int) -> Done | None:
        """Remove a request and return its callback; None for an unknown one."""
        waiting = self._waiting.pop(request_id, None)
        return None if waiting is None else waiting.done

    def forget(self, request_id: int) -> None:
        """Abandon a request; its answer will be dropped."""
        if self._waiting.pop(request_id, None) is not None:
            self._abandon(request_id)

    def was_abandoned(self, request_id: int) -> bool:
        """Whether this is the late answer to a request that timed out or was forgotten."""
        if request_id in self._abandoned:
            del self._abandoned[request_id]
            return True
        return False

    def fail_all(self, reason: str) -> None:
        """The connection is gone: every request fails with `ConnectionLost`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._sweep_at = math.inf
        waiting, self._waiting = self._waiting, {}
        for request_id, (_, done, code, _) in waiting.items():
            # One error each: a shared one would collect the tracebacks of all callers.
            what = f"{request_name(code)} (request {request_id})"
            finish(
                done,
                ConnectionLost(
                    f"connection to {self._remote} ended before {what} was answered: {reason}"
                ),
            )

    def _sweep_no_later_than(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sweep_at = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._sweep_at = math.inf
        now = self._loop.time()
        overdue = [(key, entry) for key, entry in self._waiting.items() if entry.deadline <= now]
        for request_id, (_, done, code, timeout) in overdue:
            # An earlier callback of this walk may have closed the connection.
            if self._waiting.pop(request_id, None) is None:
                continue
            self._abandon(request_id)
            what = f"{request_name(code)} (request {request_id})"
            finish(
                done,
                RequestTimeout(f"no answer to {what} from {self._remote} within {timeout:g} s"),
            )
        if self._waiting:
            earliest = min(entry.deadline for entry in self._waiting.values())
            earliest = max(earliest, now + TICK_SECONDS)
            if earliest < self._sweep_at:
                self._sweep_no_later_than(earliest)

    def _abandon(self, request_id: int) -> None:
        self._abandoned[request_id] = None
        if len(self._abandoned) > MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]


def finish(done: Done, answer: Command | RemotingError) -> None:
    """Call ``done``; an exception that it raises is only logged."""
    try:
        done(answer)
    except Exception:
        log.exception("callback of an answer failed callback=%r", done)
