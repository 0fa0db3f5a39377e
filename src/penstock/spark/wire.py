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
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.client.cluster_access import ClusterAccess
from penstock.client.requests import body_bytes, refusal
from penstock.errors import (
    ConnectionLost,
    NameserverUnavailable,
    PenstockError,
    TopicNotFound,
)
from penstock.model import TopicRoute
from penstock.model.names import SYSTEM_TOPIC_PREFIX
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import TopicList
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.nameserver import GetRouteInfo
from penstock.spark.connections import CALL_SECONDS, Connection

if TYPE_CHECKING:
    from penstock.protocol.headers.codec import Header

log = logging.getLogger(__name__)

WINDOW = 64
"""Requests that are under way at once in `Wire.call_many`."""
_IDLE_KEPT = 4


class Wire:
    """The connections of one process to one cluster."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._nameserver = 0

    @classmethod
    def shared(cls, access: ClusterAccess) -> Wire:
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
        header: Header | None = None,
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

    def ask_nameservers(self, code: int, header: Header | None, about: str) -> Command:
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


_shared: dict[tuple[int, ClusterAccess], Wire] = {}
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
