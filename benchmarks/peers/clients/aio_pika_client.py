"""aio-pika, on RabbitMQ with a durable queue and persistent messages."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, Window


class Client(Adapter):
    """`publish` with confirms in a window; `consume`, acknowledging many at once."""

    _connection: Any = None

    async def start_sending(self) -> None:
        await self._connect()
        self._window = Window(self.setup.window)

    async def _connect(self) -> None:
        self._connection = await aio_pika.connect(self.setup.addresses["amqp"])
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=2 * CONSUME_BATCH)
        self._queue = await self._channel.declare_queue(self.setup.topic, durable=True)

    async def submit(self, body: bytes) -> None:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        publish = self._channel.default_exchange.publish(message, self.setup.topic)
        await self._window.add(asyncio.ensure_future(publish))

    async def drain(self) -> None:
        await self._window.drain()

    async def start_consuming(self) -> None:
        await self._connect()

    async def consume(self, take: Take) -> None:
        enough = asyncio.Event()
        seen = 0

        async def handle(message: Any) -> None:
            nonlocal seen
            seen += 1
            if take(message.body):
                enough.set()
            if seen % CONSUME_BATCH == 0:
                await message.ack(multiple=True)

        await self._queue.consume(handle)
        await enough.wait()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
