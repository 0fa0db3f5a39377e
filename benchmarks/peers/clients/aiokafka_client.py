"""aiokafka, on Kafka."""

from __future__ import annotations

from typing import Any

import aiokafka  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, Window


class Client(Adapter):
    """`send` in a window; `getmany` with offsets committed by the client."""

    _producer: Any = None
    _consumer: Any = None

    async def start_sending(self) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.setup.addresses["kafka"],
            acks="all",
            linger_ms=round(self.setup.linger * 1000),
        )
        await self._producer.start()
        self._window = Window(self.setup.window)

    async def submit(self, body: bytes) -> None:
        await self._window.add(await self._producer.send(self.setup.topic, body))

    async def drain(self) -> None:
        await self._window.drain()

    async def start_consuming(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            self.setup.topic,
            bootstrap_servers=self.setup.addresses["kafka"],
            group_id=self.setup.group,
            auto_offset_reset="earliest",
        )
        await self._consumer.start()

    async def consume(self, take: Take) -> None:
        while True:
            found = await self._consumer.getmany(timeout_ms=1000, max_records=CONSUME_BATCH)
            for records in found.values():
                for record in records:
                    if take(record.value):
                        return

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        if self._consumer is not None:
            await self._consumer.stop()
