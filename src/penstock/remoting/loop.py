"""The event loop of the process: uvloop where the platform has it, else asyncio's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

try:
    import uvloop
except ImportError:  # pragma: no cover - Windows and PyPy have none
    uvloop = None  # type: ignore[assignment]  # absence is a value here

T = TypeVar("T")

SWITCH_SECONDS: Final = 0.001
"""How long the loop waits at most for a thread that runs Python code; Python's default is 5 ms.

A server's threads flush, save tables and move timers. Most of that is system calls, but while a
thread runs Python code, every request waits.
"""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop this platform has."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a new loop, as `asyncio.run` does; for a process of its own."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(main)
    finally:
        sys.setswitchinterval(before)
