"""confluent-kafka, on Kafka: librdkafka, written in C, under a thin Python layer."""

from __future__ import annotations

from typing import Any

import confluent_kafka  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take

POLL_SECONDS = 1.0
POLL_EVERY = 64
"""Delivery reports are collected after this many messages."""


class Client(Adapter):
    """`produce` with delivery reports; `poll`, `consume`, and offsets committed by the client."""

    _producer: Any = None
    _consumer: Any = None

    async def start_sending(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.setup.addresses["kafka"],
                "acks": "all",
                "linger.ms": self.setup.linger * 1000,
            }
        )
        self._open = 0
        self._refused: Any = None

    def _delivered(self, error: Any, _message: Any) -> None:
        self._open -= 1
        self._refused = self._refused or error

    async def submit(self, body: bytes) -> None:
        producer = self._producer
        producer.produce(self.setup.topic, body, on_delivery=self._delivered)
        self._open += 1
        if self._open % POLL_EVERY == 0:
            producer.poll(0)
        while self._open >= self.setup.window:
            producer.poll(POLL_SECONDS)

    async def drain(self) -> None:
        self._producer.flush()
        if self._open or self._refused is not None:
            raise RuntimeError(f"{self._open} messages unanswered, refused: {self._refused}")

    async def start_consuming(self) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.setup.addresses["kafka"],
                "group.id": self.setup.group,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([self.setup.topic])

    async def consume(self, take: Take) -> None:
        while True:
            # A batch waits until it is full or its time is over: wait for one message only, then
            # take those that have already arrived.
            first = self._consumer.poll(POLL_SECONDS)
            if first is None:
                continue
            for message in (first, *self._consumer.consume(CONSUME_BATCH, 0)):
                if message.error() is None and take(message.value()):
                    return

    async def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
