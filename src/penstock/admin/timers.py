"""Timer messages that wait for their time."""

from __future__ import annotations

from penstock.admin.cluster_requests import on_host
from penstock.admin.messages import MessageActions
from penstock.admin.reports import WaitingTimer
from penstock.client import requests
from penstock.errors import RequestRefused, TopicNotFound
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import TIMER_TOPIC, Property
from penstock.protocol.recall_handles import decode_handle, encode_handle

_PORTION = 1000
_MAX_DIGITS = 18


class TimerActions(MessageActions):
    """Actions on timer messages."""

    @on_host
    async def timers(self, topic: str | None = None) -> list[WaitingTimer]:
        """The timer messages that wait, of one topic or of all, the first to be due first.

        All that was parked within the last days is read, so this takes its time with millions.
        """
        wanted = None if topic is None else self.long_name(topic)
        masters = await self.masters()
        rows: list[WaitingTimer] = []
        for name, address in masters.items():
            rows += await self._waiting(name, address, wanted)
        return sorted(rows, key=lambda row: (row.due_ms, row.stored_ms, row.msg_id))

    @on_host
    async def recall_timer(self, topic: str, handle: str) -> str:
        """Take a timer message back by its recall handle; return its unique id."""
        named = decode_handle(handle)
        address = (await self.masters([named.broker_name]))[named.broker_name]
        return await self.call(address, requests.recall(self.long_name(topic), handle, ""))

    async def _waiting(self, name: str, address: str, topic: str | None) -> list[WaitingTimer]:
        found: dict[tuple[str, str], WaitingTimer] = {}
        recalled: set[tuple[str, str]] = set()
        queue, offset, now = MessageQueue(TIMER_TOPIC, name, 0), 0, self.session.clock.time_ms()
        while True:
            try:
                part = await self._read(address, queue, offset, _PORTION)
            except (TopicNotFound, RequestRefused):
                return []  # Release 4.9 has no timers.
            for message in part.messages:
                real = message.properties.get(Property.REAL_TOPIC, "")
                deleted = message.properties.get(Property.TIMER_DELETE_KEY)
                if topic not in (None, real) or not self.is_ours(real):
                    continue
                if deleted is not None:
                    recalled.add((real, deleted.removeprefix(f"{real}+")))
                    continue
                slot = _number(message.properties.get(Property.TIMER_OUT_MS, ""))
                if slot is not None and slot >= now - 1000:
                    # A message that waits long is parked again on its way: the last copy counts.
                    found[real, message.msg_id] = self._report(message, real, name, slot)
            if part.next_offset <= offset or part.next_offset >= part.max_offset:
                break
            offset = part.next_offset
        return [row for key, row in found.items() if key not in recalled]

    def _report(self, message: StoredMessage, topic: str, broker: str, slot: int) -> WaitingTimer:
        return WaitingTimer(
            msg_id=message.msg_id,
            topic=self.short_name(topic),
            queue_id=_number(message.properties.get(Property.REAL_QUEUE_ID, "")) or 0,
            broker_name=broker,
            due_ms=_due(message, slot),
            stored_ms=message.store_timestamp,
            keys=message.keys,
            recall_handle=encode_handle(topic, broker, slot + 1, message.msg_id),
        )


def _due(message: StoredMessage, slot_ms: int) -> int:
    """When the broker delivers it: as it was asked for, or right after its slot."""
    asked = _number(message.properties.get(Property.TIMER_DELIVER_MS, ""))
    return slot_ms + 1000 if asked is None else max(asked, slot_ms)


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None
