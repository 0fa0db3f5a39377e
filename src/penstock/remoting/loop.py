"""The event loop of the process: uvloop where the platform has it, else asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # pragma: no cover - Windows and PyPy have none
    uvloop = None  # type: ignore[assignment]  # absence is a value here

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop this platform has."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
