"""kafka-python, on Kafka. It blocks and sends from its own thread."""

from __future__ import annotations

from typing import Any

import kafka  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, ThreadWindow

ANSWER_SECONDS = 60


class Client(Adapter):
    """`send` in a window; `poll` with offsets committed by the client."""

    _producer: Any = None
    _consumer: Any = None

    async def start_sending(self) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=self.setup.addresses["kafka"],
            acks="all",
            linger_ms=round(self.setup.linger * 1000),
        )
        self._window = ThreadWindow(self.setup.window, lambda sent: sent.get(ANSWER_SECONDS))

    async def submit(self, body: bytes) -> None:
        self._window.add(self._producer.send(self.setup.topic, body))

    async def drain(self) -> None:
        self._producer.flush()
        self._window.drain()

    async def start_consuming(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            self.setup.topic,
            bootstrap_servers=self.setup.addresses["kafka"],
            group_id=self.setup.group,
            auto_offset_reset="earliest",
        )

    async def consume(self, take: Take) -> None:
        while True:
            found = self._consumer.poll(timeout_ms=1000, max_records=CONSUME_BATCH)
            for records in found.values():
                for record in records:
                    if take(record.value):
                        return

    async def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._consumer is not None:
            self._consumer.close()
