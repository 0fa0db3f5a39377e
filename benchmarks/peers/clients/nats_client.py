"""nats-py, on JetStream."""

from __future__ import annotations

from typing import Any

import nats  # type: ignore[import-not-found]  # installed in the peers' environment
import nats.js.api  # type: ignore[import-not-found]
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, Window


class Client(Adapter):
    """`publish_async` in a window; `fetch`, where the last message acknowledges all."""

    _connection: Any = None

    async def start_sending(self) -> None:
        await self._connect()
        self._window = Window(self.setup.window)

    async def _connect(self) -> None:
        self._connection = await nats.connect(self.setup.addresses["nats"])
        self._jetstream = self._connection.jetstream(
            publish_async_max_pending=self.setup.window + 1
        )
        # The first client creates the stream.
        await self._jetstream.add_stream(
            name=self.setup.topic,
            subjects=[self.setup.topic],
            storage=nats.js.api.StorageType.FILE,
        )

    async def submit(self, body: bytes) -> None:
        await self._window.add(await self._jetstream.publish_async(self.setup.topic, body))

    async def drain(self) -> None:
        await self._window.drain()

    async def start_consuming(self) -> None:
        await self._connect()
        self._subscription = await self._jetstream.pull_subscribe(
            self.setup.topic,
            durable=self.setup.group,
            config=nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.ALL),
        )

    async def consume(self, take: Take) -> None:
        while True:
            try:
                messages = await self._subscription.fetch(CONSUME_BATCH, timeout=1)
            except nats.errors.TimeoutError:
                continue
            enough = False
            for message in messages:
                enough = take(message.data)
                if enough:
                    break
            await messages[-1].ack()
            if enough:
                return

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
