"""Wait for a state, never for a duration."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

_T = TypeVar("_T")

INTERVAL_SECONDS = 0.005


# The timeout is a parameter because it ends in an error of our own, with words.
# ruff: noqa: ASYNC109


@overload
async def eventually(
    condition: Callable[[], Awaitable[_T]], timeout: float = ..., *, interval: float = ...
) -> _T: ...


@overload
async def eventually(
    condition: Callable[[], _T], timeout: float = ..., *, interval: float = ...
) -> _T: ...


async def eventually(
    condition: Callable[[], object],
    timeout: float = 10.0,
    *,
    interval: float = INTERVAL_SECONDS,
) -> object:
    """Ask ``condition`` again and again until it is true, and return what it said.

    It may be a plain function or a coroutine function. A failed ``assert`` inside it counts as
    "not yet". On timeout the ``AssertionError`` tells what it last said.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        failure: AssertionError | None = None
        last: object = None
        try:
            answer = condition()
            last = await answer if inspect.isawaitable(answer) else answer
            if last:
                return last
        except AssertionError as error:
            failure = error
        if loop.time() >= deadline:
            name = getattr(condition, "__qualname__", repr(condition))
            said = f"failed with {failure}" if failure is not None else f"was {last!r}"
            raise AssertionError(f"{name} {said} for {timeout} seconds") from failure
        await asyncio.sleep(interval)
