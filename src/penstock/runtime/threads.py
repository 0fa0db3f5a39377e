"""Work that blocks, on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

_Result = TypeVar("_Result")


async def run_to_end(executor: Executor | None, function: Callable[[], _Result]) -> _Result:
    """Run ``function`` in a thread and return its result; None is the loop's own executor.

    A thread cannot be cancelled. If the caller is, this waits until the function has ended, and
    raises the cancellation then: a file it works on is not closed under its hands, and leaving the
    ``with`` block of an executor does not block the loop.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # Retrieved, so that asyncio does not report it as forgotten.
        raise cancelled
    return future.result()
