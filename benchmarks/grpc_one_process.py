"""Servers for the gRPC rows that are a single process: `KIND DIRECTORY`.

    inside   a broker with the gRPC endpoint in its own process and loop, as ``embedded(grpc=True)``
    canned   the same, but sends, acknowledgements and polls are answered with prepared bytes, and
             nothing is stored: what a client could reach on a server that takes no time. Polls
             deliver as many messages as were sent, copies of the last one

It prints a line with its addresses and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from pathlib import Path
from typing import Any, Final

from penstock.model import MessageQueue, StoredMessage
from penstock.proxy.calls import Caller
from penstock.proxy.endpoint import Endpoint
from penstock.proxy.grpc_servers import local_server
from penstock.proxy.handlers.receiving import Received
from penstock.proxy.quick_calls import Answer
from penstock.proxy.quick_deliveries import delivery_response
from penstock.proxy.statuses import OK
from penstock.proxy.wire.messages import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageRequest,
)
from penstock.proxy.wire.quick_responses import ack_response, send_response
from penstock.remoting.loop import run
from penstock.runtime.clock import SystemClock
from penstock.testing.hosts.cluster import EmbeddedCluster

_OK: Final = OK.SerializeToString()
_BATCH: Final = 32


class Canned:
    """Answers without a broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._left = 0
        self._is_filled = asyncio.Event()
        self._batch: list[bytes] = []
        self._last = b""
        self._ack = ack_response(_OK, "0" * 34, "0" * 100)
        self._sent = send_response(_OK, "0" * 34, 1, "")
        self._ids = itertools.count()

    def send(self, client_id: str, data: bytes, answer: Answer) -> bool:
        self._left += 1
        self._is_filled.set()
        self._last = data
        self._batch = []
        answer(self._sent)
        return True

    def acknowledge(self, client_id: str, data: bytes, answer: Answer) -> bool:
        answer(self._ack)
        return True

    async def receive(self, request: ReceiveMessageRequest, caller: Caller) -> Received:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.long_polling_timeout.seconds):
                await self._is_filled.wait()
        taken = min(self._left, _BATCH, request.batch_size)
        self._left -= taken
        if not self._left:
            self._is_filled.clear()
        if not self._batch:
            self._batch = self._copies(request.message_queue.topic.name)
        return Received([self._batch[0], *self._batch[1 : taken + 1]])

    def _copies(self, topic: str) -> list[bytes]:
        body = b""
        if self._last:
            (message,) = SendMessageRequest.FromString(self._last).messages
            body = message.body
        status = ReceiveMessageResponse(status=OK).SerializeToString()
        now = round(time.time() * 1000)
        made = [status]
        for index in range(_BATCH):
            number = next(self._ids)
            handle = f"{number} {now} 60000 0 0 broker-a 0 {number} {index}"
            stored = _stored(topic, body, f"01{number:032X}", now)
            made.append(delivery_response(stored, topic, handle))
        return made


def _stored(topic: str, body: bytes, message_id: str, now: int) -> StoredMessage:
    return StoredMessage(
        topic,
        body,
        {"UNIQ_KEY": message_id},
        MessageQueue(topic, "broker-a", 0),
        0,
        born_timestamp=now,
        store_timestamp=now,
        born_host="127.0.0.1:1",
        store_host="127.0.0.1:1",
    )


async def serve(kind: str, directory: Path) -> None:
    clock = SystemClock()
    async with EmbeddedCluster(directory, brokers=1, clock=clock, is_temporary=False) as cluster:
        (broker,) = cluster.brokers.values()
        server = local_server(broker, clock, host="127.0.0.1", port=0)
        if kind == "canned":
            canned = Canned(server.endpoint)
            server.endpoint.quick.by_name["SendMessage"] = canned.send
            server.endpoint.quick.by_name["AckMessage"] = canned.acknowledge
            endpoint: Any = server.endpoint
            endpoint.receive = canned.receive
        async with server:
            print(
                f"ready namesrv={cluster.nameserver_address} broker={broker.address} "
                f"grpc=127.0.0.1:{server.port} data={directory}",
                flush=True,
            )
            await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    run(serve(sys.argv[1], Path(sys.argv[2])))
