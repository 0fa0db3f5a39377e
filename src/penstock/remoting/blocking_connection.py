"""A blocking connection for one request at a time, used by the thread that asks.

A request over an event loop in another thread costs two more wake-ups: one to hand it over, one to
bring the answer back. Where the caller waits for each answer, they take most of the time. Spark's
workers use `spark.connection` instead, made for TLS, many requests in flight and large bodies.
"""

from __future__ import annotations

import select
import socket
import time
from struct import Struct
from typing import Final

from penstock.errors import ConnectFailed, ConnectionLost, ProtocolError, RequestTimeout
from penstock.protocol.codes import request_name
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.remoting.addresses import parse_address

CHUNK_BYTES: Final = 64 * 1024
_SPAN: Final = Struct("ll")
"""The kernel's ``struct timeval``: seconds and microseconds."""


class BlockingConnection:
    """One plain connection. It is closed after an error, since an answer may still be under way."""

    __slots__ = ("_frames", "_poll", "_request_id", "_seconds", "_socket", "address")

    def __init__(self, address: str, seconds: float) -> None:
        self.address = address
        self._request_id = 0
        self._seconds = 0.0
        self._frames = FrameDecoder()
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), seconds)
        except OSError as error:
            raise ConnectFailed(f"no connection to {address}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Python's timeouts add a poll() to every call; those of the kernel do not.
        self._socket.settimeout(None)
        # Not select(), which takes no file descriptor above 1023.
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    @property
    def is_stale(self) -> bool:
        """Whether the peer has closed the connection, or sent something unexpected."""
        return bool(self._poll.poll(0))

    def exchange(self, command: Command, seconds: float) -> Command:
        """Send a request under a new number and wait for its answer."""
        deadline = time.monotonic() + seconds
        self._request_id += 1
        command.request_id = self._request_id
        try:
            self._wait_at_most(seconds)
            self._socket.sendall(encode_command(command))
            while True:
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise ConnectionLost(f"{self.address} closed the connection")
                for frame in self._frames.cut(chunk):
                    answer = decode_command(frame)
                    # Requests of the broker are served by the session, over its own connection.
                    if answer.is_response and answer.request_id == self._request_id:
                        return answer
                self._wait_at_most(deadline - time.monotonic())
        except (TimeoutError, BlockingIOError):
            self.close()
            raise RequestTimeout(
                f"no answer to {request_name(command.code)} from {self.address} "
                f"within {seconds:.3g} s"
            ) from None
        except (OSError, ProtocolError) as error:
            self.close()
            raise ConnectionLost(f"the connection to {self.address} ended: {error}") from error
        except BaseException:
            self.close()
            raise

    def _wait_at_most(self, seconds: float) -> None:
        """Bound each further call; set in the kernel only if the time changes much."""
        if seconds <= 0:
            raise TimeoutError
        # Most requests have the same timeout, less the time already spent.
        if not seconds <= self._seconds <= seconds * 1.01:
            self._seconds = seconds
            span = _SPAN.pack(int(seconds), int(seconds % 1 * 1_000_000) or 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def interrupt(self) -> None:
        """End the wait of the thread that uses the connection; called from another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It was closed already.

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()
