"""``embedded()``: a name server and brokers in this process, to write programs and tests against.

Without a clock they listen on real loopback sockets, on ports the system picks, in a thread of
their own; any RocketMQ client can connect. With ``clock="virtual"`` they run on a virtual loop over
an in-memory network, together with every client of this process that names their ``namesrv``:

    with embedded(clock="virtual") as mq:
        consumer = PushConsumer("billing", namesrv=mq.namesrv)
        ...
        mq.clock.advance("2h")      # a delayed retry comes at once
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.admin import admin as awaiting_admin
from penstock.admin import blocking as blocking_admin
from penstock.errors import LifecycleError
from penstock.runtime.clock import Clock
from penstock.runtime.durations import Duration, seconds
from penstock.testing.hosts.embedding import ClockChoice, Embedding
from penstock.testing.hosts.virtual_host import VirtualHost
from penstock.testing.virtual_time.loop import VirtualLoop
from penstock.testing.virtual_time.network import Network

if TYPE_CHECKING:
    from penstock.testing.hosts.console_thread import ConsoleThread


class _Time:
    """What both clocks of an embedded cluster tell."""

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding

    @property
    def _clock(self) -> Clock:
        return self._embedding.host.clock

    def time(self) -> float:
        """The wall clock of the cluster, in seconds since 1970."""
        return self._clock.time()

    def time_ms(self) -> int:
        """The same in milliseconds, as messages are stamped."""
        return self._clock.time_ms()

    def monotonic(self) -> float:
        """Seconds that passed since some moment."""
        return self._clock.monotonic()

    def jump(self, by: Duration) -> None:
        """Set the wall clock forward, or back if negative; timers do not notice."""
        self._virtual_loop().clock.jump(by)

    def _virtual_loop(self) -> VirtualLoop:
        loop = self._embedding.virtual_loop
        if loop is None:
            raise LifecycleError(
                f"{self._embedding.name} lives in real time, which passes by itself",
                hint="embedded(clock='virtual')",
            )
        return loop


class EmbeddedClock(_Time):
    """The time of an embedded cluster."""

    def advance(self, duration: Duration) -> None:
        """Let time pass: everything due in it happens, in order; return when it has."""
        loop, length = self._virtual_loop(), seconds(duration)
        host = self._embedding.host
        if isinstance(host, VirtualHost):
            host.refuse_blocked_handlers()
        host.run(loop.clock.advance(length))


class AsyncEmbeddedClock(_Time):
    """The time of an embedded cluster, for asyncio."""

    async def advance(self, duration: Duration) -> None:
        """Let time pass: everything due in it happens, in order; return when it has."""
        loop, length = self._virtual_loop(), seconds(duration)
        await self._embedding.host.await_(loop.clock.advance(length))


class _Face:
    """What both forms of an embedded cluster show."""

    def __init__(self, embedding: Embedding, *, console: bool = False) -> None:
        self._embedding = embedding
        self._with_console = console
        self._console: ConsoleThread | None = None
        self._console_address = ""

    @property
    def console(self) -> str:
        """The address of the console, for a cluster that was made with ``console=True``."""
        if not self._console_address:
            raise LifecycleError(
                f"{self._embedding.name} has no console", hint="embedded(console=True)"
            )
        return self._console_address

    def _start_console(self) -> None:
        if self._with_console:
            from penstock.testing.hosts.console_thread import ConsoleThread

            self._console = ConsoleThread(self.namesrv)
            self._console_address = self._console.start()

    def _stop_console(self) -> None:
        if self._console is not None:
            self._console.stop()

    @property
    def namesrv(self) -> str:
        """The address to give to clients."""
        return self._embedding.namesrv

    @property
    def grpc(self) -> str:
        """The address to give to official 5.x clients, of a cluster made with ``grpc=True``."""
        return self._embedding.grpc

    @property
    def data(self) -> Path:
        """The directory with the stores, one a broker."""
        return self._embedding.data

    @property
    def network(self) -> Network:
        """The in-memory network of a cluster with a virtual clock: partitions, latency, cuts."""
        loop = self._embedding.virtual_loop
        if loop is None:
            raise LifecycleError(
                f"{self._embedding.name} is on real sockets", hint="embedded(clock='virtual')"
            )
        return loop.network

    def __repr__(self) -> str:
        return f"<{self._embedding.name} {self._embedding.state}>"


class Embedded(_Face):
    """A name server and brokers in this process; made by `embedded`."""

    _admin: blocking_admin.Admin | None = None

    @property
    def admin(self) -> blocking_admin.Admin:
        """An `Admin` of this cluster, closed with it."""
        if self._admin is None:
            self._admin = blocking_admin.Admin(namesrv=self.namesrv)
        return self._admin

    @property
    def clock(self) -> EmbeddedClock:
        """The cluster's time; ``clock.advance("2h")`` where it is virtual."""
        return EmbeddedClock(self._embedding)

    def __enter__(self) -> Self:
        self._embedding.start()
        self._start_console()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._stop_console()
            if self._admin is not None:
                self._admin.close()
        finally:
            self._embedding.stop(quietly=exc is not None)


