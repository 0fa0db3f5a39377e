"""Penstock's asyncio client once more, but asked for messages as Kafka's clients are."""

from __future__ import annotations

from benchmarks.peers.adapter import CONSUME_BATCH, Take
from benchmarks.peers.clients import penstock_client

from penstock import aio


class Client(penstock_client.Client):
    """`poll`, with offsets committed by the client."""

    _polled: aio.PullConsumer | None = None

    async def start_consuming(self) -> None:
        self._polled = aio.PullConsumer(
            self.setup.group,
            namesrv=self.setup.addresses["remoting"],
            start_from="first",
            batch_size=CONSUME_BATCH,
        )
        await self._polled.subscribe(self.setup.topic)
        await self._polled.start()

    async def consume(self, take: Take) -> None:
        assert self._polled is not None
        while True:
            for message in await self._polled.poll(1):
                if take(message.body):
                    return

    async def close(self) -> None:
        await super().close()
        if self._polled is not None:
            await self._polled.stop()
