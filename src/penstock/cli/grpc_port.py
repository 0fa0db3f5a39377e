"""The gRPC endpoint of ``penstock up``: which port, and how it is started.

Loading grpc takes longer than a broker takes to start, so it is loaded in a thread meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.cli.warnings import warn
from penstock.errors import ConfigError, ListenFailed, MissingPackage

if TYPE_CHECKING:
    from penstock.proxy.grpc_servers import ClusterServer
    from penstock.proxy.server import GrpcServer

GRPC_PORT: Final = 8081
OFF: Final = "off"
_MAX_PORT: Final = 65_535
_PACKAGES: Final = ("grpc", "google.protobuf")
_MODULE: Final = "penstock.proxy.grpc_servers"


class Port(NamedTuple):
    """A port to listen on."""

    number: int
    is_default: bool = False
    """Whether another one will do."""


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)
    except ModuleNotFoundError:
        return False


def chosen_port(given: str | None, *, any_port: bool = False) -> Port | None:
    """The port of ``--grpc-port``; None: gRPC is not served.

    ``any_port``: the broker has a free port, so the default is one, too.
    """
    if given == OFF:
        return None
    if given is None:
        if not is_installed():
            return None
        return Port(0) if any_port else Port(GRPC_PORT, is_default=True)
    if not (given.isascii() and given.isdecimal() and int(given) <= _MAX_PORT):
        raise ConfigError(
            f"--grpc-port {given!r}", expected=f"a port from 0 to {_MAX_PORT}, or {OFF}"
        )
    if not is_installed():
        raise MissingPackage(
            "--grpc-port needs grpcio and protobuf", hint="pip install 'penstock[grpc]'"
        )
    return Port(int(given))


class Loading:
    """Loads the endpoint in a thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-load")
        self._module: Future[ModuleType] = self._executor.submit(importlib.import_module, _MODULE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def module(self) -> Any:
        return await asyncio.wrap_future(self._module)


async def serve_grpc(
    stack: AsyncExitStack,
    port: Port,
    loading: Loading,
    make: Callable[[Any, int], GrpcServer | ClusterServer],
) -> GrpcServer | ClusterServer:
    """Serve gRPC until ``stack`` ends; ``make`` gets the loaded module and a port."""
    module = await loading.module()
    numbers = (port.number, 0) if port.is_default else (port.number,)
    for number in numbers:
        server = make(module, number)
        try:
            await stack.enter_async_context(server)
        except ListenFailed:
            if number == numbers[-1]:
                raise
            continue
        if number != port.number:
            warn([f"port {port.number} is taken, gRPC is served on {server.port} (--grpc-port)"])
        return server
    raise AssertionError("the last port is served or raises")
