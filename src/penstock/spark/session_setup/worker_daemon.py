"""Spark's daemon of Python workers, without a traceback for every worker when a session ends.

A worker waits for its next task on a socket. When the JVM ends first, PySpark's worker finds the
socket closed, tries to report that to the JVM, and its daemon prints a failure: a program that has
finished seems to have crashed. So such a worker just ends. `session()` makes local sessions start
this module instead of ``pyspark.daemon``.
"""

from __future__ import annotations

import socket
from typing import Final

from pyspark import daemon

_GONE: Final = 1
"""Not 0, which would make the daemon wait for the next task."""
_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks until the JVM has no more, or has ended."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return _GONE


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
