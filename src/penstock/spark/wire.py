"""Blocking remoting connections, for Spark's worker processes.

A worker runs one task after the other and has no event loop, so a request here is: write it, read
until its answer is there. Connections outlive tasks (`Wire.shared`), since Spark keeps its workers.
A connection is used by one thread at a time; who needs one takes it from the idle ones and gives it
back after its last answer. One that failed, or on which an answer may still come, is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Self

import numpy as np

from penstock.client.calls import refusal
from penstock.client.naming import unwrap, wrap
from penstock.client.settings import credentials, nameservers
from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    NameserverUnavailable,
    PenstockError,
    ProtocolError,
    RequestTimeout,
    TopicNotFound,
)
from penstock.model import TopicRoute
from penstock.model.names import SYSTEM_TOPIC_PREFIX
from penstock.protocol.acl import sign
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import TopicList
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import BINARY, MAX_FRAME_BYTES, MAX_HEADER_BYTES, Frame
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.nameserver import GetRouteInfo
from penstock.remoting.addresses import parse_address
from penstock.remoting.tls import ClientTls

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
CALL_SECONDS = 5.0
WINDOW = 64
"""Requests that are under way at once in `Wire.call_many`."""
_IDLE_KEPT = 4
_HUGE = 4 * 1024 * 1024

_LENGTHS = Struct(">iI")


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach a cluster, and who asks; what is secret is never shown."""

    namesrv: tuple[str, ...]
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: ClientTls | None = field(default=None, repr=False)
    namespace: str | None = None

    @classmethod
    def of(
        cls,
        namesrv: str | None = None,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: ClientTls | bool | None = None,
        namespace: str | None = None,
    ) -> Self:
        """What was given, and the environment's word for the rest, as all clients do."""
        who = credentials(access_key, secret_key, security_token)
        if tls is None:
            tls = os.environ.get("PENSTOCK_TLS", "").lower() in ("1", "true", "yes", "on")
        return cls(
            namesrv=nameservers(namesrv),
            access_key=who.access_key if who else None,
            secret_key=who.secret_key if who else None,
            security_token=who.security_token if who else None,
            tls=tls if isinstance(tls, ClientTls) else ClientTls() if tls else None,
            namespace=namespace or os.environ.get("PENSTOCK_NAMESPACE") or None,
        )

    def long_name(self, name: str) -> str:
        """A topic or group as brokers know it."""
        return wrap(self.namespace, name)

    def short_name(self, name: str) -> str:
        """A topic or group as the user knows it."""
        return unwrap(self.namespace, name)


