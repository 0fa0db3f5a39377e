"""`PullConsumer` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Iterable,
)
from typing import (
    Any,
)

from penstock.client.arguments import Time
from penstock.client.arrow_support import arrow_rows
from penstock.client.facades.pull_consumer import PullConsumerFacade
from penstock.client.facades.values import maybe_queue_set, seek_to
from penstock.client.nonblocking.entered import Member, soon
from penstock.model import MessageQueue, StoredMessage
from penstock.runtime.durations import Duration, seconds

POLL_SECONDS = 5.0


class PullConsumer(Member, PullConsumerFacade):
    """Hands out messages when asked; the keywords are those of `penstock.PullConsumer`."""

    async def stop(self) -> None:
        """Commit what was consumed and leave; idempotent.

        What the last poll brought is not committed and comes again: `commit` first if it is done.
        """
        await super().stop()

    async def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, tag: None = None
    ) -> None:
        """Share the queues of a topic with the other members of the group."""
        topic = self._want(topic, tags, sql, tag)
        if self._lease is not None:
            await self._host.await_(self._core.subscribe(topic, tags=tags, sql=sql))

    async def assign(self, queues: Iterable[MessageQueue] | MessageQueue) -> None:
        """Read exactly these queues, or this one, without regard to other members."""
        self._queues = self._check_assign(queues)
        if self._lease is not None:
            await self._host.await_(self._core.assign(self._queues))
            self._keep_unread(self._queues.__contains__)

    async def poll_arrow(self, timeout: Duration = POLL_SECONDS) -> Any:  # noqa: ASYNC109
        """`poll` as a ``pyarrow.RecordBatch``, with no rows when none came within ``timeout``.

        Its columns are those of `penstock.arrow.read`. Needs the extra ``[arrow]``.
        """
        to_batch = arrow_rows()
        return to_batch(await self.poll(timeout))

    async def poll(self, timeout: Duration = POLL_SECONDS) -> list[StoredMessage]:  # noqa: ASYNC109
        """The next messages; an empty list when none came within ``timeout``."""
        limit = seconds(timeout)
        host = self._host
        # What an iteration was left with comes first.
        if unread := self._take_unread():
            return unread
        found: list[StoredMessage] = []
        try:
            return await host.await_(self._poll(limit, found))
        except asyncio.CancelledError:
            if self._lease is not None:
                host.call_soon(self._give_back, found)
            raise

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Message after message, until it is stopped; asking for the next one ends the one before.

        An iteration that was left can be resumed: a new one begins with the next message.
        """
        self._check_started()
        while self._lease is not None:
            while (message := self._next_unread()) is not None:
                yield message
            if self._lease is not None:
                self._unread.extend(await self.poll())

    async def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is read: an offset, or a datetime or its text."""
        await self._host.await_(seek_to(self._core, queue, offset_or_time))
        self._keep_unread(lambda unread: unread != queue)

    async def pause(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring nothing of these queues, of all without ``queues``, until `resume`.

        Nothing is lost: what was read ahead waits, and the queues are kept. A queue that goes to
        another member and comes back is not paused any more.
        """
        await self._host.await_(soon(self._core.pause, maybe_queue_set(queues)))

    async def resume(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring these queues again, all without ``queues``."""
        await self._host.await_(soon(self._core.resume, maybe_queue_set(queues)))

    async def paused(self) -> set[MessageQueue]:
        """The queues that are paused now."""
        return await self._host.await_(soon(self._core.paused))

    async def commit(self) -> None:
        """Commit all messages handed out, and return when the brokers have it."""
        await self._host.await_(self._core.commit(list(self._unread)))

    async def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return await self._host.await_(soon(self._core.assignment))
