"""Maintenance in steps, so that the thread that appends never waits for a disk.

Deleting a topic and cleaning the store change tables, which belong to the thread that appends, and
remove files, which may take long. Each is a generator: its own code runs on the thread that
appends, and every function it yields waits for the disk. `run_inline` calls these functions on the
spot; a broker calls them in another thread and continues the generator with their result.

Between two steps the thread that appends may do anything, so the tables are consistent at every
``yield``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

_Result = TypeVar("_Result")

DiskStep = Callable[[], Any]
"""Waits for the disk; its result is what the ``yield`` returns, its exception what it raises."""

DiskSteps = Generator[DiskStep, Any, _Result]


def run_inline(steps: DiskSteps[_Result]) -> _Result:
    """Run every step in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        finished: _Result = end.value
        return finished
