"""The life of one message, put together from its records: no trace is needed for it.

    sent ─▶ stored ─▶ (waits for its time) ─▶ each group: passed, or failed, failed again, dead
                                                          └ redriven, perhaps edited ─▶ ...

A retry, a dead letter and a redriven copy are records of their own with the id of the first one, so
the key index finds them all. What they cannot tell is whether a handler ran: a committed offset
beyond a message means that the group passed it. Traces, where clients write them, tell the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from penstock.admin.cluster_requests import on_host
from penstock.admin.messages import MAX_QUERY
from penstock.admin.reports import DeadLetterRow
from penstock.admin.tables import TableActions
from penstock.errors import PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    Failure,
    Property,
    Redrive,
    dead_letter_topic,
    retry_topic,
)
from penstock.protocol.traces import ConsumeBegun, ConsumeEnded, decode_traces

_END_OF_TIME = 2**63 - 1
_GROUPS_AT_ONCE = 8
MAX_GROUPS = 50


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One thing that happened to a message."""

    at_ms: int
    """0: the time is not known."""
    kind: str
    """``sent``, ``stored``, ``delayed``, ``passed``, ``waiting``, ``failed``, ``dead``,
    ``redriven`` or ``handled``."""
    text: str
    group: str | None = None
    reason: str | None = None
    offset_msg_id: str | None = None
    """The record that tells it."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call of a handler, as its client recorded it."""

    at_ms: int
    success: bool
    how: str
    """Where, and how long it took."""
    group: str | None


@dataclass(frozen=True, slots=True)
class MessageLife:
    """A message and what happened to it, in the order of time."""

    message: StoredMessage
    events: tuple[LifeEvent, ...]
    unknown: tuple[str, ...]
    """What could not be found out."""

    @property
    def groups(self) -> list[str]:
        """The groups that it reached, in the order of their first event."""
        return list(dict.fromkeys(one.group for one in self.events if one.group is not None))

    def of_group(self, group: str | None) -> list[LifeEvent]:
        """The events of one group; None: what happened before any group had it."""
        return [one for one in self.events if one.group == group]


class LifeActions(TableActions):
    """Actions on the records of one message."""

    @on_host
    async def message_life(self, msg_id: str, *, topic: str | None = None) -> MessageLife:
        """Everything that the records of a message tell, for all groups that consume its topic."""
        found = await self._message(msg_id, None if topic is None else self.long_name(topic))
        origin = await self._origin(found)
        events = _beginning(origin)
        unknown: list[str] = []
        groups = await self._groups_of(origin, found)
        places = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def look(group: str) -> list[LifeEvent]:
            async with places:
                return await self._in_group(origin, group)

        parts = await asyncio.gather(*map(look, groups[:MAX_GROUPS]), return_exceptions=True)
        for group, part in zip(groups, parts, strict=False):
            if isinstance(part, PenstockError):
                unknown.append(f"what became of it in group {group}: {part}")
            elif isinstance(part, BaseException):
                raise part
            else:
                events += part
        if len(groups) > MAX_GROUPS:
            unknown.append(f"what became of it in {len(groups) - MAX_GROUPS} more groups")
        events = join_traces(events, await self._traced(origin.msg_id))
        # The last attempt and the death may have one time.
        events.sort(key=lambda one: (one.at_ms == 0, one.at_ms, one.kind == "dead"))
        return MessageLife(self.shown([origin])[0], tuple(events), tuple(unknown))

    async def _origin(self, found: StoredMessage) -> StoredMessage:
        """The message as it was sent, if a copy of it was found."""
        wanted = found.properties.get(Property.RETRY_TOPIC) or found.properties.get(
            "DLQ_ORIGIN_TOPIC"
        )
        if not wanted or not found.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return found
        try:
            same = await self._query(wanted, found.msg_id, MAX_QUERY, 0, _END_OF_TIME, unique=True)
        except PenstockError:
            return found
        return min(same, key=lambda one: one.store_timestamp, default=found)

    async def _groups_of(self, origin: StoredMessage, found: StoredMessage) -> list[str]:
        groups = []
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if found.topic.startswith(prefix):
                groups.append(found.topic.removeprefix(prefix))
        if not origin.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            groups += map(self.long_name, await self.topic_groups(self.short_name(origin.topic)))
        return list(dict.fromkeys(groups))

    async def _in_group(self, origin: StoredMessage, group: str) -> list[LifeEvent]:
        name = self.short_name(group)
        committed = await self._committed(origin, group)
        retries, dead = await asyncio.gather(
            self._copies(retry_topic(group), origin), self._copies(dead_letter_topic(group), origin)
        )
        events: list[LifeEvent] = []
        for copy in retries:
            events.append(_retry(copy, name))
        for copy in dead:
            letter = DeadLetterRow.from_message(copy)
            reason = ": ".join(filter(None, (letter.reason_type, letter.reason))) or None
            events.append(
                LifeEvent(
                    copy.store_timestamp,
                    "dead",
                    f"died after {letter.attempts} attempt{'' if letter.attempts == 1 else 's'}",
                    name,
                    reason,
                    copy.offset_msg_id,
                )
            )
        newest = max((*retries, *dead), key=lambda one: one.store_timestamp, default=origin)
        if newest.topic.startswith(DLQ_PREFIX):
            return events
        if newest is not origin:
            committed = await self._committed(newest, group)
        if committed is not None and committed > newest.queue_offset:
            text = f"passed: the group committed {committed}"
            events.append(LifeEvent(0, "passed", text, name))
        elif newest is origin and committed is None:
            events.append(LifeEvent(0, "waiting", "no offset of the group is known", name))
        else:
            text = f"waits: the group is at {committed or 0}"
            events.append(LifeEvent(0, "waiting", text, name))
        return events

    async def _copies(self, topic: str, origin: StoredMessage) -> list[StoredMessage]:
        if await self.find_route(topic) is None:
            return []
        return await self._query(topic, origin.msg_id, MAX_QUERY, 0, _END_OF_TIME, unique=True)

    async def _committed(self, message: StoredMessage, group: str) -> int | None:
        rows = await self.group_lag(self.short_name(group), topic=self.short_name(message.topic))
        place = MessageQueue(
            self.short_name(message.topic), message.queue.broker_name, message.queue.queue_id
        )
        for row in rows:
            if MessageQueue(row.topic, row.broker_name, row.queue_id) == place:
                return row.committed
        return None

    async def _traced(self, msg_id: str) -> list[TracedCall]:
        """What clients recorded themselves; nothing if they did not."""
        try:
            records = await self._query(
                TRACE_TOPIC, msg_id, MAX_QUERY, 0, _END_OF_TIME, unique=False
            )
        except PenstockError:
            return []
        begun: dict[str, tuple[ConsumeBegun, str]] = {}
        ended: list[ConsumeEnded] = []
        for record in records:
            for trace in decode_traces(record.body):
                if isinstance(trace, ConsumeBegun) and trace.msg_id == msg_id:
                    begun[trace.request_id] = (trace, record.born_host)
                elif isinstance(trace, ConsumeEnded) and trace.msg_id == msg_id:
                    ended.append(trace)
        calls = []
        for end in ended:
            start, host = begun.get(end.request_id, (None, ""))
            group = self.short_name(start.group if start else end.group)
            where = f"at {host.rpartition(':')[0]} " if host else ""
            calls.append(
                TracedCall(
                    (start.time_ms + end.cost_ms) if start else end.time_ms,
                    end.success,
                    f"{where}in {end.cost_ms} ms (trace)",
                    group or None,
                )
            )
        return calls


