"""The server of HTTP/2: its ports and connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.proxy.http2.call import Methods
from penstock.proxy.http2.connection import Connection
from penstock.proxy.http2.load import Load

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 10_000
_ROUND_SECONDS: Final = 10.0
_GREETING_SECONDS: Final = 10.0
_PING_SECONDS: Final = 60.0
_PONG_SECONDS: Final = 20.0
_IDLE_SECONDS: Final = 120.0
_BACKLOG: Final = 1024


class Listening(Protocol):
    """Sockets that connections are accepted from."""

    def close(self) -> None:
        """Accept no more; open connections stay."""


Accept = Callable[[Callable[[], asyncio.Protocol], list[socket.socket]], Listening]
"""Accepts connections from sockets, each for a protocol that it makes."""


class Http2Server:
    """Serves methods on sockets that are bound."""

    def __init__(self, methods: Methods, *, max_message: int, accept: Accept | None = None) -> None:
        """``accept`` is for connections that are not plain."""
        self._methods = methods
        self._max_message = max_message
        self._accept = accept
        self._load = Load()
        self._servers: list[Listening] = []
        self._connections: set[Connection] = set()
        self._rounds: asyncio.TimerHandle | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all calls that are kept."""
        return self._load.size

    @property
    def open_calls(self) -> int:
        """Calls of all connections."""
        return self._load.calls

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on these."""
        loop = asyncio.get_running_loop()
        if self._accept is not None:
            self._servers.append(self._accept(self._make, list(sockets)))
        else:
            for one in sockets:
                self._servers.append(
                    await loop.create_server(self._make, sock=one, backlog=_BACKLOG)
                )
        self._rounds = loop.call_later(_ROUND_SECONDS, self._round)

    def leave(self) -> None:
        """Accept no more connections and calls."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.leave()

    async def stop(self, seconds: float) -> None:
        """Close all connections, those with calls after ``seconds``."""
        self.leave()
        if self._rounds is not None:
            self._rounds.cancel()
        try:
            async with asyncio.timeout(seconds):
                await self._is_empty.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._is_empty.wait()

    def _make(self) -> Connection:
        return Connection(
            self._methods,
            max_message=self._max_message,
            load=self._load,
            opened=self._opened,
            closed=self._closed,
        )

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._is_empty.clear()
        if len(self._connections) > MAX_CONNECTIONS:
            log.warning("too many connections, one is refused remote=%s", connection.remote)
            connection.abort()

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        self.look_after(loop.time())
        self._rounds = loop.call_later(_ROUND_SECONDS, self._round)

    def look_after(self, now: float) -> None:
        """Ask silent clients whether they are there, and end what is of no use."""
        for connection in list(self._connections):
            connection.look_after(now)
            silence = now - connection.heard_at
            if not connection.is_greeted:
                if now - connection.opened_at > _GREETING_SECONDS:
                    connection.abort()
            elif silence > _PING_SECONDS + _PONG_SECONDS:
                log.info("client is silent, dropped remote=%s", connection.remote)
                connection.abort()
            elif not connection.calls and now - connection.busy_at > _IDLE_SECONDS:
                connection.leave()
            elif silence > _PING_SECONDS:
                connection.ping()
