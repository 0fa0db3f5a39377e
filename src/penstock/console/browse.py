"""Reads the messages that a page shows: newest first, with a bound on time and count."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.admin import queue_reading
from penstock.admin.blocking import Admin
from penstock.admin.queue_reading import Stretch
from penstock.console.message_filter import MessageFilter
from penstock.console.view import View
from penstock.model import MessageQueue, StoredMessage

MAX_READ = 200_000
MAX_SECONDS = 20.0
MAX_BYTES = 64 << 20
"""Bodies that one request holds in memory."""


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
    is_cut: bool = False
    """Whether older messages were left out because the bodies are large."""


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
    collected = queue_reading.Collected(MAX_BYTES)

    def look(message: StoredMessage) -> bool:
        nonlocal read
        read += 1
        if read > MAX_READ or time.monotonic() > deadline:
            raise _Enough
        return wanted(message)

    is_complete = True
    try:
        queue_reading.newest(admin, held, count, look, into=collected)
    except _Enough:
        is_complete = False
    found = collected.messages()[-count:]
    is_cut = collected.is_cut
    is_complete = is_complete and not is_cut and len(found) < count
    return Found(tuple(reversed(found)), read, total, is_complete, is_cut)


def within_bytes(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """The first of these messages, as many as one request may hold."""
    sizes = itertools.accumulate(len(message.body) for message in messages)
    return [
        message
        for number, (message, size) in enumerate(zip(messages, sizes, strict=True))
        if not number or size <= MAX_BYTES
    ]


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
