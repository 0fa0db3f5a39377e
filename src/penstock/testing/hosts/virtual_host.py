"""Where clients of a cluster on a virtual loop run: on that loop, with everything else.

The loop has a thread of its own and runs for ever; its time stands still by itself. **Time passes
only while a caller waits**: for a blocking call, an awaited one, a send, or for `advance`. Each of
them ends at a moment, and there time stops again. So a test that sends, looks and advances sees the
same clock in every run, however slow the machine is.

    user's thread ── run, wait, await_, expect: one more waits ──▶ loop's thread
                  ◀── results, once nothing more happens at that moment ──

Plain handlers run inline on the loop's thread. Coroutine handlers of `penstock.aio` run on the loop
that started the consumer, as they always do; until they end, time is held.

A program whose own loop is the virtual one needs no thread: `testing.hosts.local_host`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

from penstock.client.consuming.executors import CoroutineExecutor, Executor, Finished
from penstock.client.consuming.listeners import Caller, Job
from penstock.client.session.host import Host
from penstock.errors import LifecycleError
from penstock.testing.hosts.local_host import LocalHost, settle
from penstock.testing.virtual_time.loop import VirtualDeadlock, VirtualLoop

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

PATIENCE_SECONDS = 10.0
"""Real time after which a handler that holds the virtual one is named in the log."""

_in_handler: contextvars.ContextVar[bool] = contextvars.ContextVar("in handler", default=False)


class VirtualHost(LocalHost):
    """A virtual loop in a thread of its own."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        super().__init__(loop, name)
        self._process = os.getpid()
        # The loop's thread waits on it while time stands still; reentrant, because results are
        # handed out under it and their receivers may call again at once.
        self._changed = threading.Condition(threading.RLock())
        self._waiters = 0
        self._waiters_in_handlers = 0
        self._held: dict[HoldingExecutor, int] = {}
        self._tasks: dict[concurrent.futures.Future[Any], asyncio.Task[Any]] = {}
        self._ended: list[tuple[concurrent.futures.Future[Any], asyncio.Task[Any]]] = []
        self._handler_loops: set[int] = set()
        self._is_closing = False
        loop.before_time_passes = self._before_time_passes
        loop.on_call_from_thread = self._wake
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------- called from elsewhere

    run = Host.run

    def start(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            self.check()
            self.loop.call_soon_threadsafe(self._begin, work, future)
        except BaseException:
            work.close()
            raise
        return future

    def wait(self, future: concurrent.futures.Future[_T]) -> _T:
        self._count(future)
        if threading.current_thread() is self._thread:
            # A blocking call in a plain handler: the loop goes on, one level deeper.
            return super().wait(future)
        return future.result()

    def expect(self, done: Callable[[_T], None]) -> Callable[[_T], None]:
        in_handler = _in_handler.get()
        self._add(1, in_handler)

        def finish(result: _T) -> None:
            self._add(-1, in_handler)
            done(result)

        return finish

    async def await_(self, work: Coroutine[Any, Any, _T]) -> _T:
        if asyncio.get_running_loop() is self.loop:
            return await work
        future = self.start(work)
        self._count(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.cancel(future)
            raise

    call_soon = Host.call_soon

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
        if handler_loop is None or handler_loop is self.loop:
            return super().executor(
                caller,
                finished,
                handler_loop=handler_loop,
                limit=limit,
                name=name,
                task_limit=task_limit,
            )
        self._handler_loops.add(id(handler_loop))
        return HoldingExecutor(
            self,
            handler_loop,
            caller.call_async,
            finished,
            limit=limit,
            name=name,
            task_limit=task_limit,
        )

    def refuse_blocked_handlers(self) -> None:
        """Refuse a blocking wait on the very thread that handlers would need meanwhile."""
        if threading.current_thread() is self._thread:
            raise LifecycleError(
                f"advance() was called by a handler of {self.name}, which it would wait for",
                hint="advance in the test, not in the handler",
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if id(loop) in self._handler_loops:
            raise LifecycleError(
                f"a blocking advance() of {self.name} on the event loop that runs its handlers",
                hint="async with penstock.aio.embedded(...), or the fixture penstock_aio",
            )

    def hold(self, executor: HoldingExecutor, jobs: int) -> None:
        """Jobs were given to a foreign loop, or (negative) came back from it."""
        with self._changed:
            self._held[executor] = self._held.get(executor, 0) + jobs
            if self._held[executor] <= 0:
                del self._held[executor]
            self._changed.notify_all()

    def shut_down(self) -> None:
        """End everything on the loop, and its thread; idempotent."""
        if self._process != os.getpid():
            return
        with self._changed:
            if not self._is_closing:
                self._is_closing = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def check(self) -> None:
        if self._process != os.getpid():
            raise LifecycleError(
                f"{self.name} was started in process {self._process} and used in its fork",
                hint="start one after the fork",
            )
        if self._is_closing:
            raise LifecycleError(
                f"{self.name} has ended", hint="stop its clients before leaving its block"
            )

    def cancel(self, future: concurrent.futures.Future[Any]) -> None:
        task = self._tasks.get(future)
        if task is not None and not future.done() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(task.cancel)

    # ------------------------------------------------------------------------------ waiting

    def _count(self, future: concurrent.futures.Future[Any]) -> None:
        """Let time pass until ``future`` is done."""
        in_handler = _in_handler.get()
        self._add(1, in_handler)
        future.add_done_callback(lambda _: self._add(-1, in_handler))

    def _add(self, waiters: int, in_handler: bool) -> None:
        with self._changed:
            self._waiters = max(0, self._waiters + waiters)
            if in_handler:
                self._waiters_in_handlers = max(0, self._waiters_in_handlers + waiters)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def _may_time_pass(self) -> bool:
        if self._is_closing:
            return True
        # A handler that itself waits for something must not hold up what it waits for, and one
        # whose loop has ended will not come back.
        is_held = any(not executor.is_lost for executor in self._held)
        return self._waiters > 0 and (not is_held or self._waiters_in_handlers > 0)

    # --------------------------------------------------------------------- the loop's thread

    def _begin(
        self, work: Coroutine[Any, Any, _T], future: concurrent.futures.Future[_T]
    ) -> asyncio.Task[_T]:
        task = self._tasks[future] = self.loop.create_task(work)
        task.add_done_callback(lambda ended: self._ended.append((future, ended)))
        return task

    def _before_time_passes(self) -> bool:
        """Nothing more happens at this moment: hand out results, then wait to go on."""
        with self._changed:
            ended, self._ended = self._ended, []
            for future, task in ended:
                del self._tasks[future]
                settle(future, task)
            while not self.loop.has_ready and not self._may_time_pass:
                if not self._changed.wait(PATIENCE_SECONDS) and self._held and self._waiters:
                    self._complain()
            return self.loop.has_ready

    def _complain(self) -> None:
        for executor in self._held:
            for job in executor.running:
                log.warning(
                    "virtual time stands still until a handler ends cluster=%s messages=%s",
                    self.name,
                    ", ".join(f"{m.queue}@{m.queue_offset}" for m in job.messages),
                )

    def _run(self) -> None:
        loop = self.loop
        while True:
            try:
                loop.run_forever()
                break
            except BaseException as error:
                # Nothing will ever happen again, or a callback ended the interpreter: waiting
                # callers get the error, and the loop stays usable.
                self._fail(error)
        try:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
        except VirtualDeadlock as error:
            log.error("tasks did not end cluster=%s error=%s", self.name, error)
        finally:
            self._before_time_passes()
            self._fail(LifecycleError(f"{self.name} has ended"))
            loop.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            tasks, self._tasks, self._ended = self._tasks, {}, []
            for future, task in tasks.items():
                task.cancel()
                if not future.done():
                    future.set_exception(error)
            self._waiters = self._waiters_in_handlers = 0


class HoldingExecutor(CoroutineExecutor):
    """Coroutine handlers on a real loop; virtual time is held until they end."""

    def __init__(
        self,
        host: VirtualHost,
        handler_loop: asyncio.AbstractEventLoop,
        call: Callable[[Job], Awaitable[None]],
        finished: Finished,
        *,
        limit: int,
        name: str,
        task_limit: int | None = None,
    ) -> None:
        self._host = host

        async def call_marked(job: Job) -> None:
            token = _in_handler.set(True)
            try:
                await call(job)
            finally:
                _in_handler.reset(token)

        def come_back(jobs: list[Job]) -> None:
            host.hold(self, -len(jobs))
            finished(jobs)

        super().__init__(
            host.loop,
            handler_loop,
            call_marked,
            come_back,
            limit=limit,
            name=name,
            task_limit=task_limit,
        )

    def submit(self, jobs: Sequence[Job]) -> int:
        # Before they are handed over: one that ends at once must not come back first.
        self._host.hold(self, len(jobs))
        taken = super().submit(jobs)
        if taken < len(jobs) and not self.is_lost:
            self._host.hold(self, taken - len(jobs))
        return taken

    @property
    def is_lost(self) -> bool:
        """Whether the loop of the handlers has ended, and with it what ran there."""
        return self._handler_loop.is_closed()

    def discard(self) -> list[Job]:
        jobs = super().discard()
        if jobs:
            self._host.hold(self, -len(jobs))
        return jobs
