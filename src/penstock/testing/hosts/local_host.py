"""The host of clients in a program that itself runs on the virtual loop: no thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from penstock.client.consuming.executors import Executor, Finished, InlineExecutor
from penstock.client.consuming.listeners import Caller
from penstock.client.session.host import Host
from penstock.errors import LifecycleError
from penstock.testing.virtual_time.loop import VirtualLoop

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class LocalHost(Host):
    """The virtual loop as seen by code that runs on it."""

    loop: VirtualLoop

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.clock = loop.clock

    @property
    def chance(self) -> random.Random:
        """A generator of its own for each session, all from the seed of the loop."""
        return random.Random(self.loop.random.getrandbits(64))

    def check(self) -> None:
        """Code that runs on the loop may use it."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self.loop.drive(work)
        except LifecycleError:
            work.close()
            raise

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self._begin(work, future)
        return future

    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        return self.loop.drive(asyncio.wrap_future(future, loop=self.loop))

    def cancel(self, future: concurrent.futures.Future[Any]) -> None:
        """Nothing: a driven wait is not interrupted."""

    def may_send_directly(self) -> bool:
        return False  # The network is virtual, too.

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await work

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        self.loop.call_soon(callback, *args)

    def _plain_executor(
        self, caller: Caller, finished: Finished, threads: int, name: str, task_limit: int | None
    ) -> Executor:
        return InlineExecutor(
            self.loop, caller.call, finished, threads=threads, task_limit=task_limit
        )

    def handler_host(self, name: str) -> Host:
        return self

    def close(self) -> None:
        """Nothing: the loop goes on with its cluster."""

    def _begin(
        self, work: Coroutine[Any, Any, _T], future: concurrent.futures.Future[_T]
    ) -> asyncio.Task[_T]:
        task = self.loop.create_task(work)
        task.add_done_callback(lambda ended: settle(future, ended))
        return task


def settle(future: concurrent.futures.Future[_T], task: asyncio.Task[_T]) -> None:
    """Give a future what its task ended with."""
    if future.done():
        return
    if task.cancelled():
        future.set_exception(concurrent.futures.CancelledError())
        return
    error = task.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
