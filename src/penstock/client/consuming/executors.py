"""Where handlers run: a pool of threads, or an event loop that is not the session's.

Both take jobs from the session's loop and return them to it. The transfer is what costs, not the
call: waking another thread is a system call and contention for the interpreter lock. So jobs move
in bursts. The session wakes at most one worker for a burst, and a worker wakes the next one only
if more jobs wait: handlers that return at once are all run by one thread, handlers that block
spread over as many threads as there are. The first result of a burst wakes the session, and the
results after it are collected by the same wake-up.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock.client.consuming.listeners import Job
from penstock.runtime.burst import Burst, WakeUp

log = logging.getLogger(__name__)

Finished = Callable[[list[Job]], None]


class Executor(Protocol):
    """Runs jobs somewhere else; all methods are called on the session's loop."""

    def submit(self, jobs: Sequence[Job]) -> int:
        """Accept jobs from the front; return how many were accepted."""

    def discard(self) -> list[Job]:
        """Remove the jobs that have not been started, and return them."""

    @property
    def running(self) -> list[Job]:
        """The jobs whose handlers run now."""

    @property
    def is_settling(self) -> bool:
        """Whether finished jobs have not reached the session's loop yet."""

    @property
    def is_calling(self) -> bool:
        """Whether the caller is one of its handlers, or a task that a handler started."""

    async def close(self) -> None:
        """Accept no more; threads end when their handler returns, coroutines are cancelled."""


_calling: contextvars.ContextVar[object] = contextvars.ContextVar("calling", default=None)
"""The executor whose handler runs here. Set once by each worker; tasks of a handler inherit it."""


class _Backlog:
    """The jobs that wait for a worker; without ``task_limit`` only flow control bounds them."""

    def __init__(self, task_limit: int | None) -> None:
        self._task_limit = task_limit
        self._waiting: deque[Job] = deque()
        self._is_closed = False

    @property
    def is_calling(self) -> bool:
        return _calling.get() is self

    def _take(self, jobs: Sequence[Job]) -> int:
        """Queue jobs from the front, as many as there is room for; return how many."""
        if self._is_closed:
            return 0
        taken = len(jobs)
        if self._task_limit is not None:
            taken = min(taken, max(0, self._task_limit - len(self._waiting)))
        self._waiting.extend(jobs[:taken])
        return taken

    def discard(self) -> list[Job]:
        waiting: list[Job] = []
        while self._waiting:
            try:
                waiting.append(self._waiting.popleft())
            except IndexError:  # a worker was faster
                break
        return waiting


