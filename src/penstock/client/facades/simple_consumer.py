"""The common part of both simple consumers: settings, subscriptions, checks of arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Unpack

from penstock.client.arguments import (
    SimpleConsumerOptions,
    Time,
    check_keywords,
    consumer_settings,
    session_settings,
    split,
)
from penstock.client.arguments import start_from as parse_start_from
from penstock.client.consuming.simple_consumer import MAX_RECEIVED, SimpleConsumerCore
from penstock.client.facades.facade import MemberFacade
from penstock.client.facades.values import check_filter
from penstock.client.options import check_count
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.errors import InvalidArgument
from penstock.model import StoredMessage
from penstock.runtime.durations import Duration, seconds

SHORTEST_INVISIBLE: Final = 1.0
LONGEST_INVISIBLE: Final = 12 * 3600.0
LONGEST_WAIT: Final = 60.0


class SimpleConsumerFacade(MemberFacade):
    """The settings and the core of a simple consumer."""

    _core: SimpleConsumerCore

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Iterable[str] | None = None,
        invisible: Duration = "30s",
        start_from: str | Time = "last",
        instance: str | None = None,
        **options: Unpack[SimpleConsumerOptions],
    ) -> None:
        check_keywords(
            SimpleConsumerFacade.__init__, options, SimpleConsumerOptions.__optional_keys__
        )
        access, rest = split(dict(options))
        session = session_settings(namesrv, instance, access)
        where = parse_start_from(start_from)
        if where.where == "time":
            raise InvalidArgument(
                f"start_from is {start_from!r}",
                expected="'last' or 'first'",
                hint="reset the group's offsets to a time before it starts",
            )
        self._settings = consumer_settings(
            group,
            session.access.namespace,
            model="clustering",
            start_from=where,
            allocation="average",
            options=rest,
        )
        self._invisible = invisible_seconds(invisible)
        self._wanted: list[tuple[str, str, str | None]] = []
        super().__init__(f"simple consumer {group!r}", session, is_named=instance is not None)

    async def _start_core(self, lease: Lease) -> None:
        self._core = SimpleConsumerCore(lease.session, self._settings, invisible=self._invisible)
        for topic, tags, sql in self._wanted:
            await self._core.subscribe(topic, tags=tags, sql=sql)
        await self._core.start()

    async def _stop_core(self) -> None:
        await self._core.stop()

    def _want(self, topic: str, tags: str, sql: str | None, tag: object) -> str:
        """Note a subscription; the topic under the name brokers know."""
        check_filter("subscribe", topic, tags, tag)
        topic = wrap(self._namespace, topic)
        self._wanted.append((topic, tags, sql))
        return topic

    async def _receive(
        self, max_messages: int, wait: Duration, invisible: Duration | None
    ) -> list[StoredMessage]:
        check_count("max_messages", max_messages, 1, MAX_RECEIVED)
        limit = seconds(wait)
        if not 0 <= limit <= LONGEST_WAIT:
            raise InvalidArgument(f"wait is {wait!r}", expected=f"0 to {LONGEST_WAIT:g} seconds")
        length = None if invisible is None else invisible_seconds(invisible)
        return await self._core.receive(max_messages, length, limit)


def invisible_seconds(invisible: Duration) -> float:
    """How long received messages stay invisible to others."""
    length = seconds(invisible)
    if not SHORTEST_INVISIBLE <= length <= LONGEST_INVISIBLE:
        raise InvalidArgument(
            f"an invisible time of {invisible!r}",
            expected=f"{SHORTEST_INVISIBLE:g} second to {LONGEST_INVISIBLE / 3600:g} hours",
        )
    return length
