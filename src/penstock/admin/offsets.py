"""Where groups stand, and moving them."""

from __future__ import annotations

import asyncio
import re

from penstock.admin.cluster_requests import on_host
from penstock.admin.groups import GroupActions
from penstock.admin.reports import QueueLag, QueueRange
from penstock.client import requests
from penstock.client.arguments import Time, timestamp_ms
from penstock.errors import (
    ConsumerNotOnline,
    GroupNotFound,
    InvalidArgument,
    PenstockError,
    RequestRefused,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX, retry_topic
from penstock.model.queue_ends import queue_end
from penstock.protocol import bodies, headers
from penstock.protocol.codes import RequestCode, ResponseCode

TO_THE_END = -1
_RESETS_BY_QUEUE = (5, 2)
_VERSION = re.compile(r"V(\d+)_(\d+)")


class OffsetActions(GroupActions):
    """Actions on the offsets of groups."""

    @on_host
    async def group_lag(self, group: str, *, topic: str | None = None) -> list[QueueLag]:
        """How far a group is behind, queue by queue, its retries included.

        Every master is asked, so the group needs no retry topic that could be found by its route.
        """
        name = self.long_name(group)
        header = headers.admin.GetConsumeStats(
            name, None if topic is None else self.long_name(topic)
        )
        code, about = RequestCode.GET_CONSUME_STATS, f"group {group!r}"

        async def ask(address: str) -> bodies.stats.ConsumeStats:
            try:
                return await self.ask_body(
                    bodies.stats.ConsumeStats, address, code, header, about=about
                )
            except ConsumerNotOnline:
                # A broker on which the group never committed anything.
                return bodies.stats.ConsumeStats()

        tables = await self.each(await self.masters(), ask)
        rows = [
            row
            for table in tables.values()
            for row in self._lag_rows(table)
            if topic is None or row.topic == topic
        ]
        if topic is None and not any(row.topic.startswith(RETRY_PREFIX) for row in rows):
            rows += await self._untouched_retries(name)
        if not rows and not await self._group_config(name):
            raise self._no_group(group)
        return sorted(rows, key=lambda row: (row.topic, row.broker_name, row.queue_id))

    def _lag_rows(self, table: bodies.stats.ConsumeStats) -> list[QueueLag]:
        """The rows of one answer about a group."""
        return [
            QueueLag(
                self.short_name(queue.topic),
                queue.broker_name,
                queue.queue_id,
                stands.consumer_offset,
                stands.broker_offset,
                _lag(stands),
                stands.last_timestamp,
                _in_flight(stands),
            )
            for queue, stands in table.offset_table.items()
        ]

    async def _untouched_retries(self, name: str) -> list[QueueLag]:
        """What waits in a retry topic of which the group has not consumed anything yet.

        Brokers count from committed offsets, and there are none; a consumer begins with the first.
        """
        try:
            ranges = await self._ranges(retry_topic(name))
        except TopicNotFound:
            return []
        return [
            QueueLag(
                row.topic,
                row.broker_name,
                row.queue_id,
                row.min_offset,
                row.max_offset,
                row.max_offset - row.min_offset,
                0,
            )
            for row in ranges
            if row.max_offset > row.min_offset
        ]

    @on_host
    async def offsets_at(self, topic: str, time: Time) -> dict[MessageQueue, int]:
        """Where each queue of a topic has its first message stored at ``time`` or later.

        ``"first"`` and ``"last"`` are the ends. Brokers of 4.9 search for the nearest message,
        which may be the one before: look at its timestamp where that matters.
        """
        name = self.long_name(topic)
        masters = await self.topic_masters(name)
        ends = await self._ranges(name)
        end = queue_end(time)
        if end == "first":
            return {_of(row): row.min_offset for row in ends}
        if end == "last":
            return {_of(row): row.max_offset for row in ends}
        wanted = timestamp_ms(time)

        async def at(row: QueueRange) -> int:
            if wanted > row.last_timestamp:
                return row.max_offset
            queue = MessageQueue(name, row.broker_name, row.queue_id)
            found = await self.session.calls.call(
                masters[row.broker_name], requests.offset_at(queue, wanted)
            )
            return min(max(found, row.min_offset), row.max_offset)

        offsets = await asyncio.gather(*map(at, ends))
        return {_of(row): offset for row, offset in zip(ends, offsets, strict=True)}

    @on_host
    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: int | Time,
        *,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """Move a group in a topic, or in one queue of it; return where it stands then.

        ``to`` is ``"first"``, ``"last"`` or a time (a datetime or its text); with ``queue`` it may
        also be an offset. Connected consumers follow. Without ``force`` a group is only moved
        back, never past messages that it has not seen.
        """
        name, topic_name = self.long_name(group), self.long_name(topic)
        if isinstance(to, int) and queue is None:
            raise InvalidArgument(
                f"offset {to} for every queue of topic {topic!r}",
                expected="queue=..., or 'first', 'last' or a time",
            )
        if queue is None:
            moved = await self._reset_topic(name, topic_name, _timestamp(to), force)
        else:
            queue = MessageQueue(topic_name, queue.broker_name, queue.queue_id)
            moved = await self._reset_queue(name, queue, to, force)
        return {
            MessageQueue(self.short_name(q.topic), q.broker_name, q.queue_id): moved[q]
            for q in sorted(moved)
        }

    async def _reset_topic(
        self, group: str, topic: str, timestamp: int, force: bool
    ) -> dict[MessageQueue, int]:
        masters = await self.topic_masters(topic)
        header = headers.clients.ResetOffset(topic, group, timestamp, force)
        try:
            tables = await self.each(masters, lambda address: self._reset(address, header))
        except RequestRefused as error:
            # RocketMQ 4.9 says so without connected members, or if a queue has no offset. Then the
            # offsets can be written as a consumer would; under a connected one they would not last.
            if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                raise
            if await self._connections(group):
                raise
        else:
            return {queue: offset for table in tables.values() for queue, offset in table.items()}
        queues = (await self.require_route(topic)).subscribe_queues(topic)
        return dict(
            await asyncio.gather(
                *(self._write(masters[q.broker_name], group, q, timestamp, force) for q in queues)
            )
        )

    async def _reset(
        self, address: str, header: headers.clients.ResetOffset
    ) -> dict[MessageQueue, int]:
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        about = f"group {header.group!r} in topic {header.topic!r}"
        return (
            await self.ask_body(bodies.offsets.ResetOffsets, address, code, header, about=about)
        ).offset_table

    async def _write(
        self, address: str, group: str, queue: MessageQueue, timestamp: int, force: bool
    ) -> tuple[MessageQueue, int]:
        """Commit for a group without connected members."""
        calls = self.session.calls
        if timestamp == TO_THE_END:
            target = await calls.call(address, requests.max_offset(queue))
        else:
            target = await calls.call(address, requests.offset_at(queue, timestamp))
        before = await calls.call(address, requests.committed(group, queue))
        if not force and before is not None and before <= target:
            return queue, before
        await calls.call(address, requests.commit(group, queue, target))
        return queue, target

    async def _reset_queue(
        self, group: str, queue: MessageQueue, to: int | Time, force: bool
    ) -> dict[MessageQueue, int]:
        masters = await self.topic_masters(queue.topic)
        address = masters.get(queue.broker_name)
        if address is None:
            raise InvalidArgument(
                f"topic {queue.topic!r} has no master of broker {queue.broker_name!r}",
                expected=f"one of {', '.join(sorted(masters))}",
            )
        calls = self.session.calls
        low, high = (
            await calls.call(address, requests.min_offset(queue)),
            await calls.call(address, requests.max_offset(queue)),
        )
        if isinstance(to, int):
            target = to
        elif (timestamp := _timestamp(to)) == TO_THE_END:
            target = high
        else:
            target = await calls.call(address, requests.offset_at(queue, timestamp))
        if not low <= target <= high:
            raise InvalidArgument(f"offset {target} of {queue}", expected=f"{low} to {high}")
        before = await calls.call(address, requests.committed(group, queue))
        if not force and before is not None and before <= target:
            return {queue: before}
        if await self._resets_by_queue(address):
            header = headers.clients.ResetOffset(
                queue.topic, group, 0, force, queue.queue_id, target
            )
            try:
                return await self._reset(address, header) or {queue: target}
            except (ConsumerNotOnline, GroupNotFound):
                # It leaves resetting to consumers (useServerSideResetOffset=false), or the group
                # has never been here.
                pass
        elif await self._connections(group):
            raise ServiceNotAvailable(
                f"group {group!r} is connected, and the broker at {address} cannot move it in one "
                f"queue alone",
                expected="RocketMQ 5.2 or later, or a group that is not connected",
                hint="stop its consumers, or call seek() on the one that holds the queue",
            )
        # Not done where a reset is possible: a broker that keeps an earlier reset for a group that
        # has not connected since says yes to a commit and forgets it.
        await calls.call(address, requests.commit(group, queue, target))
        return {queue: target}

    async def _resets_by_queue(self, address: str) -> bool:
        """Earlier brokers overlook the queue in the request and move the group in all of them."""
        try:
            info = await self.ask_body(
                bodies.common.KvTable,
                address,
                RequestCode.GET_BROKER_RUNTIME_INFO,
                about="its version",
            )
        except PenstockError:
            return False
        version = _VERSION.match(info.table.get("brokerVersionDesc", ""))
        return version is not None and (int(version[1]), int(version[2])) >= _RESETS_BY_QUEUE


def _of(row: QueueRange) -> MessageQueue:
    return MessageQueue(row.topic, row.broker_name, row.queue_id)


def _timestamp(to: Time) -> int:
    end = queue_end(to)
    if end is None:
        return timestamp_ms(to)
    return 0 if end == "first" else TO_THE_END


def _in_flight(stands: bodies.stats.ConsumeOffset) -> int:
    """Messages that were handed out and are not finished."""
    if stands.penstock_in_flight is not None:
        return stands.penstock_in_flight
    return 0


def _lag(stands: bodies.stats.ConsumeOffset) -> int:
    """Messages that are not finished: what is ready, and what is in flight."""
    behind = max(0, stands.broker_offset - stands.consumer_offset)
    if stands.penstock_in_flight is None:
        return behind
    ready = max(0, stands.broker_offset - (stands.pull_offset or 0))
    return min(behind, ready + stands.penstock_in_flight)
