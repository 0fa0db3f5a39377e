"""Shows brokers that a stream of a group runs, so that the doctor sees it.

A stream is no member of its group (`stream_group` says why). It is registered as a producer of a
group with a name of its own instead, by heartbeats as every client sends them. They come from a
thread, because Spark asks a stream with a trigger of one hour nothing in between.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from penstock.client.cluster_access import ClusterAccess
from penstock.client.session.client_ids import client_id, local_ip, new_instance
from penstock.errors import PenstockError
from penstock.model.names import stream_group
from penstock.protocol.bodies.clients import HeartbeatData, ProducerData
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.spark.connection import CALL_SECONDS, Connection

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 30.0
"""As other clients; brokers forget a client after two minutes."""


class StreamPresence:
    """The heartbeats of one stream; ``group`` is the name that brokers use."""

    def __init__(self, access: ClusterAccess, group: str) -> None:
        self._access = access
        instance = f"spark-{new_instance(by_process=False)}"
        data = HeartbeatData(
            client_id(local_ip(access.namesrv), instance), (ProducerData(stream_group(group)),)
        )
        self._heartbeat = Command(RequestCode.HEART_BEAT, body=encode_body(data))
        self._addresses: frozenset[str] = frozenset()
        self._connections: dict[str, Connection] = {}
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def show(self, addresses: Iterable[str]) -> None:
        """Be seen by the brokers at these addresses from now on."""
        wanted = frozenset(addresses)
        if wanted == self._addresses:
            return
        self._addresses = wanted
        self._changed.set()
        if self._thread is None:
            # A daemon: Spark ends the process of a stream, and does not wait for threads.
            self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Close the connections; brokers then forget the stream at once."""
        self._is_closed = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(CALL_SECONDS)

    def _run(self) -> None:
        while not self._is_closed:
            self._changed.clear()
            for address in self._addresses:
                self._beat(address)
            for address in self._connections.keys() - self._addresses:
                self._connections.pop(address).close()
            self._changed.wait(HEARTBEAT_SECONDS)
        for connection in self._connections.values():
            connection.close()

    def _beat(self, address: str) -> None:
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = Connection(address, self._access)
            connection.send(self._heartbeat)
            connection.receive(time.monotonic() + CALL_SECONDS)
        except PenstockError as error:
            # The stream itself warns about brokers that are away.
            log.debug("no heartbeat address=%s error=%s", address, error)
            lost = self._connections.pop(address, None)
            if lost is not None:
                lost.close()
