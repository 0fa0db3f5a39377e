"""Connections by address: one each, made on demand, with a backoff after failures."""

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
from penstock.remoting.tls import CLOSE_NOTIFY_SECONDS, Tls
from penstock.remoting.write_batch import WriteBatch
from penstock.runtime.repeated_logs import level_of_repeat

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
MAX_FAILED_ADDRESSES: Final = 1024
"""Bounds the remembered failures: routes may bring new addresses for ever."""
TLS_HINT: Final = "does that port speak TLS?"
_USUAL_HINT: Final = "is the server up, and the address right?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delay before the next attempt, after failed attempts in a row.

    The delay doubles from ``first`` up to ``cap`` seconds. Half of it is random, so that the
    clients of a restarted broker do not all reconnect at the same moment.
    """

    first: float = 0.2
    cap: float = 10.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait; ``chance`` is between 0 and 1."""
        # Bound the exponent: there is no limit to the number of attempts.
        full = min(self.cap, self.first * 2.0 ** min(failures - 1, 32))
        return full * (0.5 + chance / 2)


class _Failures:
    """The failed attempts at an address, and when it may be tried again."""

    __slots__ = ("count", "hint", "reason", "retry_at")

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        self.hint = _USUAL_HINT
        self.retry_at = 0.0


class Pool:
    """The connections a client has opened, by address.

    Concurrent requests for an address share one attempt. After a failed attempt, or a connection
    that ended before the peer sent anything, the address is not tried again for a while; meanwhile
    `peer` raises `ConnectFailed` at once.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: Limits | None = None,
        tls: Tls | None = None,
        tls_context: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        backoff: Backoff | None = None,
        chance: Callable[[], float] = random.random,
        on_connect: PeerHook | None = None,
        on_disconnect: PeerHook | None = None,
    ) -> None:
        """``tls_context`` is that of ``tls``, if several pools share one."""
        self._handler = handler
        self._limits = limits or Limits()
        self._tls_context = tls.context() if tls is not None else tls_context
        self._connect_timeout = connect_timeout
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._write_batch: WriteBatch | None = None
        self._peers: dict[str, Peer] = {}
        self._connecting: dict[str, asyncio.Task[Peer]] = {}
        self._failures: dict[str, _Failures] = {}
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
        # Not awaited directly: a cancelled caller must not cancel the attempt for the others.
        await asyncio.wait((task,))
        if task.cancelled():
            raise LifecycleError(f"cannot connect to {address}, the pool is closed")
        return task.result()

    def retry_in(self, address: str) -> float:
        """Seconds until a failed address is tried again; 0 if it may be tried now."""
        failed = self._failures.get(address)
        if failed is None or address in self._connecting:
            return 0.0
        return max(0.0, failed.retry_at - asyncio.get_running_loop().time())

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
        """Send pending output and close all connections; idempotent."""
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
                        CLOSE_NOTIFY_SECONDS if self._tls_context is not None else None
                    ),
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            # asyncio gives no text for a handshake that the peer cut short.
            reason = (
                f"no connection within {self._connect_timeout:g} s"
                if isinstance(error, TimeoutError)
                else str(error) or type(error).__name__
            )
            is_about_tls = self._tls_context is not None and _is_handshake_failure(error)
            hint = TLS_HINT if is_about_tls else _USUAL_HINT
            raise self._failed(address, reason, hint) from error
        return peer

    def _connected(self, address: str, task: asyncio.Task[Peer]) -> None:
        """The attempt has ended; runs before the callers that wait for it."""
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
            self._failures.pop(address, None)
        elif not self._is_closed:
            # Accepted and dropped without an answer: a full server, or one that requires TLS.
            self._failed(address, f"connection ended without an answer: {peer.close_reason}")
        if self._on_disconnect is not None:
            self._on_disconnect(peer)

    # ------------------------------------------------------------------------ backoff

    def _respect_backoff(self, address: str) -> None:
        failed = self._failures.get(address)
        if failed is None:
            return
        wait = failed.retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            raise ConnectFailed(
                f"{address} cannot be reached ({failed.reason}); "
                f"next attempt in {wait:.1f} s, after {failed.count} that failed",
                hint=failed.hint,
            )

    def _failed(self, address: str, reason: str, hint: str = _USUAL_HINT) -> ConnectFailed:
        failed = self._failures.setdefault(address, _Failures())
        if len(self._failures) > MAX_FAILED_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        failed.count += 1
        failed.reason = reason
        failed.hint = hint
        delay = self._backoff.delay(failed.count, self._chance())
        failed.retry_at = asyncio.get_running_loop().time() + delay
        log.log(
            level_of_repeat(failed.count),
            "cannot connect address=%s failures=%d retry_in=%.1f reason=%s",
            address,
            failed.count,
            delay,
            reason,
        )
        return ConnectFailed(f"cannot connect to {address}: {reason}", hint=hint)


def _is_handshake_failure(error: Exception) -> bool:
    """Whether the server does not speak TLS; a bad certificate is another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
