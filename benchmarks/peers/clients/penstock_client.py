"""Penstock's asyncio client, on its own broker or on Apache's."""

from __future__ import annotations

import asyncio

from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, Window

from penstock import Message, StoredMessage, aio


class Client(Adapter):
    """`submit` in a window; a coroutine handler that receives batches."""

    _producer: aio.Producer | None = None
    _consumer: aio.PushConsumer | None = None

    async def start_sending(self) -> None:
        setup = self.setup
        self._producer = aio.Producer(
            "bench-senders", namesrv=setup.addresses["remoting"], linger=setup.linger
        )
        await self._producer.start()
        self._hand_over = self._producer.submit
        self._window = Window(setup.window)

    async def submit(self, body: bytes) -> None:
        await self._window.add(await self._hand_over(Message(self.setup.topic, body)))

    async def drain(self) -> None:
        await self._window.drain()

    async def start_consuming(self) -> None:
        self._consumer = aio.PushConsumer(
            self.setup.group,
            namesrv=self.setup.addresses["remoting"],
            start_from="first",
            batch_size=CONSUME_BATCH,
        )

    async def consume(self, take: Take) -> None:
        assert self._consumer is not None
        enough = asyncio.Event()

        async def handle(messages: list[StoredMessage]) -> None:
            for message in messages:
                if take(message.body):
                    enough.set()

        self._consumer.on(self.setup.topic)(handle)
        await self._consumer.start()
        await enough.wait()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        if self._consumer is not None:
            await self._consumer.stop()
