"""The gRPC endpoint of ``penstock up``: a process of its own beside the broker.

Serving a gRPC call takes many times what a broker needs for a request, so on one loop a busy gRPC
client would hold up all others. The parent listens and the child inherits the sockets: connections
wait until there is a child, the first one, or another one in place of one that died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.cli.restarts import Pauses, module_command
from penstock.errors import ListenFailed
from penstock.remoting.listener import bind
from penstock.remoting.tls import ServerTls, Tls, TlsMode
from penstock.runtime.async_process import end_process
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_MODULE = "penstock.cli.grpc_child"
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What a child gets from its parent."""

    name_server: str
    host: str
    """Where it listens, for clients that do not say how they connected."""
    tls: ServerTls | None = None
    client_tls: Tls | None = None
    user_file: Path | None = None
    account: tuple[str, str] | None = None
    verbose: bool = False
    as_json: bool = False

    def to_line(self) -> bytes:
        """As one line of JSON."""
        return json.dumps(asdict(self), default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ChildSettings:
        values: dict[str, Any] = json.loads(line)
        for name, make in (("tls", ServerTls), ("client_tls", Tls)):
            if values[name] is not None:
                values[name] = make(**_with_paths(values[name]))
        if values["account"] is not None:
            values["account"] = tuple(values["account"])
        return cls(**_with_paths(values))


def _with_paths(values: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {
        name: Path(value) if name.endswith("_file") and value is not None else value
        for name, value in values.items()
    }
    return read if "mode" not in read else {**read, "mode": TlsMode(read["mode"])}


class GrpcProcess(Service):
    """Runs the child, again and again, until it is stopped."""

    def __init__(self, sockets: list[socket.socket], settings: Callable[[], ChildSettings]) -> None:
        """``settings`` are asked for each time a child is to serve."""
        self._sockets = sockets
        self._settings = settings
        self._early: asyncio.subprocess.Process | None = None
        self.port: int = sockets[0].getsockname()[1]

    async def load(self) -> None:
        """Start a child that loads what it needs, and waits; a start of the service uses it."""
        self._early = await self._spawn()

    async def discard(self) -> None:
        """End what was started early, and free the port."""
        if self._early is not None:
            await end_process(self._early, _STOP_SECONDS)
        for one in self._sockets:
            one.close()

    async def _run(self, ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        pauses = Pauses()
        early, self._early = self._early, None
        process: asyncio.subprocess.Process | None = early or await self._spawn()
        while True:
            began = loop.time()
            if process is not None:
                status = await self._serve(process, ready)
                log.warning("grpc endpoint ended, another one is started status=%d", status)
            await asyncio.sleep(pauses.after(loop.time() - began))
            process = await self._spawn_again()

    async def _serve(self, process: asyncio.subprocess.Process, ready: Callable[[], None]) -> int:
        try:
            assert process.stdin is not None, "piped"
            # A child that has died already cannot read them; that is noticed below.
            process.stdin.write(self._settings().to_line())
            # Connections wait until it accepts them.
            ready()
            return await process.wait()
        finally:
            await asyncio.shield(end_process(process, _STOP_SECONDS))

    async def _spawn_again(self) -> asyncio.subprocess.Process | None:
        """Another child; None if the system has no room for a process now."""
        try:
            return await self._spawn()
        except OSError as error:
            # The broker must not end for want of a process beside it.
            log.error("grpc endpoint cannot be started, tried again error=%s", error)
            return None

    async def _spawn(self) -> asyncio.subprocess.Process:
        numbers = [one.fileno() for one in self._sockets]
        return await asyncio.create_subprocess_exec(
            *module_command(_MODULE),
            *map(str, numbers),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=numbers,
            # Ctrl-C reaches the whole process group, but this process decides when it stops.
            start_new_session=True,
        )


async def listen(host: str, numbers: tuple[int, ...]) -> list[socket.socket]:
    """Listen on the first of these ports that is free; raises `ListenFailed`."""
    for number in numbers[:-1]:
        try:
            return await bind(host, number)
        except ListenFailed:
            continue
    return await bind(host, numbers[-1])
