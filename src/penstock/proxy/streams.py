"""Telemetry streams: commands of the server to a client, kept until the client takes them.

There is one writer for each stream, which takes commands one by one. A client that does not read
costs no more than a bounded number of them; the oldest are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from penstock.proxy.statuses import Refused
from penstock.proxy.wire.messages import TelemetryCommand

MAX_WAITING: Final = 256


class Stream:
    """One stream to a client."""

    def __init__(self) -> None:
        self._waiting: deque[TelemetryCommand] = deque(maxlen=MAX_WAITING)
        self._changed = asyncio.Event()
        self._is_ended = False
        self.failure: Refused | Exception | None = None
        """Why it ended, if that is an error of the call."""

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def send(self, command: TelemetryCommand) -> None:
        """Pass a command to the client; never waits."""
        if not self._is_ended:
            self._waiting.append(command)
            self._changed.set()

    def end(self, failure: Exception | None = None) -> None:
        """Let the stream end after the commands that wait."""
        if not self._is_ended:
            self._is_ended = True
            self.failure = failure
            self._changed.set()

    async def next(self) -> TelemetryCommand | None:
        """The next command; None at the end."""
        while not self._waiting:
            if self._is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()
