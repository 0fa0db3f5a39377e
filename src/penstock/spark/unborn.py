"""A JVM whose start was broken off.

PySpark starts Spark's JVM and waits for the port it listens on. Interrupted while it waits, it
forgets the process. That finds nobody to tell its port to, and lives on for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark import SparkContext

_PROCESSES: Final = Path("/proc")
_LAUNCHED: Final = b"pyspark-shell"
"""What PySpark calls the application of every JVM it starts, in the launching scripts, too."""


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """End the JVM that was started within, if nobody got hold of it."""
    before = set(launched())
    try:
        yield
    except BaseException:
        if SparkContext._gateway is None:
            for pid in launched():
                if pid not in before:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        raise


def launched(parent: int | None = None) -> list[int]:
    """The JVMs of PySpark that a process, this one unless told, has started and that still run."""
    wanted = os.getpid() if parent is None else parent
    found = []
    for process in _PROCESSES.glob("[0-9]*"):
        # Processes come and go; where there is no such directory, none is found.
        with contextlib.suppress(OSError):
            # The name in brackets may hold anything, what follows does not.
            state, its_parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            is_ours = int(its_parent) == wanted and state != "Z"
            if is_ours and _LAUNCHED in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
