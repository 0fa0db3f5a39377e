"""The write batch at the end of a loop turn: one log write, then one write per connection.

Output of a connection is gathered during a loop turn, not sent. The first output schedules the end
of the turn, which calls ``before_write`` (where the store of a broker writes all records of the
turn with one ``writev``) and then lets every connection send its output. So an answer never leaves
before the record it acknowledges is in the page cache, and the log and each socket get one system
call per turn, for any number of requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.errors import PenstockError

log = logging.getLogger(__name__)


class Gathered(Protocol):
    """Output of one connection that waits for the end of the turn."""

    def flush(self) -> None:
        """Send it, in one write."""

    def withhold(self, reason: str) -> None:
        """Drop it and end the connection, whose answers are now incomplete."""


class WriteBatch:
    """The output of all connections of one server or pool in the current loop turn."""

    __slots__ = ("_before_write", "_gathered", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, before_write: Callable[[], None] | None = None
    ) -> None:
        self._loop = loop
        self._before_write = before_write
        self._gathered: list[Gathered] = []

    def add(self, gathered: Gathered) -> None:
        """Flush ``gathered`` when this turn ends; called once per flush."""
        if not self._gathered:
            self._loop.call_soon(self.end)
        self._gathered.append(gathered)

    def end(self) -> None:
        """Send what was gathered so far, if anything."""
        if not self._gathered:
            return
        if self._before_write is not None:
            try:
                self._before_write()
            except Exception as error:
                # The answers may acknowledge records that were not written. A client without an
                # answer sends again; a client with a wrong answer loses a message.
                gathered, self._gathered = self._gathered, []
                # An expected error, such as a full disk, needs no traceback.
                log.error(
                    "answers withheld, the write before them failed peers=%d error=%s",
                    len(gathered),
                    error,
                    exc_info=not isinstance(error, PenstockError),
                )
                for output in gathered:
                    output.withhold("the server could not complete what it was about to answer")
                return
        # Includes output that ``before_write`` caused: a message arrived for a held pull.
        gathered, self._gathered = self._gathered, []
        for output in gathered:
            try:
                output.flush()
            except Exception:
                # A failure of one connection must not affect the answers of the others.
                log.exception("output cannot be written")
                output.withhold("its output could not be written")
