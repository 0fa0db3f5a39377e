"""Waits for messages with one held pull at the end of each queue.

A broker answers a held pull when a message arrives, so an idle stream costs a request a queue every
15 seconds, and sees a message as soon as a consumer would. The message in the answer is not used:
the tasks fetch it again with the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.spark.connection import Connection, readable
from penstock.spark.source.cluster import Cluster

log = logging.getLogger(__name__)

HOLD_MS: Final = 15_000
REFUSED_SECONDS: Final = 5.0
"""The pause after a refused pull; the stream finds the end of the queue anyway."""
ANSWER_SECONDS: Final = 5.0
"""How long the rest of an answer may take after its first bytes."""


class LongPoll:
    """The held pulls of one stream; they stay in flight between two waits."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: dict[str, Connection] = {}
        self._held: dict[tuple[str, int], tuple[MessageQueue, int]] = {}
        self._refused: dict[MessageQueue, float] = {}

    def close(self) -> None:
        """Close the connections; the brokers drop the held pulls."""
        for address in list(self._connections):
            self._drop(address)

    def wait(self, ends: Mapping[MessageQueue, int], seconds: float) -> bool:
        """Wait until a message arrives in one of the queues; False after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            self._watch(ends)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            connections = list(self._connections.values())
            if not connections:
                # No broker can be reached: wait a little, and let the caller look again.
                time.sleep(min(left, 0.1))
                return False
            ready = [connection for connection in connections if connection.has_unread]
            if not ready:
                ready = readable(connections, left)
            arrived = [self._answered(connection, ends) for connection in ready]
            if any(arrived):
                return True

    def _watch(self, ends: Mapping[MessageQueue, int]) -> None:
        """Keep a pull in flight for every queue."""
        watched = {queue for queue, _ in self._held.values()}
        now = time.monotonic()
        for queue, end in ends.items():
            if queue in watched or now < self._refused.get(queue, 0.0):
                continue
            address = ""
            try:
                address = self._cluster.address(queue)
                connection = self._connections.get(address)
                if connection is None:
                    connection = Connection(address, self._cluster.access)
                    self._connections[address] = connection
                pull = self._cluster.pull(queue, end, count=1, hold_ms=HOLD_MS)
                self._held[address, connection.send(pull)] = (queue, end)
            except PenstockError as error:
                log.debug("queue not watched queue=%s error=%s", queue, error)
                self._refused[queue] = now + REFUSED_SECONDS
                self._drop(address)

    def _answered(self, connection: Connection, ends: Mapping[MessageQueue, int]) -> bool:
        """Read one answer; whether it shows a new message."""
        address = connection.address
        try:
            answer = connection.receive(time.monotonic() + ANSWER_SECONDS)
        except PenstockError:
            self._drop(address)
            return True
        queue, offset = self._held.pop((address, answer.request_id), (None, 0))
        if answer.code == ResponseCode.GO_AWAY:
            self._drop(address)
            return True
        if queue is None or answer.code == ResponseCode.PULL_NOT_FOUND:
            return False
        if answer.code != ResponseCode.SUCCESS:
            # A queue that became shorter, or may not be read: the broker holds no pull.
            self._refused[queue] = time.monotonic() + REFUSED_SECONDS
            return False
        # A pull from before the last batch shows nothing new.
        return queue not in ends or offset >= ends[queue]

    def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
        for key in [key for key in self._held if key[0] == address]:
            del self._held[key]
