"""A host: the event loop that sessions run on, as code on other threads and loops sees it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from penstock.client.consuming.executors import CoroutineExecutor, Executor, Finished
from penstock.client.consuming.listeners import Caller
from penstock.runtime.clock import Clock

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Host(ABC):
    """An event loop in another thread, or on a virtual clock."""

    loop: asyncio.AbstractEventLoop
    clock: Clock

    @property
    def chance(self) -> random.Random | None:
        """The random numbers of sessions; None: each session has its own generator."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Raise if the caller may not use the loop: in a fork, on its thread, after its end."""

    @abstractmethod
    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run ``work`` on the loop; do not wait."""

    @abstractmethod
    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        """Block until a future of the loop is done."""

    @abstractmethod
    def cancel(self, future: concurrent.futures.Future[Any]) -> None:
        """End work begun with `start` whose result is not needed any more."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop; block until it has ended."""
        future = self.start(work)
        try:
            return self.wait(future)
        except BaseException:
            self.cancel(future)  # Ctrl-C, for example
            raise

    @abstractmethod
    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` on the loop; wait for it on the caller's loop."""

    def call_soon(self, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Call a function on the loop; from any thread."""
        self.check()
        self.loop.call_soon_threadsafe(callback, *args)

    def expect(self, done: Callable[[_T], None]) -> Callable[[_T], None]:
        """Wrap a callback that the caller waits for, so that virtual time passes until its call."""
        return done

    @abstractmethod
    def may_send_directly(self) -> bool:
        """Whether the calling thread may open its own connections; raises where `check` does."""

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
        """Where handlers run: coroutines on ``handler_loop``, plain ones (None) on threads."""
        if handler_loop is None:
            return self._plain_executor(caller, finished, limit, name, task_limit)
        return CoroutineExecutor(
            self.loop,
            handler_loop,
            caller.call_async,
            finished,
            limit=limit,
            name=name,
            task_limit=task_limit,
        )

    @abstractmethod
    def _plain_executor(
        self, caller: Caller, finished: Finished, threads: int, name: str, task_limit: int | None
    ) -> Executor: ...

    @abstractmethod
    def handler_host(self, name: str) -> Host:
        """Where coroutine handlers of blocking clients run; the caller closes it."""

    @abstractmethod
    def close(self) -> None:
        """End the loop, if it has no other use; called when the last session has ended."""
