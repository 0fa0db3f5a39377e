"""In-memory connections: transports that `asyncio.Protocol`s cannot tell from sockets.

A connection is two `Pipe`s, one a direction, and an `Endpoint` at either end:

    client Endpoint ──write──▶ Pipe (in flight, then waiting to be read) ──data_received──▶ server
    client          ◀───────── Pipe ◀──write── server Endpoint

How an end is lost follows TCP. `close` flushes, then sends an end-of-stream; bytes that reach an
end which is already closed are answered by a reset; `abort` resets at once; bytes that are not
acknowledged for `Network.give_up_seconds` end in ``ETIMEDOUT``.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.testing.virtual_time.pipes import END_OF_STREAM, SOCKET_BUFFER, Pipe

if TYPE_CHECKING:
    from penstock.testing.virtual_time.network import Connection, Network
    from penstock.testing.virtual_time.servers import VirtualServer


HIGH_LIMIT = 64 * 1024


class _PausingTransport(asyncio.Transport):
    """A transport that pauses a protocol which writes faster than the other side reads."""

    _protocol: asyncio.BaseProtocol

    def __init__(self, extra: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(extra)
        self._loop = loop
        self._is_writing_paused = False
        self._low, self._high = _limits(None, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._low, self._high = _limits(high, low)
        self._maybe_pause()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def _maybe_pause(self) -> None:
        if not self._is_writing_paused and self.get_write_buffer_size() > self._high:
            self._is_writing_paused = True
            self._tell(self._protocol.pause_writing)

    def _maybe_resume(self) -> None:
        if self._is_writing_paused and self.get_write_buffer_size() <= self._low:
            self._is_writing_paused = False
            self._tell(self._protocol.resume_writing)

    def _tell(self, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception as error:
            name = f"protocol.{method.__name__}()"
            self._loop.call_exception_handler({"message": f"{name} failed", "exception": error})


def _limits(high: int | None, low: int | None) -> tuple[int, int]:
    """Low and high limit of a write buffer, chosen as asyncio's own transports do."""
    if high is None:
        high = HIGH_LIMIT if low is None else 4 * low
    if low is None:
        low = high // 4
    if not high >= low >= 0:
        raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
    return low, high


class Endpoint(_PausingTransport):
    """One end of an in-memory connection, with the interface of a socket transport."""

    # Lets `loop.start_tls` put TLS on top, as on a real socket transport.
    _start_tls_compatible = True

    def __init__(
        self,
        connection: Connection,
        host: str,
        extra: dict[str, Any],
        context: contextvars.Context,
    ) -> None:
        super().__init__(extra, connection.network.loop)
        self.connection = connection
        self.host_name = host
        self.context = context
        self.incoming: Pipe
        self.outgoing: Pipe
        self.server: VirtualServer | None = None
        self.reading_paused: bool = False
        self.is_open: bool = False  # the protocol has its connection_made
        self.is_closed: bool = False  # the protocol has its connection_lost
        self.is_dead: bool = False  # the host crashed: none of its code runs any more
        self._is_closing = False
        self._eof_written = False
        self._ends_scheduled = False

    @property
    def network(self) -> Network:
        return self.connection.network

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the transport to its protocol; called in the endpoint's own context."""
        self._protocol = protocol
        self.is_open = True
        protocol.connection_made(self)
        self.incoming.wake()

    # -- what the network does to this end ------------------------------------------------------

    def deliver(self, chunk: bytes) -> None:
        if self._is_closing:
            return
        protocol: Any = self._protocol
        try:
            if isinstance(protocol, asyncio.BufferedProtocol):
                _fill(protocol, chunk)
            else:
                protocol.data_received(chunk)
        except Exception as error:
            self._fatal_error(error, "Fatal error: protocol.data_received() call failed.")

    def deliver_end(self) -> None:
        if self._is_closing:
            return
        protocol: Any = self._protocol
        try:
            keep_open = protocol.eof_received()
        except Exception as error:
            self._fatal_error(error, "Fatal error: protocol.eof_received() call failed.")
            return
        if not keep_open:
            self.close()

    def lose(self, error: BaseException | None) -> None:
        """End the connection here; the protocol learns of it in the next turn."""
        if self.is_closed or self.is_dead:
            return
        self._is_closing = True
        self._end_soon(error)

    def made_room(self) -> None:
        """The other side read something."""
        if self._is_writing_paused or self._is_closing:
            self._loop.call_soon(self._use_room, context=self.context)

    def _use_room(self) -> None:
        if self.is_closed or self.is_dead:
            return
        if self._is_writing_paused:
            self._maybe_resume()
        if self._is_closing and not self.get_write_buffer_size():
            self._end_soon(None)

    # -- ending -------------------------------------------------------------------------------

    def _end_soon(self, error: BaseException | None) -> None:
        if not self._ends_scheduled:
            self._ends_scheduled = True
            self._loop.call_soon(self._end, error, context=self.context)

    def _end(self, error: BaseException | None) -> None:
        if self.is_closed or self.is_dead:
            return
        self.is_closed = True
        if error is None and not self._eof_written:
            self._eof_written = True
            self.outgoing.push(END_OF_STREAM)
        if error is not None:
            self.outgoing.stop_watching()
        name = type(error).__name__ if error is not None else ""
        self.network.record("closed", self.connection.number, self.incoming.direction, name)
        try:
            if self.is_open:
                self._protocol.connection_lost(
                    error if error is None or isinstance(error, Exception) else None
                )
        finally:
            if self.server is not None:
                self.server.detach(self)
            self.connection.end_closed()

    def die(self) -> None:
        """The host crashed: no callback, no flush, no farewell."""
        self.is_dead = self._is_closing = True
        self.outgoing.stop_watching()
        if self.server is not None:
            self.server.detach(self)

    def _fatal_error(self, error: Exception, message: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": message,
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._force_close(error)

    def _force_close(self, error: BaseException | None) -> None:
        """Reset the connection; asyncio's TLS layer calls it by this name."""
        self.outgoing.push_reset()
        self.lose(error)

    # -- asyncio.Transport ----------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be a bytes-like object, not {type(data).__name__}")
        if not data or self._is_closing:
            return
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.outgoing.push(bytes(data))
        if self.outgoing.unread > SOCKET_BUFFER:
            self._maybe_pause()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._eof_written or self._is_closing:
            return
        self._eof_written = True
        self.outgoing.push(END_OF_STREAM)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.unread - SOCKET_BUFFER)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self.incoming.wake()
        if not self.get_write_buffer_size():
            self._end_soon(None)

    def abort(self) -> None:
        if self.is_closed or self._ends_scheduled:
            return
        self._is_closing = True
        self._eof_written = True
        self.outgoing.push_reset()
        self._end_soon(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused and not self._is_closing:
            self.reading_paused = False
            self.incoming.wake()

    def is_reading(self) -> bool:
        return not self.reading_paused and not self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "closing" if self._is_closing else "open"
        return (
            f"<Endpoint {self.get_extra_info('sockname')} -> "
            f"{self.get_extra_info('peername')} {state}>"
        )


def _fill(protocol: asyncio.BufferedProtocol, chunk: bytes) -> None:
    """Hand ``chunk`` to a protocol that owns its buffer, piece by piece."""
    rest = memoryview(chunk)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        size = min(len(buffer), len(rest))
        if not size:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]