class AsyncEmbedded(_Face):
    """A name server and brokers in this process; made by `penstock.aio.embedded`."""

    _admin: awaiting_admin.Admin | None = None

    @property
    def admin(self) -> awaiting_admin.Admin:
        """An `aio.Admin` of this cluster, closed with it."""
        if self._admin is None:
            self._admin = awaiting_admin.Admin(namesrv=self.namesrv)
        return self._admin

    @property
    def clock(self) -> AsyncEmbeddedClock:
        """The cluster's time; ``await clock.advance("2h")`` where it is virtual."""
        return AsyncEmbeddedClock(self._embedding)

    def forget_admin(self) -> None:
        """Close the admin from where no loop runs."""
        lease = None if self._admin is None else self._admin.give_up()
        if lease is not None:
            lease.release()

    async def __aenter__(self) -> Self:
        await self._embedding.start_async()
        await asyncio.to_thread(self._start_console)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await asyncio.to_thread(self._stop_console)
            if self._admin is not None:
                await self._admin.close()
        finally:
            await self._embedding.stop_async(quietly=exc is not None)


def embedded(
    data: str | os.PathLike[str] | None = None,
    *,
    brokers: int = 1,
    clock: ClockChoice = None,
    console: bool = False,
    grpc: bool = False,
) -> Embedded:
    """A name server and ``brokers`` brokers in this process, for the length of a ``with`` block.

    Without ``data`` what they store is gone afterwards. Without ``clock`` they have real sockets
    and real time; with ``"virtual"``, or the clock of a `VirtualLoop` of your own seed, time
    passes when ``clock.advance`` says so. ``console`` serves the web console, too, at the address
    `Embedded.console`; it needs the extra ``[console]``. ``grpc`` serves official 5.x clients, too,
    at the address `Embedded.grpc`; it needs the extra ``[grpc]`` and real time.
    """
    return Embedded(Embedding(data, brokers, clock, grpc), console=console)


def embedded_async(
    data: str | os.PathLike[str] | None = None,
    *,
    brokers: int = 1,
    clock: ClockChoice = None,
    console: bool = False,
    grpc: bool = False,
) -> AsyncEmbedded:
    """`embedded` for asyncio: ``async with`` and ``await clock.advance(...)``.

    On a virtual loop (`run_virtual`) the cluster runs there, with the test itself.
    """
    return AsyncEmbedded(Embedding(data, brokers, clock, grpc), console=console)


@contextlib.contextmanager
def running_async(
    data: str | os.PathLike[str] | None = None,
    *,
    brokers: int = 1,
    clock: ClockChoice = None,
) -> Iterator[AsyncEmbedded]:
    """An `AsyncEmbedded` that is started and stopped where no loop runs: around a test."""
    embedding = Embedding(data, brokers, clock)
    embedding.start()
    mq = AsyncEmbedded(embedding)
    try:
        yield mq
    finally:
        mq.forget_admin()
        embedding.stop()
