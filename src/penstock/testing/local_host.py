"""Where clients run whose program's own loop is the virtual one: right there, without a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from penstock.client.consuming.executors import (
    CoroutineExecutor,
    Executor,
    Finished,
    InlineExecutor,
)
from penstock.client.consuming.listeners import Caller
from penstock.client.session.loop_thread import Host
from penstock.errors import LifecycleError
from penstock.runtime.clock import Clock
from penstock.testing.virtual import VirtualLoop

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class LocalHost:
    """The virtual loop as seen by code that runs on it."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.loop = loop
        self.name = name

    @property
    def clock(self) -> Clock:
        return self.loop.clock

    @property
    def chance(self) -> random.Random | None:
        """A generator of its own for each session, all of the loop's seed."""
        return random.Random(self.loop.random.getrandbits(64))

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

    def expect(self, done: Callable[[_T], None]) -> Callable[[_T], None]:
        return done

    def check(self) -> None:
        """Whoever is on the loop may use it."""

    def may_ask_directly(self) -> bool:
        return False  # The network is virtual, too.

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await work

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        self.loop.call_soon(callback, *args)

    def executor(
        self,
        caller: Caller,
        finished: Finished,
        *,
        handler_loop: asyncio.AbstractEventLoop | None,
        limit: int,
        name: str,
        task_limit: int | None,
    ) -> Executor:
        if handler_loop is None:
            return InlineExecutor(
                self.loop, caller.call, finished, threads=limit, task_limit=task_limit
            )
        return CoroutineExecutor(
            self.loop,
            handler_loop,
            caller.call_async,
            finished,
            limit=limit,
            name=name,
            task_limit=task_limit,
        )

    def handler_host(self, name: str) -> Host:
        return self

    def close(self) -> None:
        """A session has left; the loop goes on with its cluster."""

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
