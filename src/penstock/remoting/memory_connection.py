"""Connections within one process: bytes pass from one end to the other in memory.

A part of this process that is a client of a server in the same loop gets all that a connection
gives, without a socket: limits, promises, the write batch, the guard, requests both ways.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

_HIGH_BYTES = 64 * 1024


class MemoryTransport(asyncio.Transport):
    """One end; what is written to it is received by the protocol of the other end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        *,
        remote: str,
        local: str,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._extra_info = {"peername": _pair(remote), "sockname": _pair(local)}
        self._other: MemoryTransport | None = None
        self._waiting: deque[bytes] = deque()
        """What the other end has written and this one has not received yet."""
        self._size = 0
        self._is_reading = True
        self._is_delivery_scheduled = False
        self._is_closing = False
        self._is_lost = False
        self._high = _HIGH_BYTES
        self._low = _HIGH_BYTES // 4
        self._has_paused_writer = False

    def join(self, other: MemoryTransport) -> None:
        """Connect both ends; called once for each."""
        self._other = other

    # Information

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0 if self._other is None else self._other._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        other = self._other
        if self._is_closing or other is None or not data:
            return
        other._waiting.append(bytes(data))
        other._size += len(data)
        other._schedule()
        if other._size > self._high and not self._has_paused_writer:
            self._has_paused_writer = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    # Reading

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._schedule()

    def _schedule(self) -> None:
        if self._is_reading and not self._is_delivery_scheduled and not self._is_lost:
            self._is_delivery_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_delivery_scheduled = False
        if self._is_lost or not self._is_reading:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        other = self._other
        if data:
            self._protocol.data_received(data)
        if other is None:
            return
        if other._has_paused_writer and self._size <= other._low:
            other._has_paused_writer = False
            if not other._is_closing:
                other._protocol.resume_writing()
        if other._is_closing and not self._waiting and not self._is_closing:
            self.close()

    # Closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._lose, None)
            if self._other is not None:
                # The other end receives what is on its way, then closes as well.
                self._other._is_reading = True
                self._other._schedule()

    def abort(self) -> None:
        self._waiting.clear()
        self._size = 0
        self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._waiting.clear()
            self._size = 0
            self._protocol.connection_lost(error)


def connect_in_memory(
    client: asyncio.Protocol, server: asyncio.Protocol, *, client_address: str, server_address: str
) -> None:
    """Connect two protocols; each sees the address of the other as its peer."""
    loop = asyncio.get_running_loop()
    at_client = MemoryTransport(loop, client, remote=server_address, local=client_address)
    at_server = MemoryTransport(loop, server, remote=client_address, local=server_address)
    at_client.join(at_server)
    at_server.join(at_client)
    server.connection_made(at_server)
    client.connection_made(at_client)


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0
