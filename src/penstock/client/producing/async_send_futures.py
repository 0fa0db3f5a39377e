"""Futures of an event loop whose results come from the session's thread, in bursts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

from penstock.client.producing.receipts import Receipt
from penstock.client.producing.send_futures import SendFuture
from penstock.errors import PenstockError
from penstock.runtime.burst import Burst

_Settled: TypeAlias = tuple[Sequence[asyncio.Future[Receipt]], Sequence[Receipt | PenstockError]]


class _Place(NamedTuple):
    futures: AsyncSendFutures
    future: asyncio.Future[Receipt]


class AsyncSend(_Place):
    """The callback that settles one future from the session's loop."""

    __slots__ = ()

    def __call__(self, result: Receipt | PenstockError) -> None:
        self.futures.settle((self.future,), (result,))


class AsyncSendFutures:
    """The open sends of one event loop."""

    __slots__ = ("_create_future", "_loop", "_room", "_settled", "unanswered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._create_future = loop.create_future
        self._settled: Burst[_Settled] = Burst(self._wake, self._set_results)
        self._room: asyncio.Future[None] | None = None
        self.unanswered = 0
        """Futures that wait for their result."""

    def expect(self) -> AsyncSend:
        """A new future, with the callback that settles it from another thread."""
        self.unanswered += 1
        # The same as AsyncSend(...), without the Python function a NamedTuple calls.
        return tuple.__new__(AsyncSend, (self, self._create_future()))

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
        """Give each future its result; called from any thread."""
        self._settled.put((futures, results))

    def _wake(self, set_results: Callable[[], None]) -> None:
        # On a loop that was closed no task waits any more.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(set_results)

    def _set_results(self, settled: list[_Settled]) -> None:
        for futures, results in settled:
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


def settle_all(
    dones: Sequence[Callable[[Receipt | PenstockError], None]],
    results: Sequence[Receipt | PenstockError],
) -> None:
    """Call each callback with its result; futures of one owner are settled together."""
    kinds = set(map(type, dones))
    if kinds == {AsyncSend}:
        sends = cast(Sequence[AsyncSend], dones)
        if len({send.futures for send in sends}) == 1:
            sends[0].futures.settle([send.future for send in sends], results)
            return
    elif kinds == {SendFuture}:
        futures = cast(Sequence[SendFuture], dones)
        if len({future.window for future in futures}) == 1:
            futures[0].window.settle(futures, results)
            return
    for done, result in zip(dones, results, strict=True):
        done(result)