def join_traces(records: list[LifeEvent], calls: list[TracedCall]) -> list[LifeEvent]:
    """The events that records tell, with what clients traced.

    A failed attempt that was traced is in both: as the call of a handler, and as the record that
    was delivered again. It is one event, at the time of the call and with the reason of the record.
    """
    events: list[LifeEvent] = []
    failures = sorted((one for one in calls if not one.success), key=lambda one: one.at_ms)
    for record in sorted(records, key=lambda one: one.at_ms):
        before = [one for one in failures if (one.group, record.kind) == (record.group, "failed")]
        before = [one for one in before if one.at_ms <= record.at_ms]
        if before:
            failures.remove(before[-1])
            text = f"{record.text}; {before[-1].how}"
            record = replace(record, at_ms=before[-1].at_ms, text=text)
        events.append(record)
    deaths = {one.group: one for one in records if one.kind == "dead"}
    for call in failures:
        death = deaths.get(call.group)
        # The last attempt has no record but the dead letter.
        reason = death.reason if death is not None and call.at_ms <= death.at_ms else None
        text = f"a handler failed {call.how}"
        events.append(LifeEvent(call.at_ms, "failed", text, call.group, reason))
    for call in calls:
        if call.success:
            events.append(LifeEvent(call.at_ms, "handled", f"handled {call.how}", call.group))
    return events


def _beginning(message: StoredMessage) -> list[LifeEvent]:
    events = [
        LifeEvent(message.born_timestamp, "sent", f"sent by {message.born_host}"),
        LifeEvent(
            message.store_timestamp,
            "stored",
            f"stored in {message.queue.broker_name}:{message.queue.queue_id} "
            f"at offset {message.queue_offset}",
            offset_msg_id=message.offset_msg_id,
        ),
    ]
    delay = message.properties.get(Property.DELAY)
    if delay is not None or Property.TIMER_OUT_MS in message.properties:
        waited = max(0, message.store_timestamp - message.born_timestamp)
        events.insert(
            1,
            LifeEvent(
                message.born_timestamp,
                "delayed",
                f"kept back for {waited / 1000:g} s"
                + (f" (delay level {delay})" if delay is not None else ""),
            ),
        )
    return events


def _retry(copy: StoredMessage, group: str) -> LifeEvent:
    said = copy.properties
    if Redrive.FROM in said and copy.reconsume_times == 0:
        edited = ", edited" if Redrive.EDITED in said else ""
        text = f"redriven{edited}: delivered to the group again"
        return LifeEvent(copy.store_timestamp, "redriven", text, group, None, copy.offset_msg_id)
    reason = ": ".join(filter(None, (said.get(Failure.TYPE), said.get(Failure.MESSAGE)))) or None
    return LifeEvent(
        copy.store_timestamp,
        "failed",
        f"attempt {copy.reconsume_times} failed; delivered again",
        group,
        reason,
        copy.offset_msg_id,
    )
