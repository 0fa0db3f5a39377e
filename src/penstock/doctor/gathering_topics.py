"""The topics of one group: routes, where queues begin and end, where the group stands, samples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.admin.admin import Admin
from penstock.client import requests
from penstock.doctor.facts import (
    DeadLetterFacts,
    QueueFacts,
    SampledMessage,
    TopicFacts,
)
from penstock.errors import PenstockError, ProtocolError, StoreError, TopicNotFound
from penstock.model import MessageQueue, Subscription, TopicRoute
from penstock.model.names import READ, dead_letter_topic, retry_topic
from penstock.model.subscription import EVERYTHING
from penstock.protocol.bodies.groups import SubscriptionGroupTable
from penstock.protocol.bodies.stats import TopicOffset, TopicStats
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import GetTopicStats

SAMPLED_QUEUES = 16
SAMPLED_MESSAGES = 32
"""Recent messages of each sampled queue."""
AT_ONCE = 32


class TopicGathering:
    """Looks at topics for one group, whose name is the long one."""

    def __init__(
        self,
        admin: Admin,
        group: str,
        masters: Mapping[str, str],
        tables: Mapping[str, SubscriptionGroupTable],
        *,
        keeps_offsets: bool,
    ) -> None:
        self._admin = admin
        self._group = group
        self._masters = masters
        self._tables = tables
        self._keeps_offsets = keeps_offsets
        self._places = asyncio.Semaphore(AT_ONCE)

    async def topic(self, topic: str, wanted: Sequence[Subscription] | None) -> TopicFacts:
        """One topic; ``wanted`` is the members' subscription, None if there is none."""
        name = self._admin.long_name(topic)
        routes, error = await self._routes(name)
        route = next((found for found in routes.values() if found is not None), None)
        brokers = [] if route is None else sorted({q.broker_name for q in route.queues})
        queues, missing = await self._queues(name, brokers)
        return TopicFacts(
            topic,
            wanted is not None,
            routes,
            error,
            queues,
            missing,
            tuple(
                broker
                for broker, table in self._tables.items()
                if (table.forbidden_table or {}).get(self._group, {}).get(name, 0) & READ
            ),
            await self._sample(queues) if any(map(_filters, wanted or ())) else None,
        )

    async def _routes(self, name: str) -> tuple[dict[str, TopicRoute | None], str | None]:
        session = self._admin.session
        routes: dict[str, TopicRoute | None] = {}
        failures: list[str] = []
        for address in session.nameservers.addresses:
            try:
                routes[address] = await session.calls.call(address, requests.route(name))
            except PenstockError as error:
                failures.append(error.what)
        return routes, None if routes else "; ".join(failures)

    async def _queues(
        self, name: str, brokers: Sequence[str]
    ) -> tuple[tuple[QueueFacts, ...], tuple[str, ...]]:
        missing: list[str] = []
        found: list[QueueFacts] = []
        for broker in brokers:
            address = self._masters.get(broker)
            if address is None:
                continue
            try:
                stats = await self._admin.ask_body(
                    TopicStats,
                    address,
                    RequestCode.GET_TOPIC_STATS_INFO,
                    GetTopicStats(name),
                    about=f"topic {name!r}",
                )
            except TopicNotFound:
                missing.append(broker)
                continue
            except PenstockError:
                continue
            found += await asyncio.gather(
                *(self._queue(address, queue, ends) for queue, ends in stats.offset_table.items())
            )
        return tuple(sorted(found, key=lambda facts: facts.queue)), tuple(missing)

    async def _queue(self, address: str, queue: MessageQueue, ends: TopicOffset) -> QueueFacts:
        shown = MessageQueue(self._admin.short_name(queue.topic), queue.broker_name, queue.queue_id)
        committed: int | None = None
        epoch = 0
        is_known = self._keeps_offsets
        if is_known:
            async with self._places:
                try:
                    committed, epoch = await self._committed(address, queue)
                except PenstockError:
                    is_known = False
        facts = QueueFacts(
            shown,
            ends.min_offset,
            ends.max_offset,
            committed,
            is_known,
            ends.last_update_timestamp,
            epoch > 0,
        )
        if is_known and facts.lag:
            async with self._places:
                return replace(facts, read_error=await self._read_error(facts))
        return facts

    async def _committed(self, address: str, queue: MessageQueue) -> tuple[int | None, int]:
        # A broker would rather say 0 than that there is none; 4.9 cannot be kept from it.
        request = requests.committed_of_epoch(self._group, queue, or_zero=False)
        offset, epoch = await self._admin.call(address, request)
        return None if offset is None or offset < 0 else offset, epoch

    async def _read_error(self, facts: QueueFacts) -> str | None:
        """Read the message that the group would get next, with its checksum."""
        offset = max(facts.committed or 0, facts.min_offset)
        try:
            part = await self._admin.messages(facts.queue, offset, count=1, check_crc=True)
        except (ProtocolError, StoreError) as error:
            return str(error)
        except PenstockError:
            # It may not be read, or the broker is away: other checks see to that.
            return None
        if not part.messages and part.next_offset <= offset < part.max_offset:
            return f"the broker returns nothing at offset {offset}, and does not go on"
        return None

    async def _sample(self, queues: Sequence[QueueFacts]) -> tuple[SampledMessage, ...] | None:
        """The newest messages of each queue; None when they may not be read."""
        filled = [facts for facts in queues if facts.max_offset > facts.min_offset]
        sample: list[SampledMessage] = []
        was_read = not filled
        for facts in filled[:SAMPLED_QUEUES]:
            first = max(facts.min_offset, facts.max_offset - SAMPLED_MESSAGES)
            try:
                part = await self._admin.messages(facts.queue, first, count=SAMPLED_MESSAGES)
            except PenstockError:
                continue
            was_read = True
            sample += [SampledMessage(m.tag, m.properties) for m in part.messages]
        return tuple(sample) if was_read else None

    # ------------------------------------------------------------------ what the group has itself

    async def retries(self) -> tuple[QueueFacts, ...]:
        """The queues in which failed messages wait for their next attempt."""
        queues, _ = await self._queues(retry_topic(self._group), sorted(self._masters))
        return queues

    async def dead_letters(self, group: str) -> DeadLetterFacts:
        """How many messages wait that the group gave up on, and why it did the last time."""
        queues, _ = await self._queues(dead_letter_topic(self._group), sorted(self._masters))
        count = sum(facts.max_offset - facts.min_offset for facts in queues)
        if not count:
            return DeadLetterFacts()
        try:
            # Redriven and purged letters stay stored, but need no attention.
            places = await self._admin.dead_letter_queues(group)
            count = sum(place.pending for place in places)
            if not count:
                return DeadLetterFacts()
            letters = await self._admin.dead_letters(group, count=1)
        except PenstockError:
            letters = []
        if not letters:
            return DeadLetterFacts(count)
        newest = letters[-1]
        reason = newest.reason if newest.reason is not None else newest.reason_type
        return DeadLetterFacts(count, reason, newest.message.msg_id, newest.message.store_timestamp)


def _filters(wanted: Subscription) -> bool:
    return wanted.expression != EVERYTHING
