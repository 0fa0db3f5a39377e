"""Connections by address: one each, made on demand, not too eagerly."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from penstock.errors import ConnectFailed, LifecycleError, RequestTimeout
from penstock.protocol.commands import Command
from penstock.remoting.addresses import parse_address
from penstock.remoting.limits import Limits
from penstock.remoting.peer import Handler, Peer, PeerHook
from penstock.remoting.tls import GOODBYE_SECONDS, Tls
from penstock.remoting.write_batch import WriteBatch

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
MAX_TROUBLES: Final = 1024
"""Unreachable addresses remembered; routes may bring new ones for ever."""
TLS_QUESTION: Final = "does that port speak TLS?"
_USUAL_QUESTION: Final = "is the server up, and the address right?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long an address is left alone after ``failures`` attempts in a row that came to nothing.

    The delay doubles from ``first`` up to ``cap`` seconds. Half of it is left to chance, so that
    the clients of a broker that comes back do not all come back in the same instant.
    """

    first: float = 0.2
    cap: float = 10.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait; ``chance`` is between 0 and 1."""
        # The exponent is bounded: nobody tells how often an unreachable address was tried.
        full = min(self.cap, self.first * 2.0 ** min(failures - 1, 32))
        return full * (0.5 + chance / 2)


class _Trouble:
    """What went wrong with an address, and from when on it may be tried again."""

    __slots__ = ("failures", "hint", "reason", "retry_at")

    def __init__(self) -> None:
        self.failures = 0
        self.reason = ""
        self.hint = _USUAL_QUESTION
        self.retry_at = 0.0


class Pool:
    """The connections a client has opened, by address.

    However many ask for an address at once, it is connected to once. An attempt that fails, or a
    connection that ends before the other side said anything, makes the pool leave the address
    alone for a while; who asks meanwhile is told so at once.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: Limits | None = None,
        tls: Tls | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
        on_connect: PeerHook | None = None,
        on_disconnect: PeerHook | None = None,
    ) -> None:
        self._handler = handler
        self._limits = limits or Limits()
        self._tls_context = tls.context() if tls is not None else None
        self._connect_timeout = connect_timeout
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._write_batch: WriteBatch | None = None
        self._peers: dict[str, Peer] = {}
        self._connecting: dict[str, asyncio.Task[Peer]] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._is_closed = False
        self._all_gone = asyncio.Event()

    def find(self, address: str) -> Peer | None:
        """The open connection to ``address``, if there is one; never waits."""
        peer = self._peers.get(address)
        return None if peer is None or peer.is_closed else peer

    @property
    def peers(self) -> dict[str, Peer]:
        """The open connections by address."""
        return {address: peer for address, peer in self._peers.items() if not peer.is_closed}

    async def peer(self, address: str) -> Peer:
        """The connection to ``address``, made if need be; raises `ConnectFailed`."""
        peer = self.find(address)
        if peer is not None:
            return peer
        if self._is_closed:
            raise LifecycleError(f"cannot connect to {address}, the pool is closed")
        task = self._connecting.get(address)
        if task is None:
            self._respect_backoff(address)
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._connect(address), name=f"connect {address}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        # Not awaited directly: a caller that gives up must not take the others down with it.
        await asyncio.wait((task,))
        if task.cancelled():
            raise LifecycleError(f"cannot connect to {address}, the pool is closed")
        return task.result()

    async def request(
        self,
        address: str,
        command: Command,
        timeout: float,  # noqa: ASYNC109
    ) -> Command:
        """Send a request to ``address`` and return the answer; connecting counts as waiting."""
        peer = self.find(address)
        if peer is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            try:
                async with asyncio.timeout_at(deadline):
                    peer = await self.peer(address)
            except TimeoutError:
                raise RequestTimeout(f"no connection to {address} within {timeout:g} s") from None
            timeout = deadline - loop.time()
        return await peer.request(command, timeout)

    async def close(self) -> None:
        """Close all connections, after what was said on them has left; idempotent."""
        self._is_closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting)
        for peer in list(self._peers.values()):
            peer.close("the pool is closed")
        if self._peers:
            await self._all_gone.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --------------------------------------------------------------------- connecting

    async def _connect(self, address: str) -> Peer:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        if self._write_batch is None:
            self._write_batch = WriteBatch(loop)
        write_batch = self._write_batch
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, peer = await loop.create_connection(
                    lambda: Peer(
                        self._handler,
                        limits=self._limits,
                        write_batch=write_batch,
                        loop=loop,
                        accepted=False,
                    ),
                    host,
                    port,
                    ssl=self._tls_context,
                    server_hostname=host if self._tls_context is not None else None,
                    ssl_shutdown_timeout=(
                        GOODBYE_SECONDS if self._tls_context is not None else None
                    ),
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            # asyncio has no words for a handshake that the other side cut short.
            reason = (
                f"no connection within {self._connect_timeout:g} s"
                if isinstance(error, TimeoutError)
                else str(error) or type(error).__name__
            )
            is_about_tls = self._tls_context is not None and _is_handshake_failure(error)
            hint = TLS_QUESTION if is_about_tls else _USUAL_QUESTION
            raise self._failed(address, reason, hint) from error
        return peer

    def _connected(self, address: str, task: asyncio.Task[Peer]) -> None:
        """The attempt has ended, one way or the other; runs before anybody who waits for it."""
        del self._connecting[address]
        if task.cancelled() or task.exception() is not None:
            return
        peer = task.result()
        self._peers[address] = peer
        peer.on_close(lambda lost: self._lost(address, lost))
        if not peer.is_closed and self._on_connect is not None:
            self._on_connect(peer)

    def _lost(self, address: str, peer: Peer) -> None:
        if self._peers.get(address) is peer:
            del self._peers[address]
        if self._is_closed and not self._peers:
            self._all_gone.set()
        if peer.has_spoken:
            self._troubles.pop(address, None)
        elif not self._is_closed:
            # Accepted and dropped without a word: a full server, or one that wants TLS.
            self._failed(address, f"connection ended without an answer: {peer.close_reason}")
        if self._on_disconnect is not None:
            self._on_disconnect(peer)

    # ------------------------------------------------------------------------ backoff

    def _respect_backoff(self, address: str) -> None:
        trouble = self._troubles.get(address)
        if trouble is None:
            return
        wait = trouble.retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise ConnectFailed(
                f"{address} cannot be reached ({trouble.reason}); "
                f"next attempt in {wait:.1f} s, after {trouble.failures} that failed",
                hint=trouble.hint,
            )

    def _failed(self, address: str, reason: str, hint: str = _USUAL_QUESTION) -> ConnectFailed:
        trouble = self._troubles.setdefault(address, _Trouble())
        if len(self._troubles) > MAX_TROUBLES:
            del self._troubles[next(iter(self._troubles))]
        trouble.failures += 1
        trouble.reason = reason
        trouble.hint = hint
        delay = self._backoff.delay(trouble.failures, self._chance())
        trouble.retry_at = asyncio.get_running_loop().time() + delay
        log.warning(
            "cannot connect address=%s failures=%d retry_in=%.1f reason=%s",
            address,
            trouble.failures,
            delay,
            reason,
        )
        return ConnectFailed(f"cannot connect to {address}: {reason}", hint=hint)


def _is_handshake_failure(error: Exception) -> bool:
    """Whether something listens there that does not shake hands; a bad certificate is another."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
