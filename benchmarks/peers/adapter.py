"""The common interface of all clients: start, submit, drain, consume, close.

The load is the same for all, in `worker`; only the calls of a client differ, one small module each
under `clients`. This module and its imports need only the standard library, because the peers'
clients are in a separate environment without Penstock.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

QUEUES: Final = 4
"""Queues or partitions of a topic, where the server has them."""
LINGER_SECONDS: Final = 0.002
"""How long a message may wait to share a request, in rows with a wide window."""
CONSUME_BATCH: Final = 500
"""Messages per request, where a client can set it."""

Take = Callable[[bytes], bool]
"""Receives each body that arrives, from any thread; returns whether that is enough."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a client."""

    addresses: dict[str, str]
    """By protocol, so that two clients of one server each find theirs."""
    topic: str
    group: str = "bench-readers"
    window: int = 1
    """The maximum number of unacknowledged messages; with one, each is awaited."""
    linger: float = 0.0


class Adapter(ABC):
    """One client, as a sender or as a receiver."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    async def start_sending(self) -> None:
        """Connect as a sender; create the topic if the server does not do so itself."""

    @abstractmethod
    async def submit(self, body: bytes) -> None:
        """Pass on one message; return when the window has space for another."""

    @abstractmethod
    async def drain(self) -> None:
        """Return when the server has acknowledged everything; raise if it refused a message."""

    @abstractmethod
    async def start_consuming(self) -> None:
        """Connect as a receiver of an existing topic, from its first message."""

    @abstractmethod
    async def consume(self, take: Take) -> None:
        """Pass on every body and acknowledge it to the server, until ``take`` returns true."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect and release everything."""

    async def send_many(self, bodies: Iterable[bytes]) -> int:
        """Send all bodies; return how many were acknowledged."""
        count = 0
        for body in bodies:
            await self.submit(body)
            count += 1
        await self.drain()
        return count


class Window:
    """Pending futures, up to a maximum number."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: deque[Any] = deque()

    async def add(self, future: asyncio.Future[Any]) -> None:
        """Add a future; wait for the oldest ones until there is space for another."""
        opened = self._open
        opened.append(future)
        while opened and (len(opened) >= self._size or opened[0].done()):
            await opened.popleft()

    async def drain(self) -> None:
        """Wait for all."""
        while self._open:
            await self._open.popleft()


class ThreadWindow:
    """The same for futures that other threads complete; waiting blocks."""

    def __init__(self, size: int, result: Callable[[Any], object]) -> None:
        self._size = size
        self._result = result
        self._open: deque[Any] = deque()

    def add(self, future: Any) -> None:
        """Add a future; wait for the oldest ones until there is space for another."""
        self._open.append(future)
        while len(self._open) >= self._size:
            self._result(self._open.popleft())

    def drain(self) -> None:
        """Wait for all."""
        while self._open:
            self._result(self._open.popleft())
