"""A part with a lifecycle: one task, started and stopped by one owner.

A subclass writes `_run`. It calls ``ready()`` once it serves, and from then on runs until it is
cancelled, returns or fails:

    new ──start()──▶ starting ──ready()──▶ running ──stop()──▶ stopped
                        │ raises: start() raises it   │ raises: wait() raises it

What `_run` spawns lives in a ``TaskGroup`` inside it, so the end of the task is the end of all of
it. A service is started once; a new start is a new object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.errors import LifecycleError

log = logging.getLogger(__name__)


class Service:
    """One task running `_run`, with one owner.

    The state is class attributes until `start`, so a subclass need not call ``super().__init__``.
    """

    _task: asyncio.Task[None] | None = None
    _is_ready = False
    _stop_requested = False
    _failure_reported = False

    async def _run(self, ready: Callable[[], None]) -> None:
        """The life of the service; call ``ready()`` when it serves. Cancelled by `stop`."""
        ready()

    @property
    def is_running(self) -> bool:
        """Ready, and neither ended nor asked to stop."""
        return (
            self._is_ready
            and not self._stop_requested
            and self._task is not None
            and not self._task.done()
        )

    async def start(self) -> None:
        """Return once the service is ready, or raise what kept it from getting there."""
        if self._task is not None:
            raise LifecycleError(
                f"{self._name} was started twice",
                hint="a stopped service stays stopped; make a new one",
            )
        loop = asyncio.get_running_loop()
        is_ready: asyncio.Future[None] = loop.create_future()

        def ready() -> None:
            if not is_ready.done():
                self._is_ready = True
                is_ready.set_result(None)

        self._stop_requested = False
        task = self._task = loop.create_task(self._run(ready), name=self._name)
        try:
            await asyncio.wait((task, is_ready), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The caller of start() is gone, so nothing would stop the task later.
            is_ready.cancel()
            await self.stop()
            raise
        self._raise_failure()
        if is_ready.done():
            return
        is_ready.cancel()
        if self._stop_requested:
            raise LifecycleError(f"{self._name} was stopped before it was ready")
        raise LifecycleError(
            f"{self._name} ended before it was ready", expected="_run to call ready() first"
        )

    async def stop(self) -> None:
        """Cancel the task and return when it has ended; idempotent, and harmless before `start`.

        A cancellation of the caller comes through at once, while the service goes on stopping. What
        the service died of is raised by `wait`; if `wait` was not called, it is logged here.
        """
        await self._halt()
        failure = self._failure()
        if failure is not None and not self._failure_reported:
            self._failure_reported = True
            log.error("service failed name=%s", self._name, exc_info=failure)

    async def wait(self) -> None:
        """Return when the service was stopped or has finished; raise what it died of."""
        task = self._task
        if task is None:
            raise LifecycleError(f"{self._name} is waited for but was never started")
        if not task.done():
            await asyncio.wait((task,))
        self._raise_failure()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            await self.stop()
            return
        # Leaving the block in peace while the service lies dead would hide why nothing happened.
        await self._halt()
        if not self._failure_reported:
            self._raise_failure()

    @property
    def _name(self) -> str:
        return type(self).__name__

    async def _halt(self) -> None:
        task = self._task
        if task is None or task.done():
            return
        if task is asyncio.current_task():
            raise LifecycleError(
                f"{self._name} tried to stop itself, and would wait for itself",
                hint="return from _run instead",
            )
        if not self._stop_requested:
            # Only once: a second cancel would interrupt the clean-up the first one began.
            self._stop_requested = True
            task.cancel()
        await asyncio.wait((task,))

    def _failure(self) -> BaseException | None:
        task = self._task
        if task is None or not task.done():
            return None
        if task.cancelled():
            if self._stop_requested:
                return None
            return LifecycleError(f"{self._name} was cancelled by other code than its owner")
        return task.exception()

    def _raise_failure(self) -> None:
        failure = self._failure()
        if failure is not None:
            self._failure_reported = True
            raise failure


async def wait_any(*services: Service) -> Service:
    """Return the first of ``services`` that ends; raise what it died of.

    A root waits on all its parts with this: one dead part ends the whole, loudly.
    """
    tasks = [service._task for service in services]
    running = [task for task in tasks if task is not None]
    if not running or len(running) < len(tasks):
        raise LifecycleError("nothing to wait for", expected="services that were started")
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    first = next(service for service, task in zip(services, running, strict=True) if task.done())
    await first.wait()
    return first
