"""The end of a loop turn: first what must precede any answer, then one write per connection.

Whatever is said on a connection during a loop turn is gathered, not sent. The first one to say
something schedules the end of the turn; that calls ``before_write`` (a broker's store writes there
everything the turn appended, in one ``writev``) and then lets every connection send what it
gathered. So an answer never leaves before what it acknowledges is in the page cache, and both the
log and each socket see one system call a turn, however many requests the turn served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.errors import PenstockError

log = logging.getLogger(__name__)


class Gathered(Protocol):
    """Output that waits for the end of the turn."""

    def flush(self) -> None:
        """Send it, in one write."""

    def withhold(self, reason: str) -> None:
        """Never send it; the connection cannot go on without it."""


class WriteBatch:
    """Ends the loop turns of all connections of one server or pool."""

    __slots__ = ("_before_write", "_gathered", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, before_write: Callable[[], None] | None = None
    ) -> None:
        self._loop = loop
        self._before_write = before_write
        self._gathered: list[Gathered] = []

    def add(self, gathered: Gathered) -> None:
        """Let ``gathered`` go out when this turn ends; to be called once per flush."""
        if not self._gathered:
            self._loop.call_soon(self.end)
        self._gathered.append(gathered)

    def end(self) -> None:
        """Send what was gathered so far; harmless when nothing was."""
        if not self._gathered:
            return
        if self._before_write is not None:
            try:
                self._before_write()
            except Exception as error:
                # The answers may acknowledge what is not there. Whoever does not get one asks
                # again; whoever gets a wrong one loses a message.
                gathered, self._gathered = self._gathered, []
                # What has a name, as a disk that is full has, needs no traceback.
                log.error(
                    "answers withheld, what must precede them failed peers=%d error=%s",
                    len(gathered),
                    error,
                    exc_info=not isinstance(error, PenstockError),
                )
                for output in gathered:
                    output.withhold("the server could not complete what it was about to answer")
                return
        # What was said because of what was just completed (a message arrived, and somebody waited
        # for it) leaves as well.
        gathered, self._gathered = self._gathered, []
        for output in gathered:
            try:
                output.flush()
            except Exception:
                # One connection's trouble must not keep the others from their answers.
                log.exception("output cannot be written")
                output.withhold("its output could not be written")
