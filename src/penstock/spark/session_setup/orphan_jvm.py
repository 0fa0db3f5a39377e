"""A JVM whose start was interrupted.

PySpark starts Spark's JVM and waits for its port. If it is interrupted while it waits, it forgets
the process: the orphaned JVM cannot report its port and never exits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from penstock.spark.jvm import is_connected

_PROCESSES: Final = Path("/proc")
_LAUNCHED: Final = b"pyspark-shell"
"""The application name of every JVM that PySpark starts; the launching scripts have it, too."""
_LOOK_SECONDS: Final = 0.05


@contextlib.contextmanager
def kill_orphan_on_failure() -> Iterator[None]:
    """If the block fails before PySpark is connected to its JVM, kill the JVM it started."""
    before = set(launched_jvms())
    try:
        yield
    except BaseException:
        if not is_connected():
            _kill(pid for pid in launched_jvms() if pid not in before)
        raise


def abort_start(starting: Future[Any]) -> None:
    """Make a start in another thread fail, because its session is no longer needed.

    Waiting for the session only to stop it would take as long as Spark takes to start.
    """
    while not starting.cancel() and not starting.done():
        _kill(launched_jvms())
        time.sleep(_LOOK_SECONDS)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def launched_jvms(parent: int | None = None) -> list[int]:
    """The running JVMs that PySpark started in ``parent``, by default in this process."""
    wanted = os.getpid() if parent is None else parent
    found = []
    for process in _PROCESSES.glob("[0-9]*"):
        # Processes may end meanwhile, and some systems have no such directory.
        with contextlib.suppress(OSError):
            # The name in brackets may contain anything, so look behind it.
            state, its_parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            is_ours = int(its_parent) == wanted and state != "Z"
            if is_ours and _LAUNCHED in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