class _AwayBacklog(_Backlog):
    """A backlog whose workers are not on the session's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        finished: Finished,
        *,
        limit: int,
        name: str,
        task_limit: int | None,
    ) -> None:
        super().__init__(task_limit)
        self._loop = loop
        self._limit = limit
        self._name = name
        self._results: Burst[Job] = Burst(self._wake_session, finished)
        """Finished jobs on their way back to the session's loop."""
        self._running: dict[int, Job] = {}
        self._is_worker_coming = False
        """One was woken and has not looked for work yet. Until then no other one is woken: each
        job would wake a thread, and all of them would wait for the interpreter lock."""

    def _wake_session(self, take_jobs: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(take_jobs)
        except RuntimeError:
            log.debug("a handler ended after the loop of its session")

    @property
    def running(self) -> list[Job]:
        return list(self._running.values())

    @property
    def is_settling(self) -> bool:
        return len(self._results) > 0


class ThreadExecutor(_AwayBacklog):
    """A fixed number of threads, started as they are needed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[Job], None],
        finished: Finished,
        *,
        threads: int,
        name: str,
        task_limit: int | None = None,
    ) -> None:
        super().__init__(loop, finished, limit=threads, name=name, task_limit=task_limit)
        self._call = call
        self._changed = threading.Condition(threading.Lock())
        self._idle = 0
        self._started = 0

    def submit(self, jobs: Sequence[Job]) -> int:
        taken = self._take(jobs)
        if taken:
            self._wake_one()
        return taken

    async def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wake_one(self) -> None:
        with self._changed:
            if self._is_worker_coming:
                return
            if self._idle:
                self._is_worker_coming = True
                self._changed.notify()
                return
            if self._started >= self._limit:
                return
            self._is_worker_coming = True
            self._started += 1
            number = self._started
        # Daemons: a handler that never returns must not keep the process from ending.
        thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads; the running ones continue, and may try again.
            with self._changed:
                self._started -= 1
                self._is_worker_coming = False
            if not self._started:
                raise
            log.warning("cannot start more than %d threads name=%s", self._started, self._name)

    def _work(self) -> None:
        waiting, running, call, results = self._waiting, self._running, self._call, self._results
        me = threading.get_ident()
        _calling.set(self)
        # From here on, jobs that are queued are seen by this worker or wake another one.
        self._is_worker_coming = False
        while True:
            try:
                job = waiting.popleft()
            except IndexError:
                if not self._wait():
                    return
                continue
            if waiting and not self._is_worker_coming:
                self._wake_one()
            running[me] = job
            try:
                call(job)
            except BaseException:
                log.exception("call of a handler failed job=%r", job)
            # In this order: a stop that drains must see the job in one place or the other.
            results.put(job)
            del running[me]

    def _wait(self) -> bool:
        """Sleep until there may be work; false when there will be none."""
        with self._changed:
            while not self._waiting:
                if self._is_closed:
                    return False
                self._idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._idle -= 1
                    self._is_worker_coming = False
            return True


class CoroutineExecutor(_AwayBacklog):
    """An event loop, with at most ``limit`` handlers running at once.

    Workers are tasks that call one handler after the other; a handler that never waits costs no
    task of its own. A worker that leaves jobs behind starts one more, which runs when the first
    one waits, and so on up to the limit. The loop may be the session's, when the whole cluster runs
    on a virtual one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler_loop: asyncio.AbstractEventLoop,
        call: Callable[[Job], Awaitable[None]],
        finished: Finished,
        *,
        limit: int,
        name: str,
        task_limit: int | None = None,
    ) -> None:
        super().__init__(loop, finished, limit=limit, name=name, task_limit=task_limit)
        self._handler_loop = handler_loop
        self._call = call
        self._workers: set[asyncio.Task[None]] = set()
        self._wake_up = WakeUp(handler_loop.call_soon_threadsafe, self._call_worker)

    def submit(self, jobs: Sequence[Job]) -> int:
        taken = self._take(jobs)
        if taken:
            try:
                self._wake_up.request()
            except RuntimeError:
                log.error("the event loop of the handlers is closed name=%s", self._name)
                self._is_closed = True
                self.discard()
                return 0
        return taken

    async def close(self) -> None:
        self._is_closed = True
        self.discard()
        if not self._handler_loop.is_closed():
            self._handler_loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for worker in self._workers:
            worker.cancel()

    def _call_worker(self) -> None:
        if not self._is_worker_coming and len(self._workers) < self._limit:
            self._is_worker_coming = True
            worker = self._handler_loop.create_task(self._work(), name=self._name)
            self._workers.add(worker)
            worker.add_done_callback(self._worker_left)

    def _worker_left(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if worker.cancelled():
            # Perhaps before it began: then it did not reset this itself.
            self._is_worker_coming = False

    async def _work(self) -> None:
        waiting, running, call, results = self._waiting, self._running, self._call, self._results
        me = id(asyncio.current_task())
        _calling.set(self)
        self._is_worker_coming = False
        while waiting:
            job = waiting.popleft()
            if waiting and not self._is_worker_coming:
                self._call_worker()
            running[me] = job
            try:
                await call(job)
            except Exception:
                log.exception("call of a handler failed job=%r", job)
            finally:
                results.put(job)
                del running[me]


class InlineExecutor(_Backlog):
    """Plain handlers on a virtual loop, whose ``run_in_executor`` makes each one an event."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[Job], None],
        finished: Finished,
        *,
        threads: int,
        task_limit: int | None = None,
    ) -> None:
        super().__init__(task_limit)
        self._loop = loop
        self._call = call
        self._finished = finished
        self._threads = threads
        self._running: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> int:
        taken = self._take(jobs)
        self._spread()
        return taken

    @property
    def running(self) -> list[Job]:
        return list(self._running)

    @property
    def is_settling(self) -> bool:
        return False

    async def close(self) -> None:
        self._is_closed = True

    def _spread(self) -> None:
        while self._waiting and len(self._running) < self._threads:
            job = self._waiting.popleft()
            self._running.append(job)
            future = self._loop.run_in_executor(None, self._call_one, job)
            future.add_done_callback(lambda _, job=job: self._ended(job))  # type: ignore[misc]

    def _call_one(self, job: Job) -> None:
        # Reset afterwards: other code runs on this thread, too.
        token = _calling.set(self)
        try:
            self._call(job)
        finally:
            _calling.reset(token)

    def _ended(self, job: Job) -> None:
        self._running.remove(job)
        self._finished([job])
        self._spread()
