"""A client that sends any bytes, for what no well-behaved peer would send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self

from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder

RECEIVE_SECONDS = 10.0
_READ_BYTES = 65_536


class RawConnection:
    """One connection whose bytes are the test's own. Receiving gives up after a while."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._received: list[Command] = []

    @classmethod
    async def open(
        cls,
        port: int,
        host: str = "127.0.0.1",
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Self:
        """Connect; what the peer sends is not read before the test asks for it."""
        reader, writer = await asyncio.open_connection(
            host, port, ssl=tls, server_hostname=server_hostname
        )
        return cls(reader, writer)

    @property
    def address(self) -> str:
        """Our own address, which the peer knows us by."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    async def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def send_command(self, command: Command) -> None:
        """Send a well-formed frame."""
        await self.send(encode_command(command))

    async def receive(self) -> Command:
        """The next command of the peer; `ConnectionError` if it closed instead."""
        async with asyncio.timeout(RECEIVE_SECONDS):
            while not self._received:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("the peer closed the connection")
                self._received += map(decode_command, self._decoder.feed(data))
        return self._received.pop(0)

    async def ask(self, command: Command) -> Command:
        """Send a request and return the next command."""
        await self.send_command(command)
        return await self.receive()

    async def wait_closed(self) -> bytes:
        """Read until the peer closes or resets; return what came before."""
        received = b""
        async with asyncio.timeout(RECEIVE_SECONDS):
            # A reset ends the connection as well.
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await self._reader.read(_READ_BYTES):
                    received += data
        return received

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        self._writer.write_eof()

    async def close(self) -> None:
        """Close, in any state of the connection."""
        self._writer.close()
        # The other side may have been faster.
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close with a reset, as a killed process may."""
        self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
