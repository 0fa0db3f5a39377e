"""Blocking requests for Spark's driver and worker processes, over connections that are reused.

A worker runs one task after the other and has no event loop, so a request here is: write it, read
until its answer has come. Connections outlive tasks (`ConnectionPool.shared`), since Spark keeps
its workers. A connection is used by one thread at a time: it is taken from the idle ones and
returned after its last answer. One that failed, or on which an answer may still come, is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.client import requests
from penstock.client.cluster_access import ClusterAccess
from penstock.client.requests import Request, body_bytes
from penstock.errors import ConnectionLost, NameserverUnavailable, PenstockError, TopicNotFound
from penstock.model import TopicRoute
from penstock.model.names import SYSTEM_TOPIC_PREFIX
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import TopicList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.spark.connection import CALL_SECONDS, Connection

_T = TypeVar("_T")

WINDOW = 64
"""Requests in flight at once in `ConnectionPool.call_many`."""
_IDLE_KEPT = 4


class ConnectionPool:
    """The connections of one process to one cluster."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._nameserver = 0

    @classmethod
    def shared(cls, access: ClusterAccess) -> ConnectionPool:
        """The pool of this process; after a fork a new one, since sockets cannot be shared."""
        key = (os.getpid(), access)
        with _shared_lock:
            pool = _shared.get(key)
            if pool is None:
                pool = _shared[key] = cls(access)
            return pool

    def close(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    @contextlib.contextmanager
    def connection(self, address: str) -> Iterator[Connection]:
        """A connection for the block; every answer must have been read by its end."""
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
            if not connection.is_stale:
                return connection
            connection.close()

    # ------------------------------------------------------------------------------ requests

    def exchange(self, address: str, command: Command, seconds: float = CALL_SECONDS) -> Command:
        """Send a request and return its answer, with any code."""
        return self.call_many(address, [command], seconds)[0]

    def ask(self, address: str, request: Request[_T]) -> _T:
        """Send a request and return its result."""
        answer = self.exchange(address, request.command(), request.seconds or CALL_SECONDS)
        return request.result(answer, address)

    def call_many(
        self,
        address: str,
        commands: Sequence[Command],
        seconds: float = CALL_SECONDS,
        *,
        window: int = WINDOW,
    ) -> list[Command]:
        """Send requests on one connection, up to ``window`` at once; return answers in order.

        If the server is going away, they are sent again on a new connection, once.
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

    def ask_nameservers(self, request: Request[_T]) -> _T:
        """The result from the first name server that answers; a refusal is an answer, too."""
        failures: list[str] = []
        addresses = self.access.namesrv
        for _ in addresses:
            address = addresses[self._nameserver % len(addresses)]
            try:
                answer = self.exchange(address, request.command())
            except PenstockError as error:
                failures.append(str(error))
                self._nameserver += 1
            else:
                return request.result(answer, address)
        raise NameserverUnavailable(
            f"no answer about {request.about}: none of the name servers {', '.join(addresses)} "
            f"answered ({'; '.join(failures)})",
            hint="is a name server running there, and is the option namesrv right?",
        )

    def route(self, topic: str) -> TopicRoute:
        """The route of a topic, by the user's name of the topic."""
        route = self.ask_nameservers(requests.route(self.access.long_name(topic)))
        if route is None:
            raise TopicNotFound(
                f"no route for topic {topic!r} at name servers {', '.join(self.access.namesrv)}",
                expected="an existing topic",
                hint=f"penstock topic create {topic}",
            )
        return route

    def topics(self) -> list[str]:
        """Every topic but the brokers' own, by the names that brokers use."""
        listed = self.ask_nameservers(
            _topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "all topics")
        )
        about = "system topics"
        system = self.ask_nameservers(_topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, about))
        own = set(system.topic_list)
        if system.broker_addr:
            request = _topic_list(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, about)
            own.update(self.ask(system.broker_addr, request).topic_list)
        return sorted(
            name
            for name in listed.topic_list
            if name not in own and not name.startswith(SYSTEM_TOPIC_PREFIX)
        )


def _topic_list(code: int, about: str) -> Request[TopicList]:
    return Request(
        code=code, about=about, read=lambda answer: decode_body(TopicList, body_bytes(answer))
    )


class RouteCache:
    """Routes by topic, asked for when they are missing or too old."""

    def __init__(self, pool: ConnectionPool, max_age: float = math.inf) -> None:
        self._pool = pool
        self._max_age = max_age
        self._routes: dict[str, tuple[float, TopicRoute]] = {}

    def route(self, topic: str) -> TopicRoute:
        known = self._routes.get(topic)
        now = time.monotonic()
        if known is not None and now - known[0] < self._max_age:
            return known[1]
        route = self._pool.route(topic)
        self._routes[topic] = (now, route)
        return route

    def forget(self, topic: str | None = None) -> None:
        """Ask for the route of a topic again before it is used; without a topic, for all."""
        if topic is None:
            self._routes.clear()
        else:
            self._routes.pop(topic, None)


class _GoAway(ConnectionLost):
    """The server is about to stop, and asks its clients to connect again."""


_shared: dict[tuple[int, ClusterAccess], ConnectionPool] = {}
_shared_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _after_fork())


@atexit.register
def close_shared() -> None:
    """Close the idle connections of this process."""
    with _shared_lock:
        pools = list(_shared.values())
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    # A thread of the parent may have held the lock; the child's sockets are the parent's.
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()
