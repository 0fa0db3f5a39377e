"""Telemetry streams: commands of the server to a client, kept until the client takes them.

There is one writer for each stream, which takes commands one by one. A client that does not read
costs no more than a bounded number of them, and of bytes; the oldest are dropped. Of settings only
the newest are of use.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.proxy.statuses import Refused
from penstock.proxy.wire.messages import TelemetryCommand

if TYPE_CHECKING:
    from penstock.proxy.clients import Client

MAX_WAITING: Final = 256
MAX_WAITING_BYTES: Final = 16 << 20
_SETTINGS: Final = "settings"


class Stream:
    """One stream to a client."""

    def __init__(self) -> None:
        self._waiting: deque[TelemetryCommand] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._is_ended = False
        self.client: Client | None = None
        """The client that has sent settings on it."""
        self.settings: TelemetryCommand | None = None
        """The newest ones, if they are to be sent once more."""
        self.failure: Refused | Exception | None = None
        """Why it ended, if that is an error of the call."""

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def send(self, command: TelemetryCommand) -> None:
        """Pass a command to the client; never waits."""
        if self._is_ended:
            return
        if command.HasField(_SETTINGS):
            for old in [one for one in self._waiting if one.HasField(_SETTINGS)]:
                self._waiting.remove(old)
                self._bytes -= old.ByteSize()
        self._waiting.append(command)
        self._bytes += command.ByteSize()
        while len(self._waiting) > 1 and (
            len(self._waiting) > MAX_WAITING or self._bytes > MAX_WAITING_BYTES
        ):
            self._take()
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
        return self._take()

    def _take(self) -> TelemetryCommand:
        command = self._waiting.popleft()
        self._bytes -= command.ByteSize()
        return command
