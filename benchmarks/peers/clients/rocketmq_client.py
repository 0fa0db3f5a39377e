"""rocketmq-python-client, Apache's own, through the gRPC proxy of Apache's broker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import rocketmq  # type: ignore[import-not-found]  # installed in the peers' environment
from benchmarks.peers.adapter import Adapter, Take, ThreadWindow

ANSWER_SECONDS = 60
# Thousands of calls may queue up: more than its default of three seconds.
REQUEST_SECONDS = 30


class _Listener(rocketmq.MessageListener):  # type: ignore[misc]  # a class without types
    """Called by twenty threads."""

    def __init__(self, take: Take, enough: Any) -> None:
        self._take = take
        self._enough = enough

    def consume(self, message: Any) -> Any:
        if self._take(message.body):
            self._enough()
        return rocketmq.ConsumeResult.SUCCESS


class Client(Adapter):
    """`send_async` in a window; a push consumer, which acknowledges each message automatically."""

    _producer: Any = None
    _consumer: Any = None

    def _configuration(self) -> Any:
        logging.getLogger("rocketmq").setLevel(logging.WARNING)
        return rocketmq.ClientConfiguration(
            self.setup.addresses["grpc"],
            rocketmq.Credentials(),
            request_timeout=REQUEST_SECONDS,
        )

    async def start_sending(self) -> None:
        self._producer = rocketmq.Producer(self._configuration(), (self.setup.topic,))
        self._producer.startup()
        self._window = ThreadWindow(self.setup.window, lambda sent: sent.result(ANSWER_SECONDS))

    async def submit(self, body: bytes) -> None:
        message = rocketmq.Message()
        message.topic = self.setup.topic
        message.body = body
        self._window.add(self._producer.send_async(message))

    async def drain(self) -> None:
        self._window.drain()

    async def start_consuming(self) -> None:
        """Do nothing: the first call of `consume`, which has the handler, connects."""

    async def consume(self, take: Take) -> None:
        loop, enough = asyncio.get_running_loop(), asyncio.Event()
        self._consumer = rocketmq.PushConsumer(
            self._configuration(),
            self.setup.group,
            _Listener(take, lambda: loop.call_soon_threadsafe(enough.set)),
            {self.setup.topic: rocketmq.FilterExpression()},
        )
        self._consumer.startup()
        await enough.wait()

    async def close(self) -> None:
        if self._producer is not None:
            self._producer.shutdown()
        if self._consumer is not None:
            self._consumer.shutdown()
