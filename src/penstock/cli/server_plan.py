"""What ``penstock up | nameserver | broker`` run: from options to settings to the ready line."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from penstock.auth.auth_config import AuthConfig
from penstock.broker import Broker, BrokerConfig
from penstock.broker.data_directory import (
    broker_names,
    make_data_directory,
    refuse_lost_stores,
)
from penstock.cli.console_process import ConsoleProcess
from penstock.cli.grpc_port import Port, chosen_port
from penstock.cli.grpc_process import ChildSettings, GrpcProcess, listen
from penstock.cli.parent_watch import child_environment, stop_with_parent
from penstock.cli.server_security import (
    Security,
    SecurityPlan,
    check_bind,
    effective,
    first_users_undone,
    prepare,
    remember_admin,
)
from penstock.cli.target import DEFAULT_NAMESRV
from penstock.cli.warnings import warn
from penstock.console.listening import is_installed
from penstock.errors import ConfigError, ListenFailed, PenstockError
from penstock.nameserver import NameServer, NameServerConfig
from penstock.remoting.addresses import format_address
from penstock.remoting.loop import run
from penstock.runtime.async_process import end_process
from penstock.runtime.config import Loaded, from_mapping
from penstock.runtime.logs import set_up_logging
from penstock.runtime.open_files import raise_soft_limit
from penstock.runtime.properties_format import parse_properties
from penstock.runtime.service import Service, wait_any
from penstock.store import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig

PORTS_PER_BROKER = 10
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_KEY = "PENSTOCK_REGISTRATION_KEY"
_WILDCARDS = ("0.0.0.0", "::", "")
DEFAULT_CLUSTER = "DefaultCluster"
CONSOLE_AUDIT = "console-audit.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """The options of a command; None means that the option was not given."""

    data: Path
    bind: str | None = None
    advertise: str | None = None
    namesrv: str | None = None
    nameserver_port: int = 0
    broker_port: int | None = None
    brokers: int = 1
    broker_name: str | None = None
    cluster: str | None = None
    config_file: Path | None = None
    flush: str | None = None
    other_brokers: bool = False
    security: SecurityPlan = field(default_factory=SecurityPlan)
    metrics_port: int | None = None
    console: int | None = None
    """The port of the console; None: no console."""
    grpc_port: str | None = None
    verbose: bool = False
    log_format: str = "text"


def make_plan(options: dict[str, Any]) -> ServerPlan:
    """The plan for the options of a command."""
    names = {one.name for one in fields(SecurityPlan)}
    security = SecurityPlan(**{name: options[name] for name in names & options.keys()})
    rest = {name: value for name, value in options.items() if name not in names}
    return ServerPlan(security=security, **rest)


class Settings(NamedTuple):
    """The settings of a broker: defaults, file and options combined."""

    broker: BrokerConfig
    store: StoreConfig
    auth: AuthConfig
    warnings: list[str]


class Running(NamedTuple):
    """The services that run, and their addresses."""

    services: Sequence[Service]
    data: Path | None
    namesrv: str | None = None
    brokers: Sequence[str] = ()
    metrics: Sequence[str] = ()
    grpc: str | None = None
    console: str | None = None

    def ready_line(self, *, as_json: bool) -> str:
        """The line printed when everything is ready."""
        if as_json:
            where: dict[str, object] = {"pid": os.getpid()}
            if self.data is not None:
                where["data"] = str(self.data)
            if self.namesrv is not None:
                where["namesrv"] = self.namesrv
            if self.brokers:
                where["brokers"] = list(self.brokers)
            if self.metrics:
                where["metrics"] = list(self.metrics)
            if self.console is not None:
                where["console"] = self.console
            if self.grpc is not None:
                where["grpc"] = self.grpc
            return json.dumps({"ready": True, **where})
        namesrv = "" if self.namesrv is None else f"namesrv={self.namesrv} "
        brokers = "".join(f"broker={address} " for address in self.brokers)
        metrics = "".join(f"metrics={address} " for address in self.metrics)
        grpc = "" if self.grpc is None else f"grpc={self.grpc} "
        console = "" if self.console is None else f"console={self.console} "
        data = "" if self.data is None else f"data={self.data}"
        return f"ready {namesrv}{brokers}{metrics}{grpc}{console}{data}".rstrip()


# Settings


def load_settings(plan: ServerPlan) -> Settings:
    """The settings of the first broker: defaults, then the file, then the flags."""
    values: dict[str, str] = {}
    twice: tuple[str, ...] = ()
    if plan.config_file is not None:
        try:
            text = plan.config_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--config {plan.config_file} cannot be read: {error}",
                expected="a broker.conf with RocketMQ's keys",
            ) from error
        parsed = parse_properties(text, source=str(plan.config_file))
        values, twice = parsed.values, parsed.duplicates
    given = {
        "bind_host": plan.bind,
        "broker_ip1": plan.advertise,
        "namesrv_addr": plan.namesrv,
        "listen_port": plan.broker_port,
        "broker_name": plan.broker_name,
        "broker_cluster_name": plan.cluster,
        "metrics_prom_exporter_port": plan.metrics_port,
        "metrics_exporter_type": None if plan.metrics_port is None else "PROM",
    }
    store_given = {}
    if plan.flush is not None:
        store_given["flush_disk_type"] = SYNC_FLUSH if plan.flush == "sync" else ASYNC_FLUSH
    broker = from_mapping(
        BrokerConfig, values, **{name: value for name, value in given.items() if value is not None}
    )
    store = from_mapping(StoreConfig, values, **store_given)
    auth = from_mapping(AuthConfig, values)
    _check_addresses(broker.config, effective(plan.security, auth.config))
    found = Loaded(broker.config, broker.unknown, twice)
    warnings = [*found.warnings(store, auth), *auth.config.warnings()]
    return Settings(broker.config, store.config, auth.config, warnings)


def _check_addresses(config: BrokerConfig, plan: SecurityPlan) -> None:
    check_bind(config.bind_host, plan)
    if config.bind_host in _WILDCARDS and not config.broker_ip1:
        raise ConfigError(
            f"--bind {config.bind_host} listens on every address, but clients need a single one",
            hint="add --advertise HOST",
        )


# Serving


@asynccontextmanager
async def everything(plan: ServerPlan) -> AsyncIterator[Running]:
    """A name server and its brokers."""
    settings = load_settings(plan)
    warn(settings.warnings)
    if settings.broker.name_servers:
        # A production's file, tried on a laptop, must not redirect production's clients.
        warn(["namesrvAddr ignored: up registers with its own name server; use penstock broker"])
    names = broker_names(settings.broker.broker_name, plan.brokers)
    refuse_lost_stores(plan.data, names)
    make_data_directory(plan.data)
    key = None if plan.other_brokers else secrets.token_hex(16)
    security = _security(plan, settings)
    port = chosen_port(plan.grpc_port, any_port=settings.broker.listen_port == 0)
    async with AsyncExitStack() as stack:
        undo = stack.enter_context(first_users_undone(security))
        endpoint = None
        if port is not None:
            with _naming_flag("--grpc-port"):
                endpoint = await _grpc_process(plan, settings, security, port, lambda: address)
            stack.push_async_callback(endpoint.discard)
            await endpoint.load()
        name_server = NameServer(
            NameServerConfig(bind_host=settings.broker.bind_host, listen_port=plan.nameserver_port),
            data=plan.data / "namesrv",
            registration_key=key,
            tls=security.tls,
            auth=security.auth,
        )
        with _naming_flag("--nameserver-port"):
            await stack.enter_async_context(name_server)
        services: list[Service] = [name_server]
        addresses: list[str] = []
        metrics: list[str] = []
        address = _reachable(name_server)
        for name, broker in _brokers(plan, settings, names, address, security, key):
            try:
                with _naming_flag("--broker-port"):
                    await stack.enter_async_context(broker)
            except PenstockError as error:
                raise type(error)(
                    f"broker {name}: {error.what}", expected=error.expected, hint=error.hint
                ) from error
            services.append(broker)
            addresses.append(broker.address)
            if broker.metrics_address is not None:
                metrics.append(broker.metrics_address)
        host = settings.broker.broker_ip1 or settings.broker.bind_host
        namesrv = format_address((host, name_server.port))
        remember_admin(security, namesrv)
        undo.pop_all()
        grpc = None
        if endpoint is not None:
            _warn_of_port(port, endpoint)
            await stack.enter_async_context(endpoint)
            services.append(endpoint)
            grpc = format_address((host, endpoint.port))
        console = _console(plan, security, address)
        if console is not None:
            await stack.enter_async_context(console)
            services.append(console)
        yield Running(
            services,
            plan.data,
            namesrv,
            addresses,
            metrics,
            grpc,
            None if console is None else console.address,
        )


async def _grpc_process(
    plan: ServerPlan,
    settings: Settings,
    security: Security,
    port: Port,
    name_server: Callable[[], str],
) -> GrpcProcess:
    """The gRPC endpoint, which listens; ``name_server`` is asked for when it is to serve."""
    bind = settings.broker.bind_host
    sockets = await listen(bind, (port.number, 0) if port.is_default else (port.number,))

    def child() -> ChildSettings:
        return ChildSettings(
            name_server=name_server(),
            host=settings.broker.broker_ip1 or bind,
            tls=security.tls,
            client_tls=security.client_tls,
            user_file=None if security.auth is None else security.auth.user_file,
            account=None if security.auth is None else security.auth.account,
            verbose=plan.verbose,
            as_json=plan.log_format == "json",
        )

    return GrpcProcess(sockets, child)


def _warn_of_port(port: Port | None, endpoint: GrpcProcess) -> None:
    """Say that gRPC is on another port, once everything that may fail has been started."""
    if port is not None and port.is_default and endpoint.port != port.number:
        warn([f"port {port.number} is taken, gRPC is served on {endpoint.port} (--grpc-port)"])


def _console(plan: ServerPlan, security: Security, name_server: str) -> ConsoleProcess | None:
    """The console, if its extra is installed; it never keeps a broker from starting."""
    if plan.console is None or not is_installed():
        return None
    arguments = ["--namesrv", name_server, "--audit", str(plan.data / CONSOLE_AUDIT)]
    if security.auth is not None:
        arguments.append("--login")
    if security.tls is not None:
        arguments.append("--tls")
        if security.authority is not None:
            arguments += ["--tls-ca", str(security.authority)]
    try:
        return ConsoleProcess(plan.console, arguments)
    except ListenFailed as error:
        warn([f"no console: {error.what}"])
        return None


def _security(plan: ServerPlan, settings: Settings) -> Security:
    config = settings.broker
    hosts = (config.broker_ip1, config.bind_host if config.bind_host not in _WILDCARDS else "")
    security = effective(plan.security, settings.auth)
    return prepare(security, plan.data, config.broker_cluster_name, hosts, settings.auth)


def _reachable(name_server: NameServer) -> str:
    """The address of the name server for brokers on this machine."""
    host, _, port = name_server.address.rpartition(":")
    return f"{'127.0.0.1' if host in _WILDCARDS else host}:{port}"


def _brokers(
    plan: ServerPlan,
    settings: Settings,
    names: Sequence[str],
    name_server: str,
    security: Security,
    key: str | None,
) -> AsyncBrokers:
    if len(names) == 1:
        broker = Broker(
            settings.broker,
            plan.data / names[0],
            store_config=settings.store,
            name_servers=[name_server],
            registration_key=key,
            tls=security.tls,
            auth=security.auth,
            client_tls=security.client_tls,
        )
        return [(names[0], broker)]
    first = settings.broker.listen_port
    return [
        (
            name,
            BrokerProcess(
                plan,
                name,
                port=first + index * PORTS_PER_BROKER if first else 0,
                metrics_port=_metrics_port(settings.broker, index),
                name_server=name_server,
                key=key,
            ),
        )
        for index, name in enumerate(names)
    ]


def _metrics_port(config: BrokerConfig, index: int) -> int | None:
    """The port of the metrics of each broker: one after the other, as they share a machine."""
    if not config.exports_metrics:
        return None
    first = config.metrics_prom_exporter_port
    return first + index if first else 0


@asynccontextmanager
async def name_server_alone(plan: ServerPlan) -> AsyncIterator[Running]:
    """A name server."""
    host = plan.bind or "127.0.0.1"
    check_bind(host, plan.security)
    make_data_directory(plan.data)
    config = NameServerConfig(bind_host=host, listen_port=plan.nameserver_port)
    security = prepare(plan.security, plan.data, plan.cluster or DEFAULT_CLUSTER, (host,))
    async with AsyncExitStack() as stack:
        undo = stack.enter_context(first_users_undone(security))
        server = NameServer(
            config, data=plan.data / "namesrv", tls=security.tls, auth=security.auth
        )
        with _naming_flag("--nameserver-port"):
            await stack.enter_async_context(server)
        remember_admin(security, server.address)
        undo.pop_all()
        yield Running([server], plan.data, server.address)


@asynccontextmanager
async def broker_alone(plan: ServerPlan) -> AsyncIterator[Running]:
    """A broker under name servers that run elsewhere."""
    settings = load_settings(plan)
    warn(settings.warnings)
    make_data_directory(plan.data)
    root = plan.data / settings.broker.broker_name
    security = _security(plan, settings)
    name_servers = settings.broker.name_servers or [DEFAULT_NAMESRV]
    async with AsyncExitStack() as stack:
        undo = stack.enter_context(first_users_undone(security))
        broker = Broker(
            settings.broker,
            root,
            store_config=settings.store,
            name_servers=name_servers,
            registration_key=os.environ.get(_KEY),
            tls=security.tls,
            auth=security.auth,
            client_tls=security.client_tls,
        )
        with _naming_flag("--broker-port"):
            await stack.enter_async_context(broker)
        remember_admin(security, ";".join(name_servers))
        undo.pop_all()
        metrics = [] if broker.metrics_address is None else [broker.metrics_address]
        yield Running([broker], plan.data, brokers=[broker.address], metrics=metrics)


@contextmanager
def _naming_flag(flag: str) -> Iterator[None]:
    """Name the option that chooses another port when one is taken."""
    try:
        yield
    except ListenFailed as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            raise
        raise ListenFailed(
            error.what,
            hint=f"stop the process that listens there, or {flag} PORT (0: any free port)",
        ) from error


def serve(
    start: Callable[[ServerPlan], AbstractAsyncContextManager[Running]],
    plan: ServerPlan,
    *,
    as_json: bool = False,
) -> None:
    """Serve until Ctrl-C, SIGTERM or the failure of a service."""
    set_up_logging("INFO" if plan.verbose else "WARNING", as_json=plan.log_format == "json")
    raise_soft_limit()
    run(_serve(start(plan), as_json))


async def _serve(running: AbstractAsyncContextManager[Running], as_json: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    watch = asyncio.ensure_future(stop_with_parent(stopped))
    async with running as serving:
        # Programs wait for this line; fields may be added, never renamed.
        print(serving.ready_line(as_json=as_json), flush=True)  # noqa: T201
        _suggest_commands(serving)
        dead = asyncio.ensure_future(wait_any(*serving.services))
        stop = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((dead, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        watch.cancel()
        if dead.done():
            dead.result()
        else:
            dead.cancel()


def _suggest_commands(serving: Running) -> None:
    """On a terminal, print what to try next."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    lines = ["Press Ctrl-C to stop."]
    if serving.namesrv is not None and serving.brokers:
        lines.append("In another terminal, try:")
        where = "" if serving.namesrv == DEFAULT_NAMESRV else f" --namesrv {serving.namesrv}"
        lines.append(f"  penstock send orders hello{where}")
        lines.append(f"  penstock tail orders --from first{where}")
    print("\n".join(lines), file=sys.stderr)  # noqa: T201 - the command line


