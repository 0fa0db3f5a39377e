"""Tasks with an owner: named, their failures logged, cancelled together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The running tasks of one owner.

    A failed task is logged with its traceback and affects no other. Errors that the owner must
    handle are handled inside the task.
    """

    __slots__ = ("_is_closed", "_owner", "_running")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Run ``work`` until it ends or the owner closes; None when the owner is closed."""
        if self._is_closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner} {name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def is_running(self, name: str) -> bool:
        """Whether a task of that name runs."""
        full_name = f"{self._owner} {name}"
        return any(task.get_name() == full_name for task in self._running)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end; no more can be spawned."""
        self._is_closed = True
        current = asyncio.current_task()
        running = [task for task in self._running if task is not current]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed name=%s", task.get_name(), exc_info=error)
