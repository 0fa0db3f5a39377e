"""How ``penstock up`` starts the processes beside it, and when it starts them again."""

from __future__ import annotations

import os
import sys
from typing import Final

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
LASTING_SECONDS: Final = 10.0


class Pauses:
    """The time before the next start: longer and longer for a process that never lasts."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE_SECONDS

    def after(self, lived_seconds: float) -> float:
        """Seconds to wait after a process that has lived so long."""
        pause = FIRST_PAUSE_SECONDS if lived_seconds >= LASTING_SECONDS else self._next
        self._next = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return pause


def module_command(module: str) -> list[str]:
    """The command that runs a module of Python.

    ``-m`` makes the working directory the first place that modules are looked for in. A file there
    must not stand in for one of ours, unless this process looks there, too.
    """
    return [sys.executable, *([] if _looks_into_working_directory() else ["-P"]), "-m", module]


def _looks_into_working_directory() -> bool:
    try:
        here = os.path.realpath(os.getcwd())  # noqa: PTH109 - entries of sys.path are texts
    except FileNotFoundError:
        return False
    return any(not entry or os.path.realpath(entry) == here for entry in sys.path)
