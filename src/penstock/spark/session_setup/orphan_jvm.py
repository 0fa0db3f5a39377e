"""A JVM whose start was broken off.

PySpark starts Spark's JVM and waits for the port it listens on. Interrupted while it waits, it
forgets the process. That finds nobody to tell its port to, and lives on for ever.
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
"""What PySpark calls the application of every JVM it starts, in the launching scripts, too."""
_LOOK_SECONDS: Final = 0.05


@contextlib.contextmanager
def kill_orphan_on_failure() -> Iterator[None]:
    """End the JVM that was started within, if nobody got hold of it."""
    before = set(launched_jvms())
    try:
        yield
    except BaseException:
        if not is_connected():
            _kill(pid for pid in launched_jvms() if pid not in before)
        raise


def abort_start(starting: Future[Any]) -> None:
    """Have a start that runs in another thread fail: nobody wants its session any more.

    To wait for the session only to stop it takes as long as Spark takes to start.
    """
    while not starting.cancel() and not starting.done():
        _kill(launched_jvms())
        time.sleep(_LOOK_SECONDS)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def launched_jvms(parent: int | None = None) -> list[int]:
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
