"""`SimpleConsumer` for asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

from penstock.client.facades.simple_consumer import SimpleConsumerFacade, invisible_seconds
from penstock.client.nonblocking.entered import Member
from penstock.model import StoredMessage
from penstock.runtime.durations import Duration


class SimpleConsumer(Member, SimpleConsumerFacade):
    """Receives messages and acknowledges each; keywords as in `penstock.SimpleConsumer`."""

    async def stop(self) -> None:
        """Leave the group; idempotent. What was not acknowledged comes again in a second."""
        await super().stop()

    async def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, tag: None = None
    ) -> None:
        """Receive messages of a topic, too; the same topic again replaces the filter."""
        topic = self._want(topic, tags, sql, tag)
        if self._lease is not None:
            await self._host.await_(self._core.subscribe(topic, tags=tags, sql=sql))

    async def receive(
        self,
        max_messages: int = 16,
        wait: Duration = "15s",
        *,
        invisible: Duration | None = None,
    ) -> list[StoredMessage]:
        """The next messages, at most 32; an empty list when none came within ``wait``.

        ``invisible`` is the time for these messages, if not that of the consumer.
        """
        return await self._host.await_(self._receive(max_messages, wait, invisible))

    async def ack(self, message: StoredMessage) -> None:
        """The message is done: it does not come again; `ReceiptExpired` if its time was up."""
        await self._host.await_(self._core.acknowledge([message]))

    async def ack_all(self, messages: Iterable[StoredMessage]) -> None:
        """All these messages are done, in one request for each broker."""
        await self._host.await_(self._core.acknowledge(list(messages)))

    async def extend(self, message: StoredMessage, duration: Duration) -> None:
        """Keep a message from others for ``duration``, counted from now."""
        await self._host.await_(self._core.extend(message, invisible_seconds(duration)))

    async def reject(self, message: StoredMessage) -> None:
        """Let a message come again at once; it counts as a failed attempt."""
        await self._host.await_(self._core.extend(message, 0.0))

    @contextlib.asynccontextmanager
    async def acknowledging(
        self, messages: Iterable[StoredMessage]
    ) -> AsyncIterator[list[StoredMessage]]:
        """Acknowledge messages when the block ends, reject them all when it raises."""
        # A list: the block may use up an iterator.
        given = list(messages)
        try:
            yield given
        except BaseException:
            for message in given:
                with contextlib.suppress(Exception):
                    await self.reject(message)
            raise
        await self.ack_all(given)
