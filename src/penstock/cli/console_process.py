"""The console of ``penstock up``: a socket now, a process when the first browser connects.

Loading the console would double the memory of an idle broker, and drawing a hostile body must not
hold up sends. So the parent only listens. The first connection starts the child, which inherits
the socket and answers from its backlog; a child that died starts again with the next one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from penstock.cli.parent_watch import child_environment
from penstock.cli.restarts import Pauses, module_command
from penstock.console.listening import address_of, listen
from penstock.runtime.async_process import end_process
from penstock.runtime.service import Service

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
_KEYS = ("PENSTOCK_ACCESS_KEY", "PENSTOCK_SECRET_KEY", "PENSTOCK_SECURITY_TOKEN")


class ConsoleProcess(Service):
    """Listens for the console and starts it when it is needed."""

    def __init__(self, port: int, arguments: Sequence[str], *, host: str = "127.0.0.1") -> None:
        self._socket = listen(host, port, or_any=True)
        self._arguments = list(arguments)
        self.address = address_of(self._socket)

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        loop = asyncio.get_running_loop()
        pauses = Pauses()
        with self._socket:
            while True:
                await _readable(self._socket)
                began = loop.time()
                try:
                    status = await self._serve()
                    log.warning("console ended status=%d", status)
                except OSError as error:
                    # The broker must not end for want of a process beside it.
                    log.error("console cannot be started, tried again error=%s", error)
                await asyncio.sleep(pauses.after(loop.time() - began))

    async def _serve(self) -> int:
        number = self._socket.fileno()
        process = await asyncio.create_subprocess_exec(
            *module_command("penstock"),
            "console",
            "--fd",
            str(number),
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env=_environment(),
            pass_fds=(number,),
            # Ctrl-C reaches the whole process group, but this process decides when it stops.
            start_new_session=True,
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(end_process(process, _STOP_SECONDS))


def _environment() -> dict[str, str]:
    """The environment of the console, without the keys of this user's own commands.

    With ``--auth`` visitors bring their own keys. Without it there is nothing to sign, and a
    console that has keys asks for a login, which a cluster without users cannot check.
    """
    return {name: value for name, value in child_environment().items() if name not in _KEYS}


async def _readable(bound: socket.socket) -> None:
    """Return when a connection waits to be accepted."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.Event()
    loop.add_reader(bound.fileno(), waiting.set)
    try:
        await waiting.wait()
    finally:
        loop.remove_reader(bound.fileno())
