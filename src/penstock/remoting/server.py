"""Accepts connections up to a limit, and drains them when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Final, Self

from penstock.errors import ConnectionLost, LifecycleError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command, reply
from penstock.remoting.addresses import format_address
from penstock.remoting.certificate_reload import CertificateReload
from penstock.remoting.limits import Limits
from penstock.remoting.listener import Listener, PlainListener, SniffingListener
from penstock.remoting.memory_connection import connect_in_memory
from penstock.remoting.partial_frames import PartialFrames
from penstock.remoting.peer import FastPath, Handler, Peer, PeerHook
from penstock.remoting.promise import Promise
from penstock.remoting.tls import ServerTls
from penstock.remoting.write_batch import WriteBatch
from penstock.runtime.clock import Clock
from penstock.runtime.open_files import first_reserved_number, soft_limit

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 10.0
WAITING_SHARE: Final = 4
"""A quarter of all connections may wait for a first byte or a TLS handshake."""
_DRAIN_POLL_SECONDS: Final = 0.01
_REFUSAL_LOG_SECONDS: Final = 10.0

GO_AWAY_ABOVE_VERSION: Final = 475
"""Clients up to this version (V5_3_1) do not know the answer GO_AWAY."""


class Server:
    """Serves one handler on one or more ports.

    ``before_write`` is called at the end of every loop turn that has something to send, before it
    is sent; see `write_batch`. ``on_connect`` and ``on_disconnect`` get each accepted peer.
    ``fast_paths`` (see `peer.fast_path_key`) may be filled while it runs.
    """

    def __init__(
        self,
        handler: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        limits: Limits | None = None,
        tls: ServerTls | None = None,
        on_connect: PeerHook | None = None,
        on_disconnect: PeerHook | None = None,
        before_write: Callable[[], None] | None = None,
        fast_paths: Mapping[bytes, FastPath] | None = None,
    ) -> None:
        self._handler = handler
        self._fast_paths = {} if fast_paths is None else fast_paths
        self._host = host
        self._first_port = port
        self._limits = limits or Limits()
        self._partial_frames = PartialFrames(self._limits.max_unfinished_bytes)
        self._tls = tls
        # Read certificates now: a wrong path is an error of the configuration.
        self._tls_context = tls.context() if tls is not None else None
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._before_write = before_write
        self._listeners: list[Listener] = []
        self._write_batch: WriteBatch | None = None
        self._memory_batch: WriteBatch | None = None
        """Of the client ends of connections in memory."""
        self._is_stopping = False
        self._all_gone = asyncio.Event()
        self._refused = 0
        self._refusal_log_at = 0.0
        # A dict keeps its order. A set iterates differently in every run, and a simulation must
        # be repeatable.
        self._peers: dict[Peer, None] = {}

    def certificate_reload(self, clock: Clock) -> CertificateReload | None:
        """A service that follows changes of the certificate; None without TLS."""
        if self._tls is None or self._tls_context is None:
            return None
        return CertificateReload(self._tls, self._tls_context, clock)

    @property
    def peers(self) -> Collection[Peer]:
        """The connections that are open now, oldest first."""
        return self._peers.keys()

    @property
    def port(self) -> int:
        """The port of `start`; the real one where 0 was asked for."""
        return self.ports[0]

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports, in the order they were opened."""
        if not self._listeners:
            raise LifecycleError("the server does not listen", hint="await server.start() first")
        return tuple(listener.port for listener in self._listeners)

    async def start(self) -> None:
        """Listen on the port; raises `ListenFailed`."""
        if self._write_batch is not None:
            raise LifecycleError("the server was started twice", hint="make a new one")
        self._write_batch = WriteBatch(asyncio.get_running_loop(), self._before_write)
        try:
            await self.listen(self._first_port)
        except BaseException:
            self._write_batch = None
            raise

    async def listen(self, port: int) -> int:
        """Listen on one more port, for the same handler; return its number."""
        if self._write_batch is None or self._is_stopping:
            raise LifecycleError("the server does not run", hint="await server.start() first")
        listener: Listener
        if self._tls is None or self._tls_context is None:
            listener = await PlainListener.open(self._make_peer, self._host, port)
        else:
            listener = await SniffingListener.open(
                self._make_peer,
                self._host,
                port,
                context=self._tls_context,
                mode=self._tls.mode,
                patience=self._limits.first_frame_seconds,
                max_waiting=max(1, self._limits.max_connections // WAITING_SHARE),
            )
        self._listeners.append(listener)
        log.info(
            "listening host=%s port=%d tls=%s",
            self._host,
            listener.port,
            self._tls.mode if self._tls is not None else "disabled",
        )
        return listener.port

    async def stop(
        self, drain_seconds: float = DRAIN_SECONDS, *, handler: Handler | None = None
    ) -> None:
        """Accept no more, wait up to ``drain_seconds`` for work under way, close.

        ``handler`` serves the requests that arrive meanwhile; `go_away` makes one that redirects
        newer clients.
        """
        if self._write_batch is None or self._is_stopping:
            return
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        if handler is not None:
            self._handler = handler
            for peer in self._peers:
                peer.use_handler(handler)
        try:
            await self._drain(drain_seconds)
        finally:
            self._write_batch.end()
            for peer in list(self._peers):
                peer.close("the server stops")
        if self._peers:
            await self._all_gone.wait()
        for listener in self._listeners:
            await listener.wait_closed()
        log.info("stopped listening host=%s ports=%s", self._host, self.ports)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _drain(self, drain_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_seconds
        while busy := [peer for peer in self._peers if not peer.is_quiet]:
            if loop.time() >= deadline:
                log.warning(
                    "closing connections with work under way peers=%d promises=%d seconds=%g",
                    len(busy),
                    sum(peer.open_promises for peer in busy),
                    drain_seconds,
                )
                return
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    # ------------------------------------------------------------------------ peers

    def connect_in_memory(self, handler: Handler, remote: str) -> Peer:
        """A connection of this process to this server; ``handler`` serves the server's requests.

        ``remote`` is the address that the server sees: that of the client which is served.
        """
        if self._write_batch is None or self._is_stopping:
            raise ConnectionLost("the server does not run")
        loop = asyncio.get_running_loop()
        if self._memory_batch is None:
            self._memory_batch = WriteBatch(loop)
        client = Peer(
            handler,
            limits=self._limits,
            write_batch=self._memory_batch,
            loop=loop,
            accepted=False,
        )
        connect_in_memory(
            client,
            self._make_peer(),
            client_address=remote,
            server_address=format_address((self._host, self.port)),
        )
        return client

    def _make_peer(self) -> Peer:
        assert self._write_batch is not None
        return Peer(
            self._handler,
            limits=self._limits,
            write_batch=self._write_batch,
            loop=asyncio.get_running_loop(),
            accepted=True,
            opened=self._accept,
            fast_paths=self._fast_paths,
            partial_frames=self._partial_frames,
        )

    def _accept(self, peer: Peer) -> None:
        if self._is_stopping:
            peer.abort("the server stops")
            return
        if len(self._peers) >= self._limits.max_connections:
            self._refuse(peer, f"max_connections={self._limits.max_connections}")
            return
        reserved = first_reserved_number()
        if reserved is not None and peer.file_number >= reserved:
            # Stores in this process could not open their next file.
            self._refuse(peer, f"ulimit_n={soft_limit()}")
            return
        self._peers[peer] = None
        peer.on_close(self._forget)
        if self._on_connect is not None:
            self._on_connect(peer)

    def _forget(self, peer: Peer) -> None:
        self._peers.pop(peer, None)
        if self._is_stopping and not self._peers:
            self._all_gone.set()
        if self._on_disconnect is not None:
            self._on_disconnect(peer)

    def _refuse(self, peer: Peer, bound: str) -> None:
        peer.abort(f"too many connections are open, {bound}")
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._refusal_log_at:
            # A refused client reconnects at once; one line now and then is enough.
            self._refusal_log_at = now + _REFUSAL_LOG_SECONDS
            log.warning(
                "connection refused, too many are open remote=%s open=%d %s refused_so_far=%d",
                peer.remote,
                len(self._peers),
                bound,
                self._refused,
            )


def go_away(handler: Handler) -> Handler:
    """A handler for the time of draining: newer clients are asked to connect elsewhere.

    Clients that do not know the answer GO_AWAY, and one-way requests, are served by ``handler``.
    """

    def serve(peer: Peer, request: Command) -> Command | Promise | bytes | None:
        if request.version > GO_AWAY_ABOVE_VERSION and not request.is_oneway:
            return reply(request, ResponseCode.GO_AWAY, remark="the server is stopping")
        return handler(peer, request)

    return serve
