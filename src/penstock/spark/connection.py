"""One blocking connection to a name server or broker: requests out, answers in."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from struct import Struct

import numpy as np

from penstock.client.cluster_access import ClusterAccess
from penstock.errors import ConnectFailed, ConnectionLost, ProtocolError, RequestTimeout
from penstock.protocol.acl import sign
from penstock.protocol.commands import (
    Buffer,
    Command,
    body_size,
    decode_command,
    encode_command,
    encode_head,
)
from penstock.protocol.frames import BINARY, MAX_FRAME_BYTES, MAX_HEADER_BYTES, Frame
from penstock.remoting.addresses import parse_address

CONNECT_SECONDS = 3.0
CALL_SECONDS = 5.0
_HUGE = 4 * 1024 * 1024
_LENGTHS = Struct(">iI")


class Connection:
    """One connection: requests are written in order, answers read as they arrive."""

    def __init__(self, address: str, access: ClusterAccess) -> None:
        self.address = address
        self._access = access
        self._next_id = 0
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        host, port = parse_address(self.address)
        try:
            plain = socket.create_connection((host, port), CONNECT_SECONDS)
        except OSError as error:
            raise ConnectFailed(
                f"no connection to {self.address}: {error}",
                hint="is a broker or name server running there, and is the address reachable "
                "from this machine?",
            ) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._access.tls is None:
                return plain
            return self._access.tls.context().wrap_socket(plain, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise ConnectFailed(
                f"no TLS connection to {self.address}: {error}",
                hint="does the server speak TLS, and is its certificate trusted?",
            ) from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # A task may be cancelled at any point, and its connection with it: no leak to warn of.
        if hasattr(self, "_socket"):
            self._socket.close()

    @property
    def is_stale(self) -> bool:
        """Whether the peer has closed the connection, or sent something unexpected."""
        return bool(readable([self], 0))

    @property
    def has_unread(self) -> bool:
        """Whether TLS has decrypted bytes that polling the socket would not show."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def send(self, command: Command, seconds: float = CALL_SECONDS) -> int:
        """Sign and write a request; return the id that its answer will have."""
        self._next_id += 1
        who = self._access.credentials
        ext = command.ext
        if who is not None:
            proof = sign(ext, command.body, who.access_key, who.secret_key, who.security_token)
            ext = {**(ext or {}), **proof}
        request = Command(command.code, self._next_id, command.flag, ext, command.body)
        try:
            self._socket.settimeout(seconds)
            self._write(request)
        except TimeoutError as error:
            raise RequestTimeout(f"{self.address} took no request within {seconds} s") from error
        except OSError as error:
            raise self._lost(error) from error
        return self._next_id

    def _write(self, request: Command) -> None:
        body = request.body
        if isinstance(body, bytes | bytearray) or isinstance(self._socket, ssl.SSLSocket):
            self._socket.sendall(encode_command(request))
            return
        # Bodies of batches, a megabyte each, are written without a copy.
        rest = [body] if isinstance(body, memoryview) else body
        parts: list[Buffer] = [encode_head(request, body_size(body)), *rest]
        sent = self._socket.sendmsg(parts)
        for part in parts:
            left = memoryview(part)[sent:]
            sent = max(0, sent - len(part))
            if left:
                self._socket.sendall(left)

    def receive(self, deadline: float) -> Command:
        """The next answer; its body is a view of its own buffer."""
        while True:
            lengths = self._read(_LENGTHS.size, deadline)
            length, mark = _LENGTHS.unpack(lengths)
            header_size = mark & MAX_HEADER_BYTES
            body_size = length - 4 - header_size
            if body_size < 0 or length > MAX_FRAME_BYTES - 4 or mark >> 24 > BINARY:
                raise ProtocolError(
                    f"{self.address} sent a frame of {length} bytes with a header of {header_size}",
                    expected=f"at most {MAX_FRAME_BYTES} bytes",
                    hint="is this a RocketMQ name server or broker?",
                )
            header = bytes(self._read(header_size, deadline))
            body = self._read(body_size, deadline)
            command = decode_command(Frame(mark >> 24, header, b""))
            # Brokers also send requests, to consumers; they are ignored here.
            if command.is_response:
                command.body = body
                return command

    def _read(self, size: int, deadline: float) -> memoryview:
        # Not a bytearray, which would be zeroed first. For a large size numpy asks for huge pages,
        # which saves a thousand page faults an answer.
        room = max(size, _HUGE) if size > _HUGE // 4 else size
        view = np.empty(room, np.uint8).data[:size]
        done = 0
        try:
            while done < size:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                count = self._socket.recv_into(view[done:])
                if not count:
                    raise self._lost(None)
                done += count
        except TimeoutError as error:
            raise RequestTimeout(f"no answer from {self.address} in time") from error
        except OSError as error:
            raise self._lost(error) from error
        return view

    def _lost(self, error: OSError | None) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.address} ended: {error or 'closed by the peer'}"
        )


def readable(connections: Sequence[Connection], seconds: float) -> list[Connection]:
    """Those with bytes to read, or closed by the peer; waits for the first."""
    # Not select(), which takes no file descriptor above 1023.
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]
