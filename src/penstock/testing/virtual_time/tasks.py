"""Tasks and futures for a repeatable loop, and words for where a task hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any


class VirtualFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    # `Task.__init__` already puts the task into a set, so the number must be there before it runs.
    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


def describe_task(task: asyncio.Task[Any]) -> str:
    """Where a task waits, from the outermost frame in, and the future it waits for."""
    awaited: Any = task.get_coro()
    frames: list[str] = []
    # An await may go through coroutines, generators and asynchronous generators.
    while awaited is not None:
        for kind, link in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(awaited, link):
                frame = getattr(awaited, f"{kind}_frame")
                if frame is not None:
                    name = Path(frame.f_code.co_filename).name
                    frames.append(f"{frame.f_code.co_qualname} ({name}:{frame.f_lineno})")
                awaited = getattr(awaited, link)
                break
        else:
            break
    waits_for = getattr(task, "_fut_waiter", None)
    return f"{task.get_name()} in {' > '.join(frames)} waits for {waits_for!r}"
