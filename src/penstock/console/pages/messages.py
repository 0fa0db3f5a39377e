"""Messages of a topic: by time, tag, key, text and condition; exported, and followed live."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.console import bodies, browse, templating
from penstock.console.message_filter import MessageFilter
from penstock.console.shapes import MessagesJson
from penstock.console.streams import ENDED, ended_within
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.message_json import MessageJson, message_json

ROWS = 50
MAX_ROWS = 500
MAX_EXPORT = 10_000
TAIL_STEP_SECONDS = 0.5
TAIL_ROWS_A_SECOND = 50


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for."""

    topic: str
    wanted: MessageFilter
    begin_ms: int | None
    end_ms: int | None
    skip: int
    """Messages of the last millisecond that an earlier page has shown."""
    queue: str
    key: str
    offset: int | None


def _question(visit: Visit) -> Question:
    begin, end = (
        visit.moment_ms(visit.query("from"), "from"),
        visit.moment_ms(visit.query("to"), "to"),
    )
    upto = visit.query("upto")
    if upto.isascii() and upto.isdigit() and len(upto) < 15:
        end = int(upto)
    offset = visit.query("offset")
    wanted = MessageFilter(
        tag=visit.query("tag"),
        key=visit.query("key"),
        text=visit.query("text"),
        where=visit.query("where"),
        begin_ms=begin,
        end_ms=end,
    )
    return Question(
        visit.name("topic"),
        wanted,
        begin,
        end,
        visit.count("skip", 0, most=MAX_ROWS),
        visit.query("queue"),
        visit.query("key"),
        int(offset) if offset.isascii() and offset.isdigit() and len(offset) < 19 else None,
    )


async def _find(visit: Visit, asked: Question, count: int) -> browse.Found:
    if asked.key:
        # The key index finds them without reading the queues.
        same = await visit.view.admin.query(asked.topic, asked.key, count=count)
        keyed = [one for one in reversed(same) if asked.wanted(one)]
        return browse.Found(tuple(keyed[:count]), len(same), len(same), True)
    if asked.offset is not None and asked.queue:
        broker, _, number = asked.queue.rpartition(":")
        if not number.isdigit():
            raise InvalidArgument(f"queue {asked.queue!r}", expected="BROKER:ID")
        queue = MessageQueue(asked.topic, broker, int(number))
        part = await visit.view.admin.messages(queue, asked.offset, count=count)
        read = [one for one in part.messages if asked.wanted(one)]
        left = max(0, part.max_offset - asked.offset)
        return browse.Found(tuple(read[:count]), len(part.messages), left, True)
    found = await browse.newest(
        visit.view,
        asked.topic,
        asked.wanted,
        count + asked.skip,
        begin_ms=asked.begin_ms,
        end_ms=asked.end_ms,
        queue=asked.queue,
    )
    if not asked.skip:
        return found
    rest = list(found.messages)
    newer = [one for one in rest[: asked.skip] if one.store_timestamp == asked.end_ms]
    return browse.Found(tuple(rest[len(newer) :]), found.read, found.total, found.is_complete)


async def messages(visit: Visit) -> Response:
    """The messages that the address asks for, newest first."""
    asked = _question(visit)
    count = visit.count("n", ROWS, most=MAX_ROWS)
    found = await _find(visit, asked, count)
    stats = await visit.view.attempt(visit.view.topic_stats(asked.topic))
    shown = found.messages[:count]
    older = None
    if not found.is_complete and shown:
        last = shown[-1].store_timestamp
        skip = sum(1 for one in shown if one.store_timestamp == last)
        skip += asked.skip if last == asked.end_ms else 0
        older = visit.here(upto=last, skip=skip)

    def as_json() -> MessagesJson:
        return {
            "rows": [message_json(one, hide_body=visit.options.hide_bodies) for one in shown],
            "read": found.read,
            "total": found.total,
            "complete": found.is_complete,
            "older": older,
        }

    return visit.answer(
        "messages.html",
        as_json,
        topic=asked.topic,
        asked=asked,
        found=found,
        shown=shown,
        line=_line(visit),
        older=older,
        queues=[f"{row.broker_name}:{row.queue_id}" for row in stats.value or ()],
        is_open=asked.wanted.is_open,
    )


