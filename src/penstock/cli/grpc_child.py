"""The process that serves gRPC for ``penstock up``.

It inherits the sockets that it accepts connections from; their numbers are its arguments. The
parent starts it early, so that it loads what it needs while the brokers start. It serves when it
has read its settings, one line of standard input: they have a secret, which belongs neither into
arguments nor into the environment. It ends when standard input does, which the end of its parent
causes, too.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence

from penstock.cli.grpc_process import ChildSettings
from penstock.proxy.grpc_servers import ClusterServer
from penstock.remoting.loop import run
from penstock.runtime.clock import SystemClock
from penstock.runtime.logs import set_up_logging
from penstock.runtime.open_files import raise_soft_limit
from penstock.runtime.service import wait_any


async def serve(sockets: Sequence[socket.socket]) -> None:
    """Serve until standard input ends, a signal comes or the server fails."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    line = await lines.readline()
    if not line:
        return
    settings = ChildSettings.from_line(line)
    set_up_logging("INFO" if settings.verbose else "WARNING", as_json=settings.as_json)
    server = ClusterServer(
        [settings.name_server],
        SystemClock(),
        host=settings.host,
        port=0,
        tls=settings.tls,
        client_tls=settings.client_tls,
        user_file=settings.user_file,
        account=settings.account,
        sockets=sockets,
    )
    async with server:
        waits = [
            asyncio.ensure_future(one) for one in (ended.wait(), lines.read(), wait_any(server))
        ]
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        for wait in done:
            wait.result()


def main() -> None:
    """Run the process."""
    raise_soft_limit()
    run(serve([socket.socket(fileno=int(number)) for number in sys.argv[1:]]))


if __name__ == "__main__":
    main()
