"""The life of one embedded cluster: where it runs, how it starts, what is cleaned up after it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from penstock.client.session import session_registry
from penstock.client.session.host import Host
from penstock.client.session.loop_thread import LoopThread
from penstock.errors import InvalidArgument, LifecycleError, MissingPackage
from penstock.testing.clock import VirtualClock
from penstock.testing.hosts.cluster import EmbeddedCluster, check_brokers
from penstock.testing.hosts.local_host import LocalHost
from penstock.testing.hosts.virtual_host import VirtualHost
from penstock.testing.virtual_time.loop import UnhandledInLoop, VirtualLoop

log = logging.getLogger(__name__)

ClockChoice = Literal["virtual"] | VirtualClock | None

_numbers = itertools.count(1)


class Embedding:
    """One embedded cluster: its host, its servers and what has to be cleaned up after them."""

    def __init__(
        self,
        data: str | os.PathLike[str] | None,
        brokers: int,
        clock: ClockChoice,
        grpc: bool = False,
    ) -> None:
        if grpc and clock is not None:
            raise InvalidArgument(
                f"grpc=True with clock={clock!r}", expected="real time: gRPC needs real sockets"
            )
        if grpc and find_spec("google.protobuf") is None:
            raise MissingPackage("grpc=True needs protobuf", hint="pip install 'penstock[grpc]'")
        self._has_grpc = grpc
        if clock is not None and clock != "virtual" and not isinstance(clock, VirtualClock):
            raise InvalidArgument(
                f"clock={clock!r}", expected="None for real time, 'virtual', or a VirtualClock"
            )
        self._given_data = None if data is None else Path(data)
        self._brokers = check_brokers(brokers)
        self._clock_choice = clock
        self._number = next(_numbers)
        self.state: str = "new"
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._cluster: EmbeddedCluster | None = None
        self._host: Host | None = None
        self._namesrv = ""
        self._data = Path()

    @property
    def name(self) -> str:
        return f"embedded cluster {self._number}"

    @property
    def namesrv(self) -> str:
        """What clients are given to find this cluster."""
        self._check_running()
        return self._namesrv

    @property
    def grpc(self) -> str:
        """What official 5.x clients are given."""
        self._check_running()
        if not self._has_grpc:
            raise LifecycleError(f"{self.name} serves no gRPC", hint="embedded(grpc=True)")
        assert self._cluster is not None, "it runs"
        return self._cluster.grpc_address

    @property
    def data(self) -> Path:
        """The directory with the stores."""
        self._check_running()
        return self._data

    @property
    def host(self) -> Host:
        self._check_running()
        assert self._host is not None, "set while it runs"
        return self._host

    @property
    def virtual_loop(self) -> VirtualLoop | None:
        loop = self.host.loop
        return loop if isinstance(loop, VirtualLoop) else None

    def _check_running(self) -> None:
        if self.state != "running":
            raise LifecycleError(
                f"{self.name} is not running", hint="use it in a with block: with embedded() as mq"
            )

    # ---------------------------------------------------------------------------- lifecycle

    def start(self) -> None:
        """Serve, or raise what kept it from that; blocks."""
        host = self._prepare(self._own_host())
        try:
            assert self._cluster is not None, "made by _prepare"
            host.run(self._cluster.start())
            self._serve()
        except BaseException:
            self._close(host)
            raise

    async def start_async(self) -> None:
        """The same without blocking the caller's loop."""
        host = self._prepare(self._shared_host() or self._own_host())
        try:
            assert self._cluster is not None, "made by _prepare"
            await host.await_(self._cluster.start())
            self._serve()
        except BaseException:
            await _elsewhere(host, self._close)
            raise

    def stop(self, *, quietly: bool = False) -> None:
        """Stop serving; unless ``quietly``, raise what it died of meanwhile, if it did."""
        host, work = self._retire(quietly)
        try:
            if host is not None:
                host.run(work)
        finally:
            if host is not None:
                self._close(host)

    async def stop_async(self, *, quietly: bool = False) -> None:
        """The same without blocking the caller's loop."""
        host, work = self._retire(quietly)
        try:
            if host is not None:
                await host.await_(work)
        finally:
            if host is not None:
                await _elsewhere(host, self._close)

    def _prepare(self, host: Host) -> Host:
        self.state = "starting"
        self._host = host
        if self._given_data is None:
            # What a broker still writes while it stops must not make the clean-up fail.
            self._temporary = tempfile.TemporaryDirectory(
                prefix="penstock-", ignore_cleanup_errors=True
            )
            self._data = Path(self._temporary.name)
        else:
            self._data = self._given_data
        self._cluster = EmbeddedCluster(
            self._data,
            brokers=self._brokers,
            clock=host.clock,
            is_temporary=self._temporary is not None,
            grpc=self._has_grpc,
        )
        return host

    def _check_new(self) -> None:
        if self.state != "new":
            raise LifecycleError(
                f"{self.name} was started twice", hint="call embedded() again for another one"
            )

    def _own_host(self) -> Host:
        """A loop in a thread of its own: a real one, or a virtual one."""
        self._check_new()
        choice = self._clock_choice
        if choice is None:
            return LoopThread(f"penstock {self.name}")
        loop = VirtualLoop() if isinstance(choice, str) else choice.loop
        if loop.is_running():
            raise LifecycleError(
                f"the loop of this clock runs already, and {self.name} would block it",
                hint="async with penstock.aio.embedded(clock=...)",
            )
        return VirtualHost(loop, f"penstock {self.name}")

    def _shared_host(self) -> Host | None:
        """The running loop itself, if it is the virtual one that is meant."""
        self._check_new()
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return None
        choice = self._clock_choice
        if choice is None:
            raise LifecycleError(
                f"{self.name} would have real sockets, and the running loop has virtual time only",
                hint="embedded(clock='virtual')",
            )
        if isinstance(choice, VirtualClock) and choice.loop is not loop:
            raise LifecycleError(
                f"the clock of {self.name} belongs to another virtual loop than the running one",
                hint="embedded(clock='virtual') takes the running one",
            )
        return LocalHost(loop, f"penstock {self.name}")

    def _serve(self) -> None:
        assert self._cluster is not None
        assert self._host is not None
        self._namesrv = self._cluster.nameserver_address
        loop = self._host.loop
        if isinstance(loop, VirtualLoop):
            # A name of this cluster alone: the addresses of all virtual networks are the same.
            # The last part of it is reserved never to exist.
            ip, port = self._namesrv.split(":")
            domain = f"embedded-{self._number}.penstock.invalid"
            loop.network.add_name(domain, ip)
            self._namesrv = f"{domain}:{port}"
            session_registry.use_host(self._namesrv, self._host)
        self.state = "running"
        log.info("embedded cluster started namesrv=%s data=%s", self._namesrv, self._data)

    def _retire(self, quietly: bool) -> tuple[Host | None, Coroutine[Any, Any, None]]:
        """Take no more clients; return what stops the servers."""
        if self.state != "running":
            return None, _nothing()
        self.state = "stopped"
        left = session_registry.retire_host(self._namesrv)
        if left:
            log.warning(
                "clients still run, and end with their cluster cluster=%s clients=%s",
                self.name,
                ", ".join(left),
            )
        assert self._cluster is not None
        return self._host, _leave(self._cluster, quietly)

    def _close(self, host: Host) -> None:
        self.state = "stopped"
        self._host = None
        try:
            if isinstance(host, VirtualHost):
                host.shut_down()
            elif isinstance(host, LoopThread):
                host.close()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None
        if isinstance(host, VirtualHost) and host.loop.unhandled:
            first = host.loop.unhandled[0]
            raise UnhandledInLoop(
                f"{len(host.loop.unhandled)} failed unseen in {self.name}, the first: "
                f"{first.get('message')}"
            ) from first.get("exception")


async def _nothing() -> None:
    pass


async def _leave(cluster: EmbeddedCluster, quietly: bool) -> None:
    """Stop the servers; raise what they died of, or only log it."""
    if quietly:
        await cluster.stop()
    else:
        await cluster.__aexit__(None, None, None)


async def _elsewhere(host: Host, close: Callable[[Host], None]) -> None:
    """Wait for a thread to end without holding up the loop; there is none to wait for locally."""
    if isinstance(host, LocalHost) and not isinstance(host, VirtualHost):
        close(host)
    else:
        await asyncio.get_running_loop().run_in_executor(None, close, host)
