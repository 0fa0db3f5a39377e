"""Results on their way from a session's loop to the futures of another loop, in bursts.

As in `handover`, a wake-up is paid for once a burst, and the mark falls before the queue is
emptied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from penstock.client.producing.receipts import Receipt
from penstock.client.producing.send_futures import SendFuture
from penstock.errors import PenstockError


class _Place(NamedTuple):
    inbox: Inbox
    future: asyncio.Future[Receipt]


class Answer(_Place):
    """What settles a future of an inbox from the session's loop."""

    __slots__ = ()

    def __call__(self, result: Receipt | PenstockError) -> None:
        self.inbox.settle((self.future,), (result,))


class Inbox:
    """The futures of one event loop that wait for results."""

    __slots__ = ("_arrived", "_create_future", "_is_due", "_loop", "_room", "unanswered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._create_future = loop.create_future
        self._arrived: deque[
            tuple[Sequence[asyncio.Future[Receipt]], Sequence[Receipt | PenstockError]]
        ] = deque()
        self._is_due = False
        self._room: asyncio.Future[None] | None = None
        self.unanswered = 0
        """Futures that wait for their result."""

    def expect(self) -> Answer:
        """A new future, with what settles it from another thread."""
        self.unanswered += 1
        # What Answer(...) does, without its detour through a function: once per message.
        return tuple.__new__(Answer, (self, self._create_future()))

    async def room(self) -> None:
        """Wait until some results have come."""
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def settle(
        self,
        futures: Sequence[asyncio.Future[Receipt]],
        results: Sequence[Receipt | PenstockError],
    ) -> None:
        """Each future has its result; called from any thread."""
        self._arrived.append((futures, results))
        if not self._is_due:
            self._is_due = True
            # A user's loop that ended has nobody left who waits.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_due = False
        arrived = self._arrived
        for _ in range(len(arrived)):
            futures, results = arrived.popleft()
            self.unanswered -= len(futures)
            for future, result in zip(futures, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Receipt):
                    future.set_result(result)
                else:
                    future.set_exception(result)
        if self._room is not None:
            self._room.set_result(None)
            self._room = None


def tell(
    dones: Sequence[Callable[[Receipt | PenstockError], None]],
    results: Sequence[Receipt | PenstockError],
) -> None:
    """Call each with its result; futures of one inbox or window are handed to it together."""
    kinds = set(map(type, dones))
    if kinds == {Answer}:
        answers = cast(Sequence[Answer], dones)
        if len({answer.inbox for answer in answers}) == 1:
            answers[0].inbox.settle([answer.future for answer in answers], results)
            return
    elif kinds == {SendFuture}:
        futures = cast(Sequence[SendFuture], dones)
        if len({future.window for future in futures}) == 1:
            futures[0].window.settle(futures, results)
            return
    for done, result in zip(dones, results, strict=True):
        done(result)
