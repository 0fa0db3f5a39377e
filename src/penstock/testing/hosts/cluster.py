"""A name server and its brokers in this process, as one service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.broker import Broker, BrokerConfig
from penstock.broker.data_directory import broker_names, make_data_directory, refuse_lost_stores
from penstock.errors import InvalidArgument, PenstockError
from penstock.nameserver import NameServer, NameServerConfig
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service, wait_any
from penstock.store import StoreConfig
from penstock.testing.virtual_time.loop import VirtualLoop

MAX_BROKERS = 26
FIRST_BROKER = "broker-a"
NAMESERVER_DIRECTORY = "namesrv"

SMALL_STORE = StoreConfig(
    mapped_file_size_commit_log=64 * 1024 * 1024,
    mapped_file_size_consume_queue=20 * 10_000,
    max_hash_slot_num=100_000,
    max_index_num=400_000,
)
"""For stores that are thrown away; those that are kept have RocketMQ's sizes."""

_LOCAL = "127.0.0.1"
_VIRTUAL_NAMESERVER = ("10.0.0.1", 9876)
_VIRTUAL_BROKER_PORT = 10911


class EmbeddedCluster(Service):
    """Starts the name server, then the brokers; stops them in reverse."""

    def __init__(
        self, data: Path, *, brokers: int, clock: Clock, is_temporary: bool, grpc: bool = False
    ) -> None:
        self._data = data
        self._names = broker_names(FIRST_BROKER, brokers)
        self._clock = clock
        self._store_config = SMALL_STORE if is_temporary else StoreConfig()
        self._has_grpc = grpc
        self.nameserver_address = ""
        self.grpc_address = ""
        self.brokers: dict[str, Broker] = {}

    async def _run(self, ready: Callable[[], None]) -> None:
        refuse_lost_stores(self._data, self._names)
        make_data_directory(self._data)
        async with AsyncExitStack() as stack:
            name_server = NameServer(
                self._nameserver_config(),
                data=self._data / NAMESERVER_DIRECTORY,
                clock=self._clock,
            )
            with self._on_host(_VIRTUAL_NAMESERVER[0]):
                await stack.enter_async_context(name_server)
            self.nameserver_address = name_server.address
            for index, name in enumerate(self._names):
                await self._add_broker(stack, name, index)
            services: list[Service] = [name_server, *self.brokers.values()]
            if self._has_grpc:
                services.append(await self._serve_grpc(stack))
            ready()
            await wait_any(*services)

    async def _serve_grpc(self, stack: AsyncExitStack) -> Service:
        # Loading grpc takes long, and few tests need it.
        from penstock.proxy.grpc_servers import ClusterServer, local_server

        brokers = list(self.brokers.values())
        server = (
            local_server(brokers[0], self._clock, host=_LOCAL, port=0)
            if len(brokers) == 1
            else ClusterServer([self.nameserver_address], self._clock, host=_LOCAL, port=0)
        )
        await stack.enter_async_context(server)
        self.grpc_address = f"{_LOCAL}:{server.port}"
        return server

    async def _add_broker(self, stack: AsyncExitStack, name: str, index: int) -> None:
        config = self._broker_config(name, index)
        loop = self._virtual_loop
        broker = Broker(
            config,
            self._data / name,
            store_config=self._store_config,
            name_servers=[self.nameserver_address],
            clock=self._clock,
            chance=None if loop is None else loop.random,
        )
        try:
            with self._on_host(config.bind_host):
                await stack.enter_async_context(broker)
        except PenstockError as error:
            raise type(error)(
                f"broker {name}: {error.what}", expected=error.expected, hint=error.hint
            ) from error
        self.brokers[name] = broker

    # On real sockets everything is on the loopback address and has a port of its own; on the
    # virtual network, where addresses are free, everything has a host of its own.

    @property
    def _virtual_loop(self) -> VirtualLoop | None:
        loop = asyncio.get_running_loop()
        return loop if isinstance(loop, VirtualLoop) else None

    @contextlib.contextmanager
    def _on_host(self, address: str) -> Iterator[None]:
        loop = self._virtual_loop
        if loop is None:
            yield
            return
        with loop.network.host(address):
            yield

    def _nameserver_config(self) -> NameServerConfig:
        if self._virtual_loop is None:
            return NameServerConfig(bind_host="127.0.0.1", listen_port=0)
        host, port = _VIRTUAL_NAMESERVER
        return NameServerConfig(bind_host=host, listen_port=port)

    def _broker_config(self, name: str, index: int) -> BrokerConfig:
        if self._virtual_loop is None:
            return BrokerConfig(broker_name=name, bind_host="127.0.0.1", listen_port=0)
        return BrokerConfig(
            broker_name=name, bind_host=f"10.0.1.{index + 1}", listen_port=_VIRTUAL_BROKER_PORT
        )


def check_brokers(count: int) -> int:
    """How many brokers, if that many can be."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_BROKERS:
        raise InvalidArgument(f"brokers={count!r}", expected=f"1 to {MAX_BROKERS}")
    return count
