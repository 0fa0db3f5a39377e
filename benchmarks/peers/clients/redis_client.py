"""redis-py, on streams with a consumer group."""

from __future__ import annotations

from typing import Any

import redis  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take

PIPELINE = 100
"""Commands per request, where messages may share one."""


class Client(Adapter):
    """`XADD`, in pipelines where batching is allowed; `XREADGROUP` and `XACK`."""

    _redis: Any = None

    async def start_sending(self) -> None:
        self._connect()
        self._pipeline = self._redis.pipeline(transaction=False)
        self._size = min(self.setup.window, PIPELINE) if self.setup.linger else 1

    def _connect(self) -> None:
        self._redis = redis.Redis.from_url(self.setup.addresses["redis"])

    async def submit(self, body: bytes) -> None:
        self._pipeline.xadd(self.setup.topic, {b"b": body})
        if len(self._pipeline) >= self._size:
            self._pipeline.execute()

    async def drain(self) -> None:
        self._pipeline.execute()

    async def start_consuming(self) -> None:
        self._connect()
        self._redis.xgroup_create(self.setup.topic, self.setup.group, id="0", mkstream=True)

    async def consume(self, take: Take) -> None:
        topic, group = self.setup.topic, self.setup.group
        while True:
            found = self._redis.xreadgroup(group, "reader", {topic: ">"}, CONSUME_BATCH, 1000)
            for _, entries in found or ():
                for _, fields in entries:
                    if take(fields[b"b"]):
                        return
                self._redis.xack(topic, group, *(number for number, _ in entries))

    async def close(self) -> None:
        if self._redis is not None:
            self._redis.close()
