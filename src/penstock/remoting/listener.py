"""Listening ports: one for plain connections, one that tells plain and TLS connections apart.

The plain one is a server of the loop. The other accepts connections itself, since a server of the
loop would read from them at once: it peeks at the first byte while it is still in the socket, and
only then makes a plain or a TLS transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import ListenFailed
from penstock.remoting.addresses import format_address
from penstock.remoting.tls import HANDSHAKE_BYTE, HANDSHAKE_SECONDS, TlsMode
from penstock.runtime.open_files import first_reserved_number

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPT_PAUSE_SECONDS: Final = 1.0
_ACCEPTS_PER_TURN: Final = 64
_LOG_SECONDS: Final = 10.0
_ADDRESS_AGAIN: Final = re.compile(r"^error while attempting to bind on address \(.*?\): ")
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener(Protocol):
    """A listening port."""

    port: int

    def close(self) -> None:
        """Accept no more; open connections stay."""

    async def wait_closed(self) -> None:
        """Return when no connection is being accepted any more."""


class _Bounded:
    """Counts what any peer may cause; one line now and then is enough."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next_line = 0.0
        self.count = 0

    def has_line(self) -> bool:
        """Count one more; whether it is logged."""
        self.count += 1
        now = self._loop.time()
        if now < self._next_line:
            return False
        self._next_line = now + _LOG_SECONDS
        return True


class PlainListener:
    """A port for plain connections only."""

    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self.port = port

    @classmethod
    async def open(cls, factory: ProtocolFactory, host: str, port: int) -> PlainListener:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(factory, host, port, backlog=BACKLOG)
        except OSError as error:
            raise listen_failed(host, port, error) from error
        return cls(server, server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


class SniffingListener:
    """A port that takes plain and TLS connections, as far as its mode allows.

    A connection that sends nothing is dropped after ``patience`` seconds. At most ``max_waiting``
    connections wait for their first byte or their TLS handshake at a time; one more takes the place
    of the one that has waited longest, so that thousands of silent ones keep no one else out.
    """

    def __init__(
        self,
        factory: ProtocolFactory,
        sockets: list[socket.socket],
        *,
        context: ssl.SSLContext,
        mode: TlsMode,
        patience: float,
        max_waiting: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._factory = factory
        self._listening = sockets
        self._context = context
        self._mode = mode
        self._patience = patience
        self._max_waiting = max_waiting
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        # Dicts keep the order: the oldest first.
        self._upgrades: dict[asyncio.Task[None], None] = {}
        self._dropped = _Bounded(self._loop)
        self._refused = _Bounded(self._loop)
        self._failed = _Bounded(self._loop)
        self._pause: asyncio.TimerHandle | None = None
        self.port: int = sockets[0].getsockname()[1]
        self._resume_accepting()

    @classmethod
    async def open(
        cls,
        factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        context: ssl.SSLContext,
        mode: TlsMode,
        patience: float,
        max_waiting: int,
    ) -> SniffingListener:
        return cls(
            factory,
            await bind(host, port),
            context=context,
            mode=mode,
            patience=patience,
            max_waiting=max_waiting,
        )

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening = []
        for sock in list(self._silent):
            self._drop(sock)
        for task in list(self._upgrades):
            task.cancel()

    async def wait_closed(self) -> None:
        if self._upgrades:
            await asyncio.wait(self._upgrades)

    # ---------------------------------------------------------------------- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                self._pause_accepting(error)
                return
            reserved = first_reserved_number()
            if (
                len(self._silent) + len(self._upgrades) >= self._max_waiting
                # Stores in this process could not open their next file.
                or (reserved is not None and sock.fileno() >= reserved)
            ):
                self._drop_oldest()
            sock.setblocking(False)
            self._silent[sock] = self._loop.call_later(self._patience, self._drop_silent, sock)
            self._loop.add_reader(sock, self._peek, sock)

    def _drop_oldest(self) -> None:
        """Make room for a new connection."""
        if self._dropped.has_line():
            log.warning(
                "connections dropped that have waited longest for a first byte or a handshake, "
                "there are too many port=%d waiting=%d dropped_so_far=%d",
                self.port,
                len(self._silent) + len(self._upgrades),
                self._dropped.count,
            )
        if self._silent:
            self._drop(next(iter(self._silent)))
        elif self._upgrades:
            oldest = next(iter(self._upgrades))
            del self._upgrades[oldest]
            oldest.cancel()

    def _pause_accepting(self, error: OSError) -> None:
        log.error(
            "accepting paused, the system cannot open another connection port=%d error=%s "
            "(raise the limit of open files, ulimit -n)",
            self.port,
            error,
        )
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._pause = self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._pause = None
        for sock in self._listening:
            self._loop.add_reader(sock, self._accept, sock)

    # ----------------------------------------------------------------- the first byte

    def _peek(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(sock)
            return
        refusal = self._mode.refusal(first[0])
        if refusal is not None:
            if self._refused.has_line():
                log.warning(
                    "connection refused remote=%s reason=%s refused_so_far=%d",
                    _remote(sock),
                    refusal,
                    self._refused.count,
                )
            self._drop(sock)
            return
        self._release(sock)
        is_tls = first[0] == HANDSHAKE_BYTE
        task = self._loop.create_task(self._hand_over(sock, is_tls), name="accept")
        self._upgrades[task] = None
        task.add_done_callback(lambda done: self._upgrades.pop(done, None))

    async def _hand_over(self, sock: socket.socket, is_tls: bool) -> None:
        remote = _remote(sock)
        try:
            if is_tls:
                await self._loop.connect_accepted_socket(
                    self._factory,
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
            else:
                await self._loop.connect_accepted_socket(self._factory, sock)
        except (OSError, ssl.SSLError) as error:
            if self._failed.has_line():
                log.warning(
                    "%s failed remote=%s error=%s failed_so_far=%d",
                    "TLS handshake" if is_tls else "accepting",
                    remote,
                    error,
                    self._failed.count,
                )
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    def _drop_silent(self, sock: socket.socket) -> None:
        log.info(
            "connection closed, no request came in time remote=%s seconds=%g bytes=0",
            _remote(sock),
            self._patience,
        )
        self._drop(sock)

    def _release(self, sock: socket.socket) -> None:
        self._silent.pop(sock).cancel()
        self._loop.remove_reader(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._release(sock)
        sock.close()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of ``host``, all with the same port number."""
    sockets: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            if sockets:
                port = sockets[0].getsockname()[1]
            sock = socket.create_server((address[0], port), family=family, backlog=BACKLOG)
            sock.setblocking(False)
            sockets.append(sock)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise listen_failed(host, port, error) from error
    return sockets


def listen_failed(host: str, port: int, error: OSError) -> ListenFailed:
    """The error with the port, the reason and a hint."""
    hint = None
    if error.errno == errno.EADDRINUSE:
        hint = "stop the other process that listens there, or choose another port (0: any free one)"
    elif error.errno == errno.EACCES:
        hint = "ports below 1024 need privileges; choose a higher one"
    elif error.errno in (errno.EADDRNOTAVAIL, None) or isinstance(error, socket.gaierror):
        hint = "listen on 0.0.0.0 or on an address of this machine"
    # asyncio repeats the address.
    reason = _ADDRESS_AGAIN.sub("", error.strerror or str(error))
    return ListenFailed(f"cannot listen on {host}:{port}: {reason}", hint=hint)


def _remote(sock: socket.socket) -> str:
    try:
        return format_address(sock.getpeername())
    except OSError:
        return "unknown"
