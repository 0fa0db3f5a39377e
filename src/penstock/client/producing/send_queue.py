"""Sends from other threads to a session's loop, in bursts; `inbox` is the way back.

A wake-up of the other thread is paid for once a burst: the first item of a burst makes it, the
others are found there when it arrives. The mark falls before the queue is emptied, so an item is
either taken by the wake-up under way or makes a new one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.sending import SendDone, unforeseen
from penstock.client.session.loop_thread import Host
from penstock.model import Message, MessageQueue

_Waiting: TypeAlias = tuple[Message, SendDone, MessageQueue | None, float | None, bool]
"""Message, what takes its result, queue, timeout, whether refusals are retried."""


BURST: Final = 512
"""Messages taken in one turn of the session's loop. What they make leaves when the turn ends, so
that a broker is at work on it while the next ones are taken."""


class Outbox:
    """Messages on their way to the producer; `put` is called from any thread."""

    __slots__ = ("_core", "_host", "_is_due", "_waiting")

    def __init__(self, core: ProducerCore, host: Host) -> None:
        self._core = core
        self._host = host
        self._waiting: deque[_Waiting] = deque()
        self._is_due = False

    def put(
        self,
        message: Message,
        done: SendDone,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        retry_refusals: bool = True,
    ) -> None:
        """Send a message; ``done`` is called on the session's loop."""
        item = (message, done, queue, timeout, retry_refusals)
        self._waiting.append(item)
        if not self._is_due:
            self._is_due = True
            try:
                self._host.call_soon(self._drain)
            except BaseException:
                # Nobody is on the way: the next one must not rely on it.
                self._is_due = False
                self._waiting.remove(item)
                raise

    def _drain(self) -> None:
        self._is_due = False
        waiting, send, lanes = self._waiting, self._core.send, self._core.lanes
        for _ in range(min(BURST, len(waiting))):
            message, done, queue, timeout, retry_refusals = waiting.popleft()
            try:
                if (
                    lanes is not None
                    and queue is None
                    and timeout is None
                    and lanes.take(message, done)
                ):
                    continue
                send(message, done, queue=queue, timeout=timeout, retry_refusals=retry_refusals)
            except Exception as error:
                # A message may hold what a user made, and that may raise anything when looked at.
                done(unforeseen(error, "a message"))
        if waiting and not self._is_due:
            self._is_due = True
            self._host.loop.call_soon(self._drain)
