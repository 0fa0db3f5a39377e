"""Runs the console on a socket that is bound already.

uvicorn would end the process on a port that is taken, and takes over its signals; so the socket is
ours, and signals stay with the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from penstock.console.app import running_app
from penstock.console.listening import BACKLOG, address_of
from penstock.console.options import ConsoleOptions

STOP_SECONDS = 2
_READY_STEP = 0.01


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(options: ConsoleOptions, bound: socket.socket) -> AsyncIterator[str]:
    """Serve on the running loop; the value is the console's address."""
    async with running_app(options) as app:
        server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # uvicorn would believe what every program of this machine says of its address.
                proxy_headers=bool(options.trusted_proxies),
                forwarded_allow_ips=list(options.trusted_proxies),
                timeout_graceful_shutdown=STOP_SECONDS,
                backlog=BACKLOG,
            )
        )
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        try:
            while not server.started and not task.done():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(_READY_STEP)
            if task.done():
                task.result()
            yield address_of(bound, options.base_path)
        finally:
            server.should_exit = True
            await asyncio.wait([task])
