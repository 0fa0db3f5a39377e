"""A TCP proxy on real sockets that hurts what passes through it.

    client ──▶ 127.0.0.1:proxy.port ──▶ target

Faults are attributes and may change at any time; each direction has its own `Flow`. Counts tell a
test what really passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

from penstock.runtime.service import Service

_READ_BYTES = 64 * 1024


class Flow:
    """One direction, over all connections: its faults and its count."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds before each piece is passed on."""
        self.piece_bytes: int | None = None
        """Pass on at most so many bytes at once."""
        self.cut_after: int | None = None
        """Reset a connection once so many of its bytes were passed on."""
        self.passed_bytes = 0
        self._may_read = asyncio.Event()
        self._may_read.set()

    def stall(self) -> None:
        """Read nothing more: the sender's buffers fill up, and it notices only by that."""
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    async def may_read(self) -> None:
        await self._may_read.wait()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        size = self.piece_bytes or len(data)
        for start in range(0, len(data), size):
            yield data[start : start + size]


class _Carried:
    """One connection through the proxy: the client's side and the target's."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.client = client
        self.target = target
        self.ended: list[asyncio.StreamWriter] = []

    def end(self, side: asyncio.StreamWriter) -> None:
        """End the stream towards ``side``; what comes for it later is thrown away."""
        if side not in self.ended and not side.is_closing():
            self.ended.append(side)
            side.write_eof()

    def reset(self) -> None:
        _reset(self.client)
        _reset(self.target)


class FaultProxy(Service):
    """Passes bytes between its port and a target, with the faults a test asks for."""

    def __init__(self, target: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        """Where new connections go; may change while the proxy runs."""
        self.refuse = False
        """Reset every new connection at once."""
        self.to_target = Flow()
        self.to_client = Flow()
        self.accepted = 0
        self._host = host
        self._port = port
        self._open: dict[_Carried, None] = {}

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        """``host:port``, as clients take it."""
        return f"{self._host}:{self._port}"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def cut(self) -> int:
        """Reset every open connection on both sides; return how many there were."""
        carried = list(self._open)
        for connection in carried:
            connection.reset()
        return len(carried)

    def half_close(self) -> None:
        """End the stream towards every client, and leave its other direction open."""
        for connection in self._open:
            connection.end(connection.client)

    async def _run(self, ready: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                carrying = group.create_task(self._carry(reader, writer))
                # Also if the task is cancelled before it begins, or while it connects.
                carrying.add_done_callback(lambda _: writer.close())

            server = await asyncio.start_server(accept, self._host, self._port, limit=_READ_BYTES)
            async with server:
                self._port = server.sockets[0].getsockname()[1]
                ready()
                await asyncio.get_running_loop().create_future()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            await _close(writer)
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(
                *self.target, limit=_READ_BYTES
            )
        except OSError:
            await _close(writer)
            return
        carried = _Carried(writer, target_writer)
        self._open[carried] = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, target_writer, self.to_target, carried))
                group.create_task(self._pump(target_reader, writer, self.to_client, carried))
        finally:
            del self._open[carried]
            try:
                for side in (writer, target_writer):
                    await _close(side, orderly=True)
            finally:
                target_writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: Flow,
        carried: _Carried,
    ) -> None:
        passed = 0
        try:
            while True:
                await flow.may_read()
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                for piece in flow.pieces(data):
                    if flow.delay:
                        await asyncio.sleep(flow.delay)
                    if flow.cut_after is not None and passed + len(piece) >= flow.cut_after:
                        piece = piece[: max(0, flow.cut_after - passed)]
                    # A stall also holds back what was already read.
                    await flow.may_read()
                    if writer in carried.ended:
                        continue
                    writer.write(piece)
                    await writer.drain()
                    passed += len(piece)
                    flow.passed_bytes += len(piece)
                    if flow.cut_after is not None and passed >= flow.cut_after:
                        # What was passed on shall arrive, so only then the reset.
                        await asyncio.sleep(0)
                        carried.reset()
                        return
            carried.end(writer)
        except OSError:
            # One side is gone; a proxy passes that on and says no more.
            carried.reset()


async def _close(writer: asyncio.StreamWriter, *, orderly: bool = False) -> None:
    """Close and wait until the socket is really gone."""
    if orderly:
        writer.close()
    else:
        _reset(writer)
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, as a dying host does, instead of an orderly end."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
