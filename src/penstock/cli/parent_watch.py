"""A process that ends with the one that started it."""

from __future__ import annotations

import asyncio
import os

PARENT = "PENSTOCK_PARENT_PID"
_CHECK_SECONDS = 1.0


async def stop_with_parent(stopped: asyncio.Event) -> None:
    """Stop this process when the process that started it ends, for any reason.

    An orphan would keep its store locked, or its port, without any process that could stop it.
    """
    parent = os.environ.get(PARENT)
    if parent is not None:
        while str(os.getppid()) == parent:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(_CHECK_SECONDS)
        stopped.set()


def child_environment() -> dict[str, str]:
    """The environment of a child that is to end with this process."""
    return {**os.environ, PARENT: str(os.getpid())}
