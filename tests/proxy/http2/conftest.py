"""The server that the tests of this directory talk to, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from tests.proxy.http2.peer import MAX_MESSAGE, Methods, Place

from penstock.proxy.http2.listening import Http2Server
from penstock.remoting.listener import bind


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    methods = Methods()
    server = Http2Server(methods.table(), max_message=MAX_MESSAGE)
    sockets = await bind("127.0.0.1", 0)
    await server.start(sockets)
    yield Place(server, methods, sockets[0].getsockname()[1])
    await server.stop(0.1)
    assert (server.kept_bytes, server.open_calls) == (0, 0)
