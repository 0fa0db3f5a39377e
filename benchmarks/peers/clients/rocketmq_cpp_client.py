"""rocketmq, the Python binding of Apache's C++ client, on Apache's broker.

Its module has the same name as that of rocketmq-python-client, so it is in its own directory inside
the peers' environment.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 60
DIRECTORY = Path(sys.prefix) / "cpp"
sys.path.insert(0, str(DIRECTORY))

from benchmarks.peers.adapter import Adapter, Take, ThreadWindow  # noqa: E402  needs the path above
from rocketmq.client import (  # type: ignore[import-not-found]  # noqa: E402
    Message,
    Producer,
    PushConsumer,
)


class Client(Adapter):
    """`send_sync`, or `send_async` in a window; a push consumer with its own threads."""

    _producer: Any = None
    _consumer: Any = None

    async def start_sending(self) -> None:
        self._producer = Producer("bench-senders")
        self._producer.set_namesrv_addr(self.setup.addresses["remoting"])
        self._producer.start()
        self._window = ThreadWindow(self.setup.window, lambda sent: sent.result(ANSWER_SECONDS))

    async def submit(self, body: bytes) -> None:
        message = Message(self.setup.topic)
        message.set_body(body)
        if self.setup.window == 1:
            self._producer.send_sync(message)
            return
        sent: Future[Any] = Future()
        # The message is freed with its Python object, but the C++ side still needs it.
        sent.message = message  # type: ignore[attr-defined]
        self._producer.send_async(message, sent.set_result, sent.set_exception)
        self._window.add(sent)

    async def drain(self) -> None:
        self._window.drain()

    async def start_consuming(self) -> None:
        """Do nothing: the first call of `consume`, which has the handler, connects."""

    async def consume(self, take: Take) -> None:
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        def handle(message: Any) -> None:
            if take(message.body):
                loop.call_soon_threadsafe(enough.set)

        self._consumer = PushConsumer(self.setup.group)
        self._consumer.set_namesrv_addr(self.setup.addresses["remoting"])
        self._consumer.subscribe(self.setup.topic, handle)
        self._consumer.start()
        await enough.wait()

    async def close(self) -> None:
        if self._producer is not None:
            self._producer.shutdown()
        if self._consumer is not None:
            self._consumer.shutdown()
