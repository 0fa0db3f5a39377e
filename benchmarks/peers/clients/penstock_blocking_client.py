"""Penstock's blocking client, which polls for messages as Kafka's clients do."""

from __future__ import annotations

from benchmarks.peers.adapter import CONSUME_BATCH, Adapter, Take, ThreadWindow

from penstock import Message, Producer, PullConsumer

ANSWER_SECONDS = 60


class Client(Adapter):
    """`send`, or `submit` in a window; `poll`, with offsets committed by the client."""

    _producer: Producer | None = None
    _consumer: PullConsumer | None = None

    async def start_sending(self) -> None:
        setup = self.setup
        self._producer = Producer(
            "bench-senders", namesrv=setup.addresses["remoting"], linger=setup.linger
        )
        self._producer.start()
        self._window = ThreadWindow(setup.window, lambda sent: sent.result(ANSWER_SECONDS))

    async def submit(self, body: bytes) -> None:
        assert self._producer is not None
        message = Message(self.setup.topic, body)
        if self.setup.window == 1:
            self._producer.send(message)
        else:
            self._window.add(self._producer.submit(message))

    async def drain(self) -> None:
        self._window.drain()

    async def start_consuming(self) -> None:
        self._consumer = PullConsumer(
            self.setup.group,
            namesrv=self.setup.addresses["remoting"],
            start_from="first",
            batch_size=CONSUME_BATCH,
        )
        self._consumer.subscribe(self.setup.topic)
        self._consumer.start()

    async def consume(self, take: Take) -> None:
        assert self._consumer is not None
        while True:
            for message in self._consumer.poll(1):
                if take(message.body):
                    return

    async def close(self) -> None:
        if self._producer is not None:
            self._producer.stop()
        if self._consumer is not None:
            self._consumer.stop()
