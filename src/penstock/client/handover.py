"""Sends from other threads to a session's loop, and their results back, in bursts.

A wake-up of the other thread is paid for once a burst: the first item of a burst makes it, the
others are found there when it arrives. In both directions the mark falls before the queue is
emptied, so an item is either taken by the wake-up under way or makes a new one.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from penstock.client.hosts import Host
from penstock.client.producer import ProducerCore
from penstock.client.receipts import Receipt
from penstock.client.sending import SendDone
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue

_Waiting: TypeAlias = tuple[Message, SendDone, MessageQueue | None, float | None, bool]
"""Message, what takes its result, queue, timeout, whether refusals are retried."""


BURST: Final = 512
"""Messages taken in one turn of the session's loop. What they make leaves when the turn ends, so
that a broker is at work on it while the next ones are taken."""


class Outbox:
    """Messages on their way to the producer; `put` is called from any thread."""

    __slots__ = ("_core", "_host", "_is_due", "_waiting")

    def __init__(self, core: ProducerCore, host: Host) -> None:
        self._core = core
        self._host = host
        self._waiting: deque[_Waiting] = deque()
        self._is_due = False

    def put(
        self,
        message: Message,
        done: SendDone,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        retry_refusals: bool = True,
    ) -> None:
        """Send a message; ``done`` is called on the session's loop."""
        self._waiting.append((message, done, queue, timeout, retry_refusals))
        if not self._is_due:
            self._is_due = True
            self._host.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_due = False
        waiting, send = self._waiting, self._core.send
        for _ in range(min(BURST, len(waiting))):
            message, done, queue, timeout, retry_refusals = waiting.popleft()
            send(message, done, queue=queue, timeout=timeout, retry_refusals=retry_refusals)
        if waiting and not self._is_due:
            self._is_due = True
            self._host.loop.call_soon(self._drain)


class Inbox:
    """Results on their way to the futures of an event loop."""

    __slots__ = ("_arrived", "_is_due", "_loop", "_room", "unanswered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[asyncio.Future[Receipt], Receipt | PenstockError]] = deque()
        self._is_due = False
        self._room: asyncio.Future[None] | None = None
        self.unanswered = 0
        """Futures that wait for their result."""

    def future(self) -> tuple[asyncio.Future[Receipt], Callable[[Receipt | PenstockError], None]]:
        """A future of the loop, and what settles it from another thread."""
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self.unanswered += 1
        return future, functools.partial(self._settle, future)

    async def room(self) -> None:
        """Wait until some results have come."""
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def _settle(self, future: asyncio.Future[Receipt], result: Receipt | PenstockError) -> None:
        self._arrived.append((future, result))
        if not self._is_due:
            self._is_due = True
            # A user's loop that ended has nobody left who waits.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_due = False
        arrived = self._arrived
        count = len(arrived)
        for _ in range(count):
            future, result = arrived.popleft()
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            else:
                future.set_exception(result)
        self.unanswered -= count
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
