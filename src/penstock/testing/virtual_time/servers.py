"""The listening side of the in-memory network, and what stands in for a socket."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import socket
import ssl as ssl_module
from asyncio import sslproto
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from penstock.testing.virtual_time.transports import Endpoint

if TYPE_CHECKING:
    from penstock.testing.virtual_time.loop import VirtualLoop
    from penstock.testing.virtual_time.network import Connection, Network

LOCAL = "127.0.0.1"
"""The host of everything that names no other; also what every host calls itself."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class VirtualSocket:
    """As much of a socket as code asks of ``transport.get_extra_info("socket")``."""

    __slots__ = ("_peername", "_sockname", "family")

    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, sockname: tuple[Any, ...], peername: tuple[Any, ...] | None = None) -> None:
        self._sockname = sockname
        self._peername = peername
        self.family = socket.AF_INET6 if len(sockname) == 4 else socket.AF_INET

    def getsockname(self) -> tuple[Any, ...]:
        return self._sockname

    def getpeername(self) -> tuple[Any, ...]:
        if self._peername is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._peername

    def setsockopt(self, *args: object) -> None:
        """Taken and forgotten: there is no kernel to tune."""

    def getsockopt(self, *args: object) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class VirtualServer(asyncio.AbstractServer):
    """A listening address on the in-memory network."""

    def __init__(
        self,
        network: Network,
        factory: ProtocolFactory,
        addresses: Sequence[tuple[str, int, bool]],
        tls: ssl_module.SSLContext | None,
        tls_handshake_timeout: float | None,
    ) -> None:
        self._network = network
        self._factory = factory
        self._addresses = tuple(addresses)
        self._tls = tls
        self._tls_handshake_timeout = tls_handshake_timeout
        self._is_serving = False
        self._is_closed = False
        self._ends: dict[Endpoint, None] = {}
        self._gone: asyncio.Future[None] | None = None
        self.context: contextvars.Context = contextvars.copy_context()

    @property
    def sockets(self) -> tuple[VirtualSocket, ...]:
        if self._is_closed:
            return ()
        return tuple(
            VirtualSocket(sockaddr(LOCAL if loopback else host, port))
            for host, port, loopback in self._addresses
        )

    def accepts(self, host: str, port: int, *, over_loopback: bool) -> bool:
        """Whether a connect to this address reaches this server."""
        return self._is_serving and any(
            bound_host == host and bound_port == port and (over_loopback or not loopback)
            for bound_host, bound_port, loopback in self._addresses
        )

    def is_bound_to(self, host: str, port: int) -> bool:
        return any((host, port) == (bound, at) for bound, at, _ in self._addresses)

    def accept(self, connection: Connection) -> None:
        """Build the protocol for a new connection; runs in the context of the server."""
        end = connection.server
        if end.is_closing() or not self._is_serving:
            end.outgoing.push_reset()
            end.lose(None)
            return
        self._network.record("accept", connection.number)
        end.server = self
        self._ends[end] = None
        try:
            protocol = self._factory()
        except Exception as error:
            self._network.loop.call_exception_handler(
                {
                    "message": "Error on transport creation for incoming connection",
                    "exception": error,
                }
            )
            end.outgoing.push_reset()
            end.lose(error)
            return
        if self._tls is not None:
            protocol = tls_layer(
                self._network.loop, protocol, self._tls, None, None, self._tls_handshake_timeout
            )
        end.open(protocol)

    def detach(self, end: Endpoint) -> None:
        """An accepted connection has ended."""
        self._ends.pop(end, None)
        self._maybe_gone()

    def _maybe_gone(self) -> None:
        if self._is_closed and not self._ends and self._gone and not self._gone.done():
            self._gone.set_result(None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        if not self._is_closed:
            self._is_serving = True

    async def serve_forever(self) -> None:
        await self.start_serving()
        try:
            await self._network.loop.create_future()
        finally:
            self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._is_serving = False
            self._network.forget(self)
            self._maybe_gone()

    async def wait_closed(self) -> None:
        """Return when the server is closed and its last connection is gone, as Python 3.12 does."""
        if self._is_closed and not self._ends:
            return
        if self._gone is None:
            self._gone = self._network.loop.create_future()
        await asyncio.shield(self._gone)

    def close_clients(self) -> None:
        for end in list(self._ends):
            end.close()

    def abort_clients(self) -> None:
        for end in list(self._ends):
            end.abort()

    def has_host(self, host: str) -> bool:
        return any(bound == host for bound, _, _ in self._addresses)


def sockaddr(host: str, port: int) -> tuple[Any, ...]:
    """An address as the `socket` module writes it."""
    return (host, port, 0, 0) if ":" in host else (host, port)


def tls_layer(
    loop: VirtualLoop,
    protocol: asyncio.BaseProtocol,
    context: ssl_module.SSLContext,
    waiter: asyncio.Future[None] | None,
    server_hostname: str | None,
    handshake_timeout: float | None,
) -> asyncio.BaseProtocol:
    """asyncio's own TLS machine, which runs on any transport."""
    return sslproto.SSLProtocol(
        loop,
        protocol,
        context,
        cast("asyncio.Future[Any]", waiter),
        waiter is None,
        server_hostname,
        ssl_handshake_timeout=cast(int, handshake_timeout),
    )
