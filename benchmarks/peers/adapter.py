"""What every client looks like to the load: start, submit, drain, consume, close.

The load is the same for all, in `worker`: only how a client is called differs, one small module
each under `clients`. This module and those it imports need nothing but the standard library, for
the peers' clients live in an environment of their own, without Penstock.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

QUEUES: Final = 4
"""Queues or partitions of a topic, where a server has such."""
LINGER_SECONDS: Final = 0.002
"""How long a message may wait for others to share its request, in rows with a wide window."""
CONSUME_BATCH: Final = 500
"""Messages asked for at a time, where a client is told."""

Take = Callable[[bytes], bool]
"""Gets each body that arrives, from any thread; says whether that is enough."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a client is told."""

    addresses: dict[str, str]
    """By protocol, so that two clients of one server find theirs."""
    topic: str
    group: str = "bench-readers"
    window: int = 1
    """Messages that may be unacknowledged; with one, each is waited for."""
    linger: float = 0.0


class Adapter(ABC):
    """One client, as a sender or as a receiver."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    async def start_sending(self) -> None:
        """Connect as a sender; make the topic where the server does not do so by itself."""

    @abstractmethod
    async def submit(self, body: bytes) -> None:
        """Hand over one message; return when there is room in the window for another."""

    @abstractmethod
    async def drain(self) -> None:
        """Return when the server has acknowledged everything; raise if it refused anything."""

    @abstractmethod
    async def start_consuming(self) -> None:
        """Connect as a receiver of a topic that exists, from its first message on."""

    @abstractmethod
    async def consume(self, take: Take) -> None:
        """Hand over every body, acknowledging them to the server, until one was enough."""

    @abstractmethod
    async def close(self) -> None:
        """Leave, and release everything."""

    async def send_many(self, bodies: Iterable[bytes]) -> int:
        """Send all of them; return how many were acknowledged."""
        count = 0
        for body in bodies:
            await self.submit(body)
            count += 1
        await self.drain()
        return count


class Window:
    """Futures that are not done yet, never more than so many."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: deque[Any] = deque()

    async def add(self, future: asyncio.Future[Any]) -> None:
        """Keep it; wait for the oldest ones until there is room for another."""
        opened = self._open
        opened.append(future)
        while opened and (len(opened) >= self._size or opened[0].done()):
            await opened.popleft()

    async def drain(self) -> None:
        """Wait for all."""
        while self._open:
            await self._open.popleft()


class ThreadWindow:
    """The same for futures that other threads fulfil; waiting blocks."""

    def __init__(self, size: int, result: Callable[[Any], object]) -> None:
        self._size = size
        self._result = result
        self._open: deque[Any] = deque()

    def add(self, future: Any) -> None:
        """Keep it; wait for the oldest ones until there is room for another."""
        self._open.append(future)
        while len(self._open) >= self._size:
            self._result(self._open.popleft())

    def drain(self) -> None:
        """Wait for all."""
        while self._open:
            self._result(self._open.popleft())
