"""The fast path of a blocking send: the calling thread makes the first attempt itself.

A send through the session's loop wakes that loop, and the answer wakes the sender. For a thread
that waits for each message, this takes longer than everything else together. So it uses a blocking
connection of its own. An attempt without a receipt is passed to the session with its answer:
retries, avoidance of brokers and errors are those of the plain path (`Send.go_on`).

Only the usual case is served here: the route is known, the session's own connection to the broker
is open, and the producer neither traces nor lingers.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.receipts import Receipt, SendStatus, receipt
from penstock.client.producing.sending import Attempt
from penstock.errors import RemotingError
from penstock.model import Message, MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.remoting.blocking_connection import BlockingConnection

MAX_LINES: Final = 4
"""Concurrent sends, and idle connections kept. With more threads the session is faster, because it
writes and reads for many of them at once: then all sends use it for `CROWD_SECONDS`."""
CROWD_SECONDS: Final = 1.0
FRESH_SECONDS: Final = 0.5
"""A connection idle for longer is checked before use: its broker may have closed it."""
IDLE_SECONDS: Final = 60.0
"""Idle connections are closed after so long, before brokers close them."""


def blocking_sends(core: ProducerCore) -> BlockingSends | None:
    """The blocking sends of a producer, if its settings allow them."""
    # An idle TLS connection may have unread protocol bytes, which look like its end.
    is_usual = (
        core.settings.linger == 0
        and core.tracer is None
        and core.session.settings.access.tls is None
    )
    return BlockingSends(core) if is_usual else None


class BlockingSends:
    """The blocking connections of one producer; `send` is called from any thread."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._changed = threading.Condition(threading.Lock())
        self._idle: deque[tuple[float, BlockingConnection]] = deque()
        self._used: set[BlockingConnection] = set()
        self._is_closed = False
        self._crowded_until = 0.0

    def send(
        self, message: Message, wish: MessageQueue | None, timeout: float | None
    ) -> Receipt | Attempt | None:
        """Make the first attempt; None: use the session."""
        core = self._core
        begun = core.clock.monotonic()
        if self._is_crowded(begun):
            return None
        if not core.is_in_use(message.topic):
            return None
        outgoing = make_outgoing(message, core.new_id(), core.settings)
        target = core.target(message, wish, begun)
        if target is None:
            return None
        queue, address = target
        if address is None or core.ready_peer(address) is None:
            return None
        seconds = core.settings.send_timeout if timeout is None else timeout
        born_ms = core.clock.time_ms()
        command = core.command(RequestCode.SEND_MESSAGE_V2, outgoing, born_ms, queue)
        answer: Command | RemotingError
        line = None
        try:
            line = self._take(address, begun, seconds)
            answer = line.exchange(command, seconds - (core.clock.monotonic() - begun))
        except BaseException as error:
            if line is not None:
                self._give_back(line, None)
            if not isinstance(error, RemotingError):
                raise
            answer = error
            now = core.clock.monotonic()
        else:
            now = core.clock.monotonic()
            self._give_back(line, now)
        if isinstance(answer, Command):
            stored = receipt(answer, outgoing.msg_id, queue)
            if stored is not None and stored.status is SendStatus.OK:
                if core.faults is not None:
                    core.faults.sent(queue.broker_name, now - begun, now)
                return stored
        return Attempt(outgoing, queue, born_ms, begun, seconds - (now - begun), answer)

    def retire(self) -> None:
        """Accept no more sends; running ones are not interrupted."""
        with self._changed:
            self._is_closed = True
            for _, line in self._idle:
                line.close()
            self._idle.clear()

    def close(self, seconds: float) -> None:
        """Wait so long for running sends, then interrupt them."""
        self.retire()
        with self._changed:
            self._changed.wait_for(lambda: not self._used, seconds)
            for line in self._used:
                line.interrupt()

    def _is_crowded(self, now: float) -> bool:
        if len(self._used) >= MAX_LINES:
            self._crowded_until = now + CROWD_SECONDS
        return self._is_closed or now < self._crowded_until

    def _take(self, address: str, now: float, seconds: float) -> BlockingConnection:
        with self._changed:
            for position, (since, line) in enumerate(self._idle):
                if line.address == address:
                    del self._idle[position]
                    # The check of the socket costs a good part of a send.
                    if now - since > FRESH_SECONDS and line.is_stale:
                        line.close()
                        break
                    self._used.add(line)
                    return line
        line = BlockingConnection(
            address, min(seconds, self._core.session.settings.connect_timeout)
        )
        with self._changed:
            self._used.add(line)
        return line

    def _give_back(self, line: BlockingConnection, now: float | None) -> None:
        """Keep a connection for the next send; without ``now`` it is closed."""
        with self._changed:
            self._used.discard(line)
            if self._is_closed or now is None:
                line.close()
                self._changed.notify_all()
                return
            self._idle.appendleft((now, line))
            while len(self._idle) > MAX_LINES or self._idle[-1][0] < now - IDLE_SECONDS:
                self._idle.pop()[1].close()
