"""The console of an embedded cluster: served by a thread of its own, on a free port."""

from __future__ import annotations

import asyncio
import socket
import threading

from penstock.client.cluster_access import ClusterAccess
from penstock.console.listening import address_of, listen, require_installed

_START_SECONDS = 30.0


class ConsoleThread:
    """A console for one cluster; `start` returns its address."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> str:
        """Serve, or raise what kept it from that."""
        require_installed()
        bound = listen("127.0.0.1", 0)

        def run() -> None:
            try:
                asyncio.run(self._serve(bound))
            except BaseException as error:
                self._failure = error
            finally:
                self._ready.set()
                bound.close()

        self._thread = threading.Thread(target=run, name="penstock-console", daemon=True)
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if self._failure is not None:
            raise self._failure
        return address_of(bound)

    async def _serve(self, bound: socket.socket) -> None:
        from penstock.console.options import ConsoleOptions
        from penstock.console.serving import serving

        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        options = ConsoleOptions(contexts={"local": ClusterAccess.of(self._namesrv)})
        async with serving(options, bound):
            self._ready.set()
            await self._stopped.wait()

    def stop(self) -> None:
        """End it and wait for its thread; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopped is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
        thread.join(_START_SECONDS)
