"""A started name server, and clients that talk to it over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tests.support.wire import Wire

from penstock.nameserver import NameServer, NameServerConfig

StartServer = Callable[..., Awaitable[NameServer]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Start name servers; ``settings`` go to `NameServerConfig`, the rest to `NameServer`."""
    async with AsyncExitStack() as stack:

        async def start(*, settings: dict[str, object] | None = None, **more: object) -> NameServer:
            given: dict[str, object] = {"listen_port": 0, **(settings or {})}
            server = NameServer(
                NameServerConfig(**given),  # type: ignore[arg-type]  # keywords of a test
                **more,  # type: ignore[arg-type]  # keywords of a test
            )
            return await stack.enter_async_context(server)

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> NameServer:
    return await start_server()


@pytest.fixture
async def wire(server: NameServer) -> AsyncIterator[Wire]:
    async with await Wire.connect(server.port) as client:
        yield client
