"""Spark's daemon of Python workers, without a traceback for every worker when a session ends.

A worker is kept for the next task and waits for it on a socket. When the JVM ends first, PySpark's
worker finds the socket closed, tries to tell the JVM so, and its daemon prints that as a failure:
a program whose last line has run seems to have crashed. Nobody is left to be told anything, so such
a worker just ends. `session()` has local sessions start this module instead of ``pyspark.daemon``.
"""

from __future__ import annotations

import socket
from typing import Final

from pyspark import daemon

_GONE: Final = 1
"""Not 0, which would have the daemon wait for the next task."""
_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run tasks until the JVM has no more of them, or is gone."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return _GONE


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