class BrokerProcess(Service):
    """A broker in a separate process, supervised by this one."""

    def __init__(
        self,
        plan: ServerPlan,
        name: str,
        *,
        port: int,
        name_server: str,
        key: str | None,
        metrics_port: int | None = None,
    ) -> None:
        self._plan = plan
        self._broker_name = name
        self._port = port
        self._name_server = name_server
        self._key = {} if key is None else {_KEY: key}
        self._metrics_port = metrics_port
        self.address = ""
        self.metrics_address: str | None = None

    async def _run(self, ready: Callable[[], None]) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock",
            *self._arguments(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**child_environment(), **self._key},
            # Ctrl-C reaches the whole process group, but this process decides when brokers stop.
            start_new_session=True,
        )
        try:
            assert process.stdout is not None, "piped"
            async with asyncio.timeout(_READY_SECONDS):
                line = (await process.stdout.readline()).decode()
            if not line.startswith("ready "):
                raise PenstockError(
                    f"the process ended with status {await process.wait()} before it was ready",
                    hint="its own message is above",
                )
            fields = dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
            self.address = fields["broker"]
            self.metrics_address = fields.get("metrics")
            ready()
            status = await process.wait()
            raise PenstockError(f"broker {self._broker_name} died with status {status}")
        finally:
            await asyncio.shield(end_process(process, _STOP_SECONDS))

    def _arguments(self) -> list[str]:
        plan = self._plan
        flags: list[tuple[str, object]] = [
            ("--namesrv", self._name_server),
            ("--data", plan.data),
            ("--broker-port", self._port),
            ("--broker-name", self._broker_name),
            ("--cluster", plan.cluster),
            ("--bind", plan.bind),
            ("--advertise", plan.advertise),
            ("--config", plan.config_file),
            ("--flush", plan.flush),
            ("--metrics", self._metrics_port),
            ("--log-format", plan.log_format),
        ]
        arguments = ["broker"]
        for flag, value in flags:
            if value is not None:
                arguments += [flag, str(value)]
        arguments += plan.security.arguments(plan.data)
        arguments += ["--verbose"] if plan.verbose else []
        return arguments


AsyncBrokers = Sequence[tuple[str, Broker | BrokerProcess]]
