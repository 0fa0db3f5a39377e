"""The broker: builds its services, starts them in order, stops them in reverse order."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.auth.guard import Guard
from penstock.auth.need_tables import BROKER
from penstock.auth.server_auth import ServerAuth
from penstock.broker.auth_facts import BrokerFacts
from penstock.broker.broker_properties import BrokerProperties
from penstock.broker.config import SLAVE, SYNC_MASTER, VIP_PORT_DISTANCE, BrokerConfig
from penstock.broker.delivery.delay_service import DelayService
from penstock.broker.delivery.filters import Filters
from penstock.broker.delivery.held_pulls import HeldPulls
from penstock.broker.handlers import add_all
from penstock.broker.handlers.clients import forget_peer, notify_members
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.lock_endings import LockEndings
from penstock.broker.metrics.exporter import MetricsExporter
from penstock.broker.name_server_registrar import NameServerRegistrar
from penstock.broker.pop.orders import ORDERS_FILE
from penstock.broker.pop.pop_state import build_pop_state
from penstock.broker.pop.request_modes import REQUEST_MODES_FILE
from penstock.broker.pop.reviving import Reviver
from penstock.broker.rate_sampler import RateSampler
from penstock.broker.settings import Settings
from penstock.broker.state import BrokerState
from penstock.broker.stats import BrokerStats
from penstock.broker.storage import Storage
from penstock.broker.tables.clients import Clients
from penstock.broker.tables.groups import GROUPS_FILE, Groups
from penstock.broker.tables.offsets import Offsets
from penstock.broker.tables.queue_locks import QueueLocks
from penstock.broker.tables.topic_epochs import TopicEpochs
from penstock.broker.tables.topics import TOPICS_FILE, Topics, system_topics
from penstock.broker.timers.timer_files import TimerFiles
from penstock.broker.timers.timer_metrics import METRICS_FILE
from penstock.broker.timers.timer_service import TimerService
from penstock.broker.timers.timer_shape import TimerShape
from penstock.broker.topic_routes import TopicRoutes
from penstock.broker.transactions.check_rounds import CheckRounds
from penstock.broker.transactions.counters import COUNTERS_FILE
from penstock.broker.transactions.transactions import Transactions
from penstock.errors import LifecycleError, RemotingError, StoreError
from penstock.model import MessageQueue
from penstock.model.hosts import pack_host
from penstock.model.names import READ
from penstock.protocol.commands import Command
from penstock.protocol.delays import DelayLevels
from penstock.protocol.records.message_ids import UniqueIds
from penstock.remoting import Handler, Limits, Peer, Server, ServerTls, Tls, go_away
from penstock.remoting.addresses import format_address, resolve_host
from penstock.remoting.dispatch import Dispatcher
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.saved_tables import SavedTables
from penstock.runtime.service import Service, wait_any
from penstock.runtime.state_file import OS_STATE_FILES, StateFileSystem
from penstock.runtime.threads import run_to_end
from penstock.store import OS_FILES, FileLayer, MessageStore, StoreConfig

log = logging.getLogger(__name__)

_PORT_TRIES = 50
_DRAIN_SECONDS = 3.0
_ANY_PORT = 0

OFFSETS_FILE = "consumerOffset.json"
DELAYS_FILE = "delayOffset.json"


class Broker(Service):
    """One broker with its own store."""

    def __init__(
        self,
        config: BrokerConfig,
        root: Path,
        *,
        store_config: StoreConfig | None = None,
        name_servers: Sequence[str] = (),
        clock: Clock | None = None,
        limits: Limits | None = None,
        tls: ServerTls | None = None,
        auth: ServerAuth | None = None,
        client_tls: Tls | None = None,
        files: FileLayer = OS_FILES,
        state_files: StateFileSystem = OS_STATE_FILES,
        chance: random.Random | None = None,
        registration_key: str | None = None,
    ) -> None:
        self._config = config
        self._root = root
        self._delay_levels = DelayLevels(config.message_delay_level)
        # Settings that the store shares with the broker are taken from the broker.
        self._store_config = dataclasses.replace(
            store_config or StoreConfig(),
            broker_role=SLAVE if config.is_slave else config.broker_role,
            delay_levels_ms=tuple(
                self._delay_levels.delay_ms(level)
                for level in range(1, self._delay_levels.max_level + 1)
            ),
        )
        self._name_servers = tuple(name_servers) or config.name_servers
        self._clock = clock or SystemClock()
        self._limits = limits
        self._tls = tls
        self._auth = auth
        self._client_tls = client_tls
        self._guard: Guard | None = None
        self._files = files
        self._state_files = state_files
        self._random = chance or random.Random()
        self._registration_key = registration_key
        self._dispatcher = Dispatcher()
        self._serve: Handler = self._dispatcher.serve
        """Serves every request, of each connection; with users it is guarded."""
        self._state: BrokerState | None = None
        self._server: Server | None = None
        self._registration: NameServerRegistrar | None = None
        self._metrics: MetricsExporter | None = None

    @property
    def state(self) -> BrokerState:
        """The parts of the running broker, for tests and for programs that embed it."""
        if self._state is None:
            raise LifecycleError("the broker is not running", hint="await broker.start() first")
        return self._state

    @property
    def address(self) -> str:
        """``ip:port`` that clients connect to."""
        return self.state.address

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are served."""
        return self._dispatcher.codes

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._server is None:
            raise LifecycleError("the broker is not running", hint="await broker.start() first")
        return self._server.port

    def connect_in_memory(self, handler: Handler, remote: str) -> Peer:
        """A connection for a client at ``remote`` that another part of this process serves."""
        if self._server is None:
            raise LifecycleError("the broker is not running", hint="await broker.start() first")
        return self._server.connect_in_memory(handler, remote)

    @property
    def metrics_address(self) -> str | None:
        """``host:port`` of the metrics; None if they are not served."""
        if self._metrics is None:
            return None
        return format_address((self._config.metrics_prom_exporter_host, self._metrics.port))

    def _not_ready(self) -> list[str]:
        """Why the broker does not serve; empty if it does."""
        if self._stop_requested:
            return ["stopping"]
        if not self.is_running or self._state is None or self._registration is None:
            return ["starting: the store is opened and checked"]
        reasons: list[str] = []
        if self._name_servers and not self._registration.registered:
            reasons.append(f"not registered at a name server: {', '.join(self._name_servers)}")
        if not (self._config.is_slave or self._state.storage.store.is_writable):
            reasons.append(f"sends are refused: {self._state.storage.store.refusal}")
        return reasons

    async def _run(self, ready: Callable[[], None]) -> None:
        async with AsyncExitStack() as stack:
            observers: list[Service] = []
            if self._config.exports_metrics:
                # Before the store is opened and until it is closed, so that both can be seen.
                self._metrics = MetricsExporter(
                    self._config,
                    self._clock,
                    state=lambda: self._state,
                    not_ready=self._not_ready,
                )
                observers.append(await stack.enter_async_context(self._metrics))
            store = MessageStore(
                self._root,
                self._store_config,
                time_ms=self._clock.time_ms,
                monotonic=self._clock.monotonic,
                files=self._files,
            )
            # Opening and closing wait for the disk, and other servers may share the loop.
            stack.push_async_callback(run_to_end, None, store.close)
            await run_to_end(None, store.open)
            stats = BrokerStats()
            storage = Storage(
                store,
                self._clock,
                flush_interval=self._store_config.flush_interval_commit_log_ms / 1000,
                sync_timeout=self._config.sync_flush_timeout_ms / 1000,
                put_took=stats.put_took,
            )
            if self._auth is not None:
                self._guard = await stack.enter_async_context(
                    self._auth.running(
                        BROKER,
                        server=self._config.broker_name,
                        clock=self._clock,
                        max_connections=(self._limits or Limits()).max_connections,
                        max_message_bytes=storage.max_message_size,
                    )
                )
                self._serve = self._guard.wrap(self._dispatcher.serve)
            server = self._server = await self._listen(storage)
            stack.push_async_callback(self._stop_server, server)
            ip = await resolve_host(self._config.broker_ip1 or self._config.bind_host)
            state = self._state = self._build(server, storage, stats, ip)
            state.settings.on_change(state.apply_settings)
            await self._load(state)
            registration = NameServerRegistrar(
                self._config,
                state.topics,
                self._clock,
                address=state.address,
                ha_address=f"{state.address.rpartition(':')[0]}:{server.port + 1}",
                name_servers=self._name_servers,
                handler=self._serve,
                permission=lambda: state.config.broker_permission,
                sign=_unsigned if self._auth is None else self._auth.sign,
                registration_key=self._registration_key,
                tls=self._client_tls,
            )
            self._registration = registration
            reviver = Reviver(state)
            await self._restore_pops(state, reviver)
            reload = server.certificate_reload(self._clock)
            parts: list[Service] = [
                *([] if reload is None else [reload]),
                storage,
                state.tables,
                state.held,
                state.pop.held,
                state.pop.notified,
                state.pop.routes,
                state.rate_sampler,
                state.lock_endings,
                self._dispatcher.long_answers,
                Housekeeping(state),
            ]
            if not self._config.is_slave:
                parts += [state.delay_service, state.timers, reviver]
                parts.append(
                    CheckRounds(
                        state.transactions,
                        storage,
                        self._clock,
                        state.settings,
                        state.clients,
                        state.topics,
                        state.store_host,
                        _always if self._guard is None else self._guard.may_publish,
                    )
                )
            # Registered before the services, so on shutdown it runs after them.
            stack.push_async_callback(self._save_at_end, state, reviver)
            for part in parts:
                await stack.enter_async_context(part)
            # Registered after the services, so on shutdown clients are served no longer.
            stack.push_async_callback(self._stop_server, server)
            store.on_arrival(state.held.arrived, state.held.queues)
            store.on_arrival(state.delay_service.arrived, state.delay_service.queues)
            add_all(self._dispatcher, state)
            if self._guard is not None:
                self._guard.serve_codes(self._dispatcher.codes)
                self._guard.use_facts(BrokerFacts(state))
            await stack.enter_async_context(registration)
            log.info(
                "broker started name=%s address=%s store=%s topics=%d",
                self._config.broker_name,
                state.address,
                self._root,
                len(state.topics),
            )
            self._warn_of_role()
            ready()
            await wait_any(*parts, *observers, registration)

    # Building

    def _build(self, server: Server, storage: Storage, stats: BrokerStats, ip: str) -> BrokerState:
        config, clock = self._config, self._clock
        # A host name is not resolved: it may have another address for clients.
        host = config.broker_ip1 or ip
        ids = UniqueIds(pack_host(ip, 0)[:-4], os.getpid(), self._random.getrandbits(32))
        tables = SavedTables(
            clock,
            self._root / "config",
            files=self._state_files,
            # A directory that is not ours any more may be that of another broker.
            check=storage.store.check_held,
            may_be_changed=storage.store.was_used_by_others,
        )

        settings = Settings(config, self._store_config, now_ms=clock.time_ms)

        def topics_changed(topic: str) -> None:
            tables.changed(TOPICS_FILE)
            if self._registration is not None:
                self._registration.topic_changed(topic)

        topics = Topics(
            system=system_topics(
                config.broker_cluster_name,
                config.broker_name,
                auto_create=config.auto_create_topic_enable,
                template_queues=config.default_topic_queue_nums,
                trace_topic=config.trace_topic_enable,
            ),
            now_ms=clock.time_ms,
            changed=topics_changed,
            auto_create=lambda: settings.broker.auto_create_topic_enable,
        )
        offsets = Offsets(
            now_ms=clock.time_ms,
            changed=lambda: tables.changed(OFFSETS_FILE),
            flushed_position=lambda: storage.store.flushed_position,
        )
        store_host = pack_host(ip, server.port)
        routes = TopicRoutes(
            clock,
            self._name_servers,
            handler=self._serve,
            own_queues=lambda topic: _own_queues(topics, topic, config.broker_name),
            sign=_unsigned if self._auth is None else self._auth.sign,
            tls=self._client_tls,
        )
        pop = build_pop_state(
            settings, clock, storage, offsets, store_host, routes=routes, changed=tables.changed
        )
        return BrokerState(
            settings=settings,
            clock=clock,
            users=None if self._guard is None else self._guard.source,
            senders=None if self._guard is None else self._guard.senders,
            storage=storage,
            topics=topics,
            topic_epochs=TopicEpochs(storage.store.deleted_topics),
            groups=Groups(
                auto_create=lambda: settings.broker.auto_create_subscription_group,
                now_ms=clock.time_ms,
                changed=lambda group: tables.changed(GROUPS_FILE),
            ),
            offsets=offsets,
            pop=pop,
            tables=tables,
            clients=Clients(config.client_expiry_seconds),
            locks=QueueLocks(),
            lock_endings=LockEndings(clock, lambda group: notify_members(self.state, group)),
            held=HeldPulls(clock, end_of=storage.max_offset),
            filters=Filters(),
            stats=stats,
            rate_sampler=RateSampler(
                stats, storage.store, clock, cluster=config.broker_cluster_name
            ),
            broker_properties=BrokerProperties(
                region=config.region_id,
                trace_on=config.trace_on,
                cluster=config.broker_cluster_name,
                new_unique_id=lambda: ids.next(clock.time_ms()),
            ),
            delay_service=DelayService(
                storage,
                self._delay_levels,
                clock,
                lambda: tables.changed(DELAYS_FILE),
                topics=topics,
            ),
            delay_levels=self._delay_levels,
            timers=TimerService(
                TimerFiles(self._files, str(self._root), self._timer_shape()),
                storage,
                clock,
                topics,
                tables,
            ),
            transactions=Transactions(
                storage,
                clock,
                settings,
                offsets,
                stats,
                store_host,
                counters_changed=lambda: tables.changed(COUNTERS_FILE),
            ),
            address=format_address((host, server.port)),
            store_host=store_host,
            started_ms=clock.time_ms(),
            when_topics_known=self._when_topics_known,
            random_below=self._random.randrange,
        )

    async def _restore_pops(self, state: BrokerState, reviver: Reviver) -> None:
        """Open what was popped and not finished; the store may come from another broker."""
        opened = await run_to_end(None, reviver.restore)
        if opened:
            log.info("popped messages are unfinished count=%d", opened)
        if state.offsets.journal_position is None:
            # Before the first pop: from now on the file says what it takes into account.
            state.offsets.touch()
            await state.tables.save_all()
        state.pop.wake_reviver = reviver.wake
        if (self._root / "kvStore" / "CURRENT").exists():
            log.warning(
                "the store has pop records in RocksDB, which are not read: run mqadmin "
                "exportPopRecord at the Apache broker first store=%s",
                self._root,
            )

    async def _save_at_end(self, state: BrokerState, reviver: Reviver) -> None:
        """Save all tables; the log first, because saved offsets rely on it."""
        try:
            reviver.settle(is_last=True)
            await run_to_end(None, state.storage.store.flush)
            # A save before the flush has left the newest ones out.
            state.offsets.touch()
        except StoreError as error:
            log.error("the newest offsets are not saved error=%s", error)
        await state.tables.save_all()

    def _timer_shape(self) -> TimerShape:
        config = self._config
        return TimerShape(
            config.timer_precision,
            config.timer_roll_window,
            config.mapped_file_size_timer_log,
        )

    def _when_topics_known(self, done: Callable[[], object], topics: Collection[str]) -> None:
        if self._registration is None:
            done()
        else:
            self._registration.when_known(done, topics)

    async def _load(self, state: BrokerState) -> None:
        """Load the tables and reconcile them with the store."""
        tables, config = state.tables, self._config
        await tables.add(TOPICS_FILE, load=state.topics.load, dump=state.topics.dump)
        await tables.add(GROUPS_FILE, load=state.groups.load, dump=state.groups.dump)
        await tables.add(
            OFFSETS_FILE,
            load=state.offsets.load,
            dump=state.offsets.dump,
            period=config.flush_consumer_offset_interval_ms / 1000,
            # Clients first commit after ten seconds; with a short interval save earlier.
            first=min(10.0, config.flush_consumer_offset_interval_ms / 500),
        )
        await tables.add(
            DELAYS_FILE,
            load=state.delay_service.load,
            dump=state.delay_service.dump,
            period=config.flush_delay_offset_interval_ms / 1000,
        )
        await tables.add(
            COUNTERS_FILE,
            load=state.transactions.counters.load,
            dump=state.transactions.counters.dump,
            period=config.transaction_metrics_interval_ms / 1000,
        )
        await tables.add(
            ORDERS_FILE, load=state.pop.orders.load, dump=state.pop.orders.dump, period=10.0
        )
        await tables.add(REQUEST_MODES_FILE, load=state.pop.modes.load, dump=state.pop.modes.dump)
        metrics = state.timers.metrics
        await tables.add(METRICS_FILE, load=metrics.load, dump=metrics.dump, period=1.0)
        # New tables are written at once, so that Apache RocketMQ finds them, too.
        tables.changed(TOPICS_FILE)
        tables.changed(GROUPS_FILE)
        queues: dict[str, int] = {}
        names = await run_to_end(None, lambda: list(state.storage.store.queues()))
        for topic, queue_id in names:
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        for topic, count in queues.items():
            if topic in state.topics:
                continue
            if state.topics.adopt(topic, count):
                log.warning("topic found in the store only, added to the table topic=%s", topic)
            else:
                log.error("store has queues of an illegal topic name, ignored name=%a", topic)
        for moved in state.offsets.clamp(state.storage.max_offset):
            log.warning("offset beyond the end of its queue moved back %s", moved)
        state.delay_service.correct()
        if not config.is_slave:
            await run_to_end(None, state.transactions.recover)

    def _warn_of_role(self) -> None:
        """Warn about a role that implies replication, which does not exist."""
        config = self._config
        if config.is_slave:
            consequence = "this broker gets no messages from a master and refuses sends"
        elif config.broker_role == SYNC_MASTER:
            consequence = "sends are answered without a slave's copy"
        else:
            return
        log.warning(
            "nothing is replicated, %s brokerRole=%s brokerId=%d",
            consequence,
            config.broker_role,
            config.broker_id,
        )

    # Listening

    async def _listen(self, storage: Storage) -> Server:
        port = self._config.listen_port
        if port != _ANY_PORT:
            server = self._new_server(storage, port)
            await server.start()
            try:
                await server.listen(port - VIP_PORT_DISTANCE)
            except BaseException:
                await server.stop(0)
                raise
            return server
        for _ in range(_PORT_TRIES):
            server = self._new_server(storage, _ANY_PORT)
            await server.start()
            try:
                await server.listen(server.port - VIP_PORT_DISTANCE)
            except RemotingError:
                await server.stop(0)
                continue
            return server
        raise RemotingError(
            f"no free port found on {self._config.bind_host} whose neighbour two below is free too",
            hint="give --broker-port",
        )

    def _new_server(self, storage: Storage, port: int) -> Server:
        return Server(
            self._serve,
            self._config.bind_host,
            port,
            limits=self._limits,
            tls=self._tls,
            on_connect=None if self._guard is None else self._guard.connected,
            on_disconnect=self._peer_gone,
            before_write=storage.write,
            fast_paths=self._dispatcher.fast_paths,
        )

    def _peer_gone(self, peer: Peer) -> None:
        if self._state is not None:
            forget_peer(self._state, peer)
        if self._guard is not None:
            self._guard.forget(peer)

    async def _stop_server(self, server: Server) -> None:
        if self._state is not None:
            self._state.held.release()
            self._state.pop.release()
        await asyncio.shield(server.stop(_DRAIN_SECONDS, handler=go_away(self._serve)))


def _unsigned(command: Command) -> Command:
    return command


def _always(peer: Peer, topic: str) -> bool:
    return True


def _own_queues(topics: Topics, topic: str, broker_name: str) -> tuple[MessageQueue, ...]:
    """The queues of a topic at this broker that consumers may read."""
    config = topics.get(topic)
    count = config.read_queue_nums if config is not None and config.perm & READ else 0
    return tuple(MessageQueue(topic, broker_name, queue_id) for queue_id in range(count))
