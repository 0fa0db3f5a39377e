"""Reads the messages that a page shows: newest first, with a bound on time and count."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from penstock.admin import queue_reading
from penstock.admin.blocking import Admin
from penstock.admin.queue_reading import Stretch
from penstock.console.message_filter import MessageFilter
from penstock.console.view import View
from penstock.model import MessageQueue, StoredMessage

MAX_READ = 200_000
MAX_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of a page, newest first, and how far the search got."""

    messages: tuple[StoredMessage, ...]
    read: int
    """Messages that were looked at."""
    total: int
    """Messages within the range."""
    is_complete: bool
    """Whether there is nothing older to be found."""


class _Enough(Exception):
    """The bound of a search is reached."""


async def newest(
    view: View,
    topic: str,
    wanted: MessageFilter,
    count: int,
    *,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    queue: str = "",
) -> Found:
    """The newest messages that pass, of all queues or of one."""
    return await asyncio.to_thread(
        _newest, view.blocking, topic, wanted, count, begin_ms, end_ms, queue
    )


def _newest(
    admin: Admin,
    topic: str,
    wanted: MessageFilter,
    count: int,
    begin_ms: int | None,
    end_ms: int | None,
    queue: str,
) -> Found:
    held = _range(admin, topic, begin_ms, end_ms, queue)
    total = sum(part.end - part.start for part in held.values())
    deadline = time.monotonic() + MAX_SECONDS
    read = 0
    passed: list[StoredMessage] = []

    def look(message: StoredMessage) -> bool:
        nonlocal read
        read += 1
        if read > MAX_READ or time.monotonic() > deadline:
            raise _Enough
        if not wanted(message):
            return False
        passed.append(message)
        return True

    try:
        found = queue_reading.newest(admin, held, count, look)
    except _Enough:
        passed.sort(key=lambda message: message.store_timestamp)
        return Found(tuple(reversed(passed[-count:])), read, total, False)
    return Found(tuple(reversed(found)), read, total, len(found) < count)


def _range(
    admin: Admin, topic: str, begin_ms: int | None, end_ms: int | None, queue: str
) -> dict[MessageQueue, Stretch]:
    held = queue_reading.ends(admin, topic)
    if queue:
        held = {q: part for q, part in held.items() if f"{q.broker_name}:{q.queue_id}" == queue}
    # A millisecond to either side: some brokers give the nearest message, not the next.
    if begin_ms is not None:
        first = admin.offsets_at(topic, begin_ms)
        held = {
            q: Stretch(max(part.start, first.get(q, part.start) - 1), part.end)
            for q, part in held.items()
        }
    if end_ms is not None:
        last = admin.offsets_at(topic, end_ms + 1)
        held = {
            q: Stretch(part.start, max(part.start, min(part.end, last.get(q, part.end) + 1)))
            for q, part in held.items()
        }
    return held
