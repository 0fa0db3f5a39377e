"""The stop of a blocking push consumer; it runs once, also when several callers ask for it.

It is carried out on the session's loop. The callers wait for it, then end the threads. A handler
must not wait, because the stop waits for that handler to return. A thread waits in its place, so
that the program does not end before everything is committed.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable

from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.session.session_registry import Lease

log = logging.getLogger(__name__)


class ConsumerStop:
    """A stop that is under way, or over."""

    def __init__(
        self,
        what: str,
        core: PushConsumerCore,
        lease: Lease,
        seconds: float,
        close: Callable[[], None],
    ) -> None:
        self._what = what
        self._core = core
        self._lease = lease
        self._close = close
        self._finishing = threading.Lock()
        self._is_last = self._is_finished = False
        self._left = lease.host.start(self._leave(seconds))

    async def _leave(self, seconds: float) -> None:
        try:
            await self._core.stop(seconds)
        finally:
            self._is_last = await self._lease.end()

    def wait(self) -> None:
        """Return when it is over; Ctrl-C makes it hurry."""
        host = self._lease.host
        try:
            host.wait(self._left)
        except KeyboardInterrupt:
            log.warning("interrupted again, not waiting for handlers consumer=%s", self._what)
            host.call_soon(self._core.hurry)
            host.wait(self._left)
        finally:
            self._finish()

    def go_on_alone(self) -> None:
        """Wait on another thread; it is no daemon, so the interpreter waits for it."""
        threading.Thread(target=self._follow, name=f"{self._what} stop", daemon=False).start()

    def _follow(self) -> None:
        concurrent.futures.wait([self._left])
        if (error := self._left.exception()) is not None:
            log.error("stop failed consumer=%s", self._what, exc_info=error)
        self._finish()

    def _finish(self) -> None:
        """End the threads, once; a second caller waits for that."""
        with self._finishing:
            if not self._is_finished and self._left.done():
                self._is_finished = True
                if self._is_last:
                    self._lease.host.close()
                self._close()
