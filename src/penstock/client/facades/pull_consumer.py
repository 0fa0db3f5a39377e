"""The settings and the core of a pull consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Unpack

from penstock.client.arguments import (
    PullConsumerOptions,
    Time,
    check_keywords,
    consumer_settings,
    session_settings,
    split,
)
from penstock.client.arguments import (
    start_from as parse_start_from,
)
from penstock.client.consuming.assignment import AssignmentStrategy
from penstock.client.consuming.pull_consumer import BATCH_SIZE, PullConsumerCore
from penstock.client.facades.facade import MemberFacade
from penstock.client.facades.values import (
    check_filter,
    queue_set,
)
from penstock.client.options import check_count, check_flag
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage


class PullConsumerFacade(MemberFacade):
    """The settings and the core of a pull consumer."""

    _core: PullConsumerCore

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Iterable[str] | None = None,
        start_from: str | Time = "last",
        auto_commit: bool = True,
        batch_size: int = BATCH_SIZE,
        allocation: str | AssignmentStrategy = "average",
        instance: str | None = None,
        **options: Unpack[PullConsumerOptions],
    ) -> None:
        check_keywords(PullConsumerFacade.__init__, options, PullConsumerOptions.__optional_keys__)
        check_flag("auto_commit", auto_commit)
        check_count("batch_size", batch_size, 1, 1024)
        access, rest = split(dict(options))
        session = session_settings(namesrv, instance, access)
        self._settings = consumer_settings(
            group,
            session.access.namespace,
            model="clustering",
            start_from=parse_start_from(start_from),
            allocation=allocation,
            # The filter rides along with each pull, so assigned queues need no heartbeat.
            options={"pull_batch_size": batch_size, "post_subscription": True, **rest},
        )
        self._auto_commit = auto_commit
        self._wanted: list[tuple[str, str, str | None]] = []
        self._queues: frozenset[MessageQueue] | None = None
        # Polled by an iteration that has not come to them. They are here and not in the iterator,
        # so that one that is left early takes nothing with it.
        self._unread: deque[StoredMessage] = deque()
        super().__init__(f"pull consumer {group!r}", session, is_named=instance is not None)

    def _make_core(self, lease: Lease) -> PullConsumerCore:
        return PullConsumerCore(lease.session, self._settings, auto_commit=self._auto_commit)

    async def _start_core(self, lease: Lease) -> None:
        self._core = self._make_core(lease)
        for topic, tags, sql in self._wanted:
            await self._core.subscribe(topic, tags=tags, sql=sql)
        if self._queues is not None:
            await self._core.assign(self._queues)
        await self._core.start()

    async def _stop_core(self) -> None:
        self._unread.clear()
        await self._core.stop()

    def _want(self, topic: str, tags: str, sql: str | None, tag: object) -> str:
        """Note a subscription; the topic under the name brokers know."""
        check_filter("subscribe", topic, tags, tag)
        if self._queues is not None:
            raise self._either_or()
        topic = wrap(self._namespace, topic)
        self._wanted.append((topic, tags, sql))
        return topic

    def _check_assign(
        self, queues: Iterable[MessageQueue] | MessageQueue
    ) -> frozenset[MessageQueue]:
        if self._wanted:
            raise self._either_or()
        return queue_set(queues)

    def _check_started(self) -> None:
        """An iteration ends when the consumer is stopped; one that never began is a mistake."""
        if self._lease is None and not self._was_stopped:
            raise self._not_running()

    async def _poll(self, limit: float, found: list[StoredMessage]) -> list[StoredMessage]:
        found += await self._core.poll(limit)
        return found

    def _give_back(self, found: list[StoredMessage]) -> None:
        """On the session's loop: the poll was interrupted, perhaps after it found something.

        The next poll would count it as consumed.
        """
        if found:
            self._core.take_back()

    def _next_unread(self) -> StoredMessage | None:
        try:
            return self._unread.popleft()
        except IndexError:
            return None

    def _take_unread(self) -> list[StoredMessage]:
        unread: list[StoredMessage] = []
        while (message := self._next_unread()) is not None:
            unread.append(message)
        return unread

    def _keep_unread(self, keep: Callable[[MessageQueue], bool]) -> None:
        self._unread.extend([m for m in self._take_unread() if keep(m.queue)])

    def _either_or(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self._what} both subscribes and is assigned queues", expected="one of them"
        )
