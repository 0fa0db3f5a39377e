"""The usual host: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.client.consuming.executors import Executor, Finished, ThreadExecutor
from penstock.client.consuming.listeners import Caller
from penstock.client.session.host import Host
from penstock.errors import LifecycleError
from penstock.remoting.loop import new_event_loop
from penstock.runtime.clock import SystemClock

log = logging.getLogger(__name__)

ENDING_SECONDS = 1.0
"""How long `LoopThread.close` waits for the end of the thread."""

_T = TypeVar("_T")

_process_id = os.getpid()
"""Cached: it is compared for every send, and ``os.getpid`` is a system call."""


def _after_fork() -> None:
    global _process_id
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class LoopThread(Host):
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock = SystemClock()
        self.loop = new_event_loop()
        self._process = _process_id
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._thread_id = self._thread.ident

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        return future.result()

    def cancel(self, future: concurrent.futures.Future[Any]) -> None:
        future.cancel()

    def may_send_directly(self) -> bool:
        self.check()
        return True

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self.start(work))

    def _plain_executor(
        self, caller: Caller, finished: Finished, threads: int, name: str, task_limit: int | None
    ) -> Executor:
        return ThreadExecutor(
            self.loop, caller.call, finished, threads=threads, name=name, task_limit=task_limit
        )

    def handler_host(self, name: str) -> LoopThread:
        return LoopThread(name)

    def close(self) -> None:
        if self._process != _process_id or self._is_closing:
            return
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(ENDING_SECONDS)
            if self._thread.is_alive():
                # Code of the user blocks the loop. The thread is a daemon, so the process can end.
                log.warning(
                    "thread has not ended in time thread=%s waited=%.1f",
                    self.name,
                    ENDING_SECONDS,
                )

    def check(self) -> None:
        if self._process != _process_id:
            raise LifecycleError(
                f"{self.name} was started in process {self._process} and used in its fork",
                expected="a client of the forked process's own",
                hint="make and start clients after the fork",
            )
        if self._is_closing:
            raise LifecycleError(f"{self.name} was stopped", hint="make a new client")
        if threading.get_ident() == self._thread_id:
            raise LifecycleError(
                f"a blocking call on the thread of {self.name} would wait for itself"
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            # Cancelled tasks still have to run to their end.
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()