def _line(visit: Visit) -> Callable[[StoredMessage], str]:
    return lambda message: "" if visit.options.hide_bodies else bodies.line(message.body)


async def export(visit: Visit) -> Response:
    """The rows of the page as a file."""
    asked = _question(visit)
    found = await _find(visit, asked, visit.count("n", MAX_EXPORT, most=MAX_EXPORT))
    rows = [message_json(one, hide_body=visit.options.hide_bodies) for one in found.messages]
    if visit.query("format") == "csv":
        text, kind = _csv(rows), "csv"
    else:
        text, kind = "".join(json.dumps(row) + "\n" for row in rows), "jsonl"
    visit.record("export", asked.topic, rows=len(rows), format=kind)
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in asked.topic)
    return Response(
        text,
        media_type="text/csv" if kind == "csv" else "application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="{name}.{kind}"'},
    )


def _csv(rows: Iterable[MessageJson]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    columns = ("store_timestamp", "broker", "queue_id", "queue_offset", "msg_id", "tags", "keys")
    writer.writerow([*columns, "body"])
    for row in rows:
        values: dict[str, object] = {**row, "keys": " ".join(row["keys"])}
        writer.writerow([_cell(values[name]) for name in (*columns, "body")])
    return text.getvalue()


def _cell(value: object) -> object:
    """A cell that a spreadsheet takes as text: one that begins like a formula gets a quote."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


async def tail(visit: Visit) -> Response:
    """New messages as they come, as rows of the table: at most 50 a second."""
    asked = _question(visit)
    admin = visit.view.admin

    streams = visit.console.streams
    if streams.is_full:
        return Response("too many open streams\n", 503)

    async def events() -> AsyncIterator[str]:
        position: dict[tuple[str, int], int] | None = None
        with streams.opened(visit.session.key) as ended:
            yield "retry: 3000\n\n"
            while not ended.is_set():
                try:
                    rows = await admin.topic_stats(asked.topic)
                except PenstockError:
                    await ended_within(ended, TAIL_STEP_SECONDS * 4)
                    continue
                ends = {(row.broker_name, row.queue_id): row.max_offset for row in rows}
                if position is not None:
                    found, skipped = await _grown(visit, asked, position, ends)
                    if found or skipped:
                        yield f"data: {json.dumps(_tail_rows(visit, asked, found, skipped))}\n\n"
                position = ends
                await ended_within(ended, TAIL_STEP_SECONDS)
            yield ENDED

    return StreamingResponse(events(), media_type="text/event-stream")


async def _grown(
    visit: Visit,
    asked: Question,
    position: dict[tuple[str, int], int],
    ends: dict[tuple[str, int], int],
) -> tuple[list[StoredMessage], int]:
    most = int(TAIL_ROWS_A_SECOND * TAIL_STEP_SECONDS)
    found: list[StoredMessage] = []
    skipped = 0
    for (broker, number), end in ends.items():
        start = min(position.get((broker, number), 0), end)
        if start == end:
            continue
        first = max(start, end - most)
        skipped += first - start
        queue = MessageQueue(asked.topic, broker, number)
        try:
            part = await visit.view.admin.messages(queue, first, count=end - first)
        except PenstockError:
            continue
        found += (one for one in part.messages if asked.wanted(one))
    found.sort(key=lambda one: one.store_timestamp)
    return found[-most:], skipped + max(0, len(found) - most)


def _tail_rows(
    visit: Visit, asked: Question, found: list[StoredMessage], skipped: int
) -> dict[str, object]:
    html = templating.render(
        "message_rows.html",
        {
            "shown": list(reversed(found)),
            "line": _line(visit),
            "times": visit.times,
            "at": visit.at,
            "topic": asked.topic,
        },
    )
    return {"html": html, "skipped": skipped}


ROUTES = [
    Route("/topics/{topic}/messages", page(messages, MessagesJson)),
    Route("/topics/{topic}/messages/tail", page(tail)),
]
EXPORTS = [Route("/topics/{topic}/messages/export", page(export))]
