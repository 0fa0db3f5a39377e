"""Name servers and brokers for one test, in real time or in virtual time.

    @in_virtual_time
    async def test_a_lock_ends_after_a_minute(tmp_path: Path) -> None:
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            ...
            await stage.clock.sleep(60)

The same test without the decorator runs on real sockets. Stores are real files either way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self

from tests.support.wire import Wire

from penstock.broker import Broker, BrokerConfig
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.commands import VERSION, Language
from penstock.runtime.clock import Clock, SystemClock
from penstock.store import OS_FILES, FileLayer, StoreConfig
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

_Arguments = ParamSpec("_Arguments")

SMALL_STORE: Final = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=100,
    max_index_num=400,
)
"""Small files, so that tests see more than one of each."""


def in_virtual_time(
    test: Callable[_Arguments, Coroutine[Any, Any, None]],
) -> Callable[_Arguments, None]:
    """Make an asynchronous test a plain one that runs on a loop of its own, in virtual time."""

    @functools.wraps(test)
    def run(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> None:
        run_virtual(lambda _: test(*arguments, **keywords))

    return run


class Stage:
    """Starts servers and connections, and stops them all at the end, the last one first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stack = AsyncExitStack()
        self.clock: Clock = SystemClock()
        self.name_servers: list[NameServer] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            self.clock = loop.clock
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def name_server(self, **settings: Any) -> NameServer:
        """A name server; brokers that are started later register with it."""
        config = NameServerConfig(**{"listen_port": 0, **settings})
        server = await self._stack.enter_async_context(NameServer(config, clock=self.clock))
        self.name_servers.append(server)
        return server

    async def broker(
        self,
        name: str = "broker-a",
        *,
        store: dict[str, Any] | None = None,
        files: FileLayer = OS_FILES,
        root: Path | None = None,
        **settings: Any,
    ) -> Broker:
        """A broker; ``settings`` are those of `BrokerConfig`, ``store`` those of `StoreConfig`.

        It registers with the name servers of the stage, or else with its ``namesrv_addr``.
        """
        known = [] if "namesrv_addr" in settings else [s.address for s in self.name_servers]
        broker = Broker(
            BrokerConfig(**{"listen_port": 0, "broker_name": name, **settings}),
            root or self._root / name,
            store_config=dataclasses.replace(SMALL_STORE, **(store or {})),
            name_servers=known,
            clock=self.clock,
            files=files,
            chance=random.Random(1),
        )
        return await self._stack.enter_async_context(broker)

    async def connect(
        self,
        server: Broker | NameServer,
        *,
        language: Language = Language.JAVA,
        version: int = VERSION,
    ) -> Wire:
        """A scripted client of a server."""
        wire = await Wire.connect(server.port, language=language, version=version)
        return await self._stack.enter_async_context(wire)