class Connection:
    """One connection: requests go out in order, answers are read as they come."""

    def __init__(self, address: str, access: Access) -> None:
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
        # A task may be abandoned with its connection at any point; that is no leak to warn of.
        if hasattr(self, "_socket"):
            self._socket.close()

    @property
    def is_dead(self) -> bool:
        """Whether the other side has closed, or said something that nobody waits for."""
        return bool(readable([self], 0))

    @property
    def has_unread(self) -> bool:
        """Whether bytes are here that the socket no longer shows: TLS takes whole records."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def send(self, command: Command, seconds: float = CALL_SECONDS) -> int:
        """Write a request, signed; return the number its answer will have."""
        self._next_id += 1
        who = self._access
        ext = command.ext
        if who.access_key and who.secret_key:
            proof = sign(ext, command.body, who.access_key, who.secret_key, who.security_token)
            ext = {**(ext or {}), **proof}
        request = Command(command.code, self._next_id, command.flag, ext, command.body)
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(encode_command(request))
        except TimeoutError as error:
            raise RequestTimeout(f"{self.address} took no request for {seconds} s") from error
        except OSError as error:
            raise self._lost(error) from error
        return self._next_id

    def receive(self, deadline: float) -> Command:
        """The next answer; its body is a view of bytes of its own."""
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
            # Brokers also send requests of their own, which concern consumers; not us.
            if command.is_response:
                command.body = body
                return command

    def _read(self, size: int, deadline: float) -> memoryview:
        # Not a bytearray, which would be filled with zeros first. Of a large size numpy asks for
        # huge pages, which saves the kernel a thousand page faults an answer.
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
            f"the connection to {self.address} ended: {error or 'closed by the other side'}"
        )


def readable(connections: Sequence[Connection], seconds: float) -> list[Connection]:
    """Those on which bytes have come, or the end; waits for the first."""
    # Not select(), which knows no file descriptor above 1023.
    poll = select.poll()
    by_number = {connection.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]


class Wire:
    """The connections of one process to one cluster."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._nameserver = 0

    @classmethod
    def shared(cls, access: Access) -> Wire:
        """The one of this process; after a fork a new one, since sockets cannot be shared."""
        key = (os.getpid(), access)
        with _shared_lock:
            wire = _shared.get(key)
            if wire is None:
                wire = _shared[key] = cls(access)
            return wire

    def close(self) -> None:
        """Close what is idle; the next call connects anew."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    @contextlib.contextmanager
    def connection(self, address: str) -> Iterator[Connection]:
        """A connection for the length of the block; every answer must have been read by its end."""
        connection = self._take(address)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < _IDLE_KEPT:
                idle.append(connection)
                return
        connection.close()

    def _take(self, address: str) -> Connection:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                return Connection(address, self.access)
            if not connection.is_dead:
                return connection
            connection.close()

    # ------------------------------------------------------------------------------ requests

    def exchange(self, address: str, command: Command, seconds: float = CALL_SECONDS) -> Command:
        """Send a request and return its answer, whatever its code."""
        return self.call_many(address, [command], seconds)[0]

    def call(
        self,
        address: str,
        code: int,
        header: DataclassInstance | None = None,
        body: bytes = b"",
        *,
        about: str,
        seconds: float = CALL_SECONDS,
    ) -> Command:
        """Send a request and return its answer; any code but success is an error."""
        command = Command(code, ext=encode_header(header) if header else None, body=body)
        answer = self.exchange(address, command, seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, address, about)
        return answer

    def call_many(
        self,
        address: str,
        commands: Sequence[Command],
        seconds: float = CALL_SECONDS,
        *,
        window: int = WINDOW,
    ) -> list[Command]:
        """Send requests on one connection, up to ``window`` of them at once; answers in order.

        A server that is going away is left for a new connection, once.
        """
        try:
            return self._call_many(address, commands, seconds, window)
        except _GoAway:
            return self._call_many(address, commands, seconds, window)

    def _call_many(
        self, address: str, commands: Sequence[Command], seconds: float, window: int
    ) -> list[Command]:
        answers: dict[int, Command] = {}
        numbers: list[int] = []
        with self.connection(address) as connection:
            while len(answers) < len(commands):
                while len(numbers) < len(commands) and len(numbers) - len(answers) < window:
                    numbers.append(connection.send(commands[len(numbers)], seconds))
                answer = connection.receive(time.monotonic() + seconds)
                if answer.code == ResponseCode.GO_AWAY:
                    raise _GoAway(f"{address} is going away")
                answers[answer.request_id] = answer
        return [answers[number] for number in numbers]

    # -------------------------------------------------------------------------- name servers

    def ask_nameservers(self, code: int, header: DataclassInstance | None, about: str) -> Command:
        """The answer of the first name server that gives one; a refusal counts as an answer."""
        failures: list[str] = []
        addresses = self.access.namesrv
        for _ in addresses:
            address = addresses[self._nameserver % len(addresses)]
            command = Command(code, ext=encode_header(header) if header else None)
            try:
                return self.exchange(address, command)
            except PenstockError as error:
                failures.append(str(error))
                self._nameserver += 1
        raise NameserverUnavailable(
            f"no answer about {about}: none of the name servers {', '.join(addresses)} "
            f"answered ({'; '.join(failures)})",
            hint="is a name server running there, and is the option namesrv right?",
        )

    def route(self, topic: str) -> TopicRoute:
        """Where the queues of a topic are; the topic's name is the user's."""
        header = GetRouteInfo(self.access.long_name(topic), accept_standard_json_only=True)
        code, about = RequestCode.GET_ROUTEINFO_BY_TOPIC, f"topic {topic!r}"
        answer = self.ask_nameservers(code, header, about)
        servers = ", ".join(self.access.namesrv)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(
                f"no route for topic {topic!r} at name servers {servers}",
                expected="an existing topic",
                hint=f"penstock topic create {topic}",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, servers, about)
        return decode_body(TopicRouteData, body_bytes(answer)).route()

    def topics(self) -> list[str]:
        """Every topic but the brokers' own, by the names brokers use."""
        listed = self._topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        system = self._topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        own = set(system.topic_list)
        if system.broker_addr:
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            answer = self.call(system.broker_addr, code, about="system topics")
            own.update(decode_body(TopicList, body_bytes(answer)).topic_list)
        return sorted(
            name
            for name in listed.topic_list
            if name not in own and not name.startswith(SYSTEM_TOPIC_PREFIX)
        )

    def _topic_list(self, code: int) -> TopicList:
        about = "all topics"
        answer = self.ask_nameservers(code, None, about)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, code, ", ".join(self.access.namesrv), about)
        return decode_body(TopicList, body_bytes(answer))


class _GoAway(ConnectionLost):
    """The server asked to be left."""


_shared: dict[tuple[int, Access], Wire] = {}
_shared_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _after_fork())


@atexit.register
def close_shared() -> None:
    """Close the connections of this process that are idle."""
    with _shared_lock:
        wires = list(_shared.values())
    for wire in wires:
        wire.close()


def _after_fork() -> None:
    # The parent's thread may have held the lock; the child's sockets are the parent's.
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


def body_bytes(answer: Command) -> bytes:
    """The body of a received answer."""
    body = answer.body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise ProtocolError(f"a received body of type {type(body).__name__}")
