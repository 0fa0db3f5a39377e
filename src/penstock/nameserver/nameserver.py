"""The name server: knows which broker has which topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.auth.guard import Guard
from penstock.auth.need_tables import NAME_SERVER
from penstock.auth.server_auth import ServerAuth
from penstock.errors import LifecycleError
from penstock.nameserver import handlers
from penstock.nameserver.auth_facts import NameServerFacts
from penstock.nameserver.config import NameServerConfig
from penstock.nameserver.handlers import KV_FILE, NameServerState
from penstock.nameserver.kv import KvConfig
from penstock.nameserver.routes import RouteTable
from penstock.protocol.commands import Command
from penstock.remoting import Handler, Limits, Peer, Promise, Server, ServerTls
from penstock.remoting.addresses import format_address
from penstock.remoting.dispatch import Dispatcher
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.saved_tables import SavedTables
from penstock.runtime.service import Service
from penstock.runtime.state_file import OS_STATE_FILES, StateFileSystem

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 1.0


class NameServer(Service):
    """One name server; several know nothing of each other."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        data: Path | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        tls: ServerTls | None = None,
        auth: ServerAuth | None = None,
        state_files: StateFileSystem = OS_STATE_FILES,
        registration_key: str | None = None,
    ) -> None:
        """``data`` is a directory for the texts that tools keep here; without it they are lost.

        With ``registration_key`` only brokers that have the same key may register.
        """
        self._config = config or NameServerConfig()
        self._clock = clock or SystemClock()
        tables = None if data is None else SavedTables(self._clock, data, files=state_files)
        self._dispatcher = Dispatcher()
        self._auth = auth
        self._guard: Guard | None = None
        self._guarded: Handler = self._dispatcher.serve
        self._max_connections = (limits or Limits()).max_connections
        self._server = Server(
            self._serve,
            self._config.bind_host,
            self._config.listen_port,
            limits=limits,
            tls=tls,
            on_connect=self._peer_connected,
            on_disconnect=self._peer_gone,
        )
        self._state = NameServerState(
            self._config,
            self._clock,
            RouteTable(
                delete_unmentioned_topics=self._config.delete_topic_with_broker_registration,
                support_acting_master=self._config.support_acting_master,
            ),
            KvConfig(),
            tables,
            registration_key,
            has_users=auth is not None,
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` for clients and brokers of this machine."""
        return format_address((self._config.bind_host, self.port))

    @property
    def routes(self) -> RouteTable:
        """What it knows."""
        if not self.is_running:
            raise LifecycleError("the name server is not running", hint="await start() first")
        return self._state.routes

    async def _run(self, ready: Callable[[], None]) -> None:
        self._dispatcher.add_module(handlers, self._state)
        async with AsyncExitStack() as stack:
            await self._load_kv(stack)
            if self._auth is not None:
                guard = self._guard = await stack.enter_async_context(
                    self._auth.running(
                        NAME_SERVER,
                        server="nameserver",
                        clock=self._clock,
                        max_connections=self._max_connections,
                    )
                )
                guard.serve_codes(self._dispatcher.codes)
                guard.use_facts(NameServerFacts(self._auth.cluster))
                self._guarded = guard.wrap(self._dispatcher.serve)
            await stack.enter_async_context(self._dispatcher.long_answers)
            await self._server.start()
            stack.push_async_callback(self._stop_server)
            reload = self._server.certificate_reload(self._clock)
            if reload is not None:
                await stack.enter_async_context(reload)
            log.info("name server started address=%s", self.address)
            ready()
            while True:
                await self._clock.sleep(self._config.scan_not_active_broker_interval_ms / 1000)
                self._expire()

    async def _stop_server(self) -> None:
        await asyncio.shield(self._server.stop(_DRAIN_SECONDS))

    def _expire(self) -> None:
        for broker in self._state.routes.expire(self._state.now_ms()):
            log.warning(
                "broker dropped, it is silent name=%s id=%d address=%s seconds=%d",
                broker.broker_name,
                broker.broker_id,
                broker.address,
                broker.timeout_ms // 1000,
            )
            if isinstance(broker.connection, Peer):
                broker.connection.close("no sign of life for too long")

    def _serve(self, peer: Peer, command: Command) -> Command | Promise | bytes | None:
        return self._guarded(peer, command)

    def _peer_connected(self, peer: Peer) -> None:
        if self._guard is not None:
            self._guard.connected(peer)

    def _peer_gone(self, peer: Peer) -> None:
        if self._guard is not None:
            self._guard.forget(peer)
        for broker in self._state.routes.connection_lost(peer):
            log.info(
                "broker gone, its connection closed name=%s id=%d address=%s",
                broker.broker_name,
                broker.broker_id,
                broker.address,
            )

    async def _load_kv(self, stack: AsyncExitStack) -> None:
        state, tables = self._state, self._state.tables
        if tables is None:
            return

        def load(data: bytes) -> None:
            state.kv = KvConfig.load(data)

        await tables.add(KV_FILE, load=load, dump=lambda: state.kv.dump())
        stack.push_async_callback(tables.save_all)
        await stack.enter_async_context(tables)
