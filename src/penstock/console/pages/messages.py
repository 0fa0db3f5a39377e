"""Messages of a topic: by time, tag, key, text and condition; exported, and followed live."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.console import bodies, browse, templating
from penstock.console.message_filter import MessageFilter, reads_body
from penstock.console.shapes import MessagesJson
from penstock.console.streams import ENDED, ended_within
from penstock.console.visit import Visit, file_name, page
from penstock.errors import InvalidArgument, PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.message_json import MessageJson, message_json

ROWS = 50
MAX_ROWS = 500
MAX_EXPORT = 10_000
MAX_KEYED = 500
"""Messages with one key that each broker gives: it sends them in one answer."""
EXPORTED_AT_ONCE = 10
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
    if visit.options.hide_bodies:
        _refuse_looking_inside(visit)
    wanted = MessageFilter(
        tag=visit.query("tag"),
        key=visit.query("key"),
        text=visit.query("text"),
        where=visit.query("where"),
        begin_ms=begin,
        end_ms=end,
        hide_body=visit.options.hide_bodies,
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


def _refuse_looking_inside(visit: Visit) -> None:
    """Bodies that are hidden must not be guessed, either, part by part."""
    if visit.query("text") or reads_body(visit.query("where")):
        raise InvalidArgument(
            "a search in bodies, which are not shown here (--hide-bodies)",
            expected="a tag, a key, or a condition without fields of the body ($name)",
        )


async def _find(visit: Visit, asked: Question, count: int) -> browse.Found:
    if asked.key:
        # The key index finds them without reading the queues.
        same = await visit.view.admin.query(asked.topic, asked.key, count=min(count, MAX_KEYED))
        keyed = [one for one in reversed(same) if asked.wanted(one)][:count]
        kept = browse.within_bytes(keyed)
        is_cut = len(kept) < len(keyed)
        return browse.Found(tuple(kept), len(same), len(same), not is_cut, is_cut)
    if asked.offset is not None and asked.queue:
        broker, _, number = asked.queue.rpartition(":")
        if not number.isdigit():
            raise InvalidArgument(f"queue {asked.queue!r}", expected="BROKER:ID")
        queue = MessageQueue(asked.topic, broker, int(number))
        part = await visit.view.admin.messages(
            queue, asked.offset, count=count, max_bytes=browse.MAX_BYTES
        )
        read = [one for one in part.messages if asked.wanted(one)]
        left = max(0, part.max_offset - asked.offset)
        is_cut = len(part.messages) < min(count, left) and part.next_offset < part.max_offset
        return browse.Found(tuple(read[:count]), len(part.messages), left, True, is_cut)
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
    return dataclasses.replace(found, messages=tuple(rest[len(newer) :]))


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
            "cut": found.is_cut,
            "older": older,
        }

    return visit.answer(
        "messages.html",
        as_json,
        topic=asked.topic,
        asked=asked,
        found=found,
        shown=shown,
        max_bytes=browse.MAX_BYTES,
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
    hide, count = visit.options.hide_bodies, len(found.messages)
    rows = (message_json(one, hide_body=hide) for one in found.messages)
    kind = "csv" if visit.query("format") == "csv" else "jsonl"
    cut = {"cut_at_bytes": browse.MAX_BYTES} if found.is_cut else {}
    visit.record("export", asked.topic, rows=count, format=kind, **cut)
    # Who opens the file later sees by its name that there was more.
    name = file_name(asked.topic) + (f"-only-{count}-for-their-size" if found.is_cut else "")
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    if found.is_cut:
        headers["x-partial"] = f"{count} messages, at most {browse.MAX_BYTES} bytes of bodies"
    # The text of all rows would be as large again as the bodies are.
    return StreamingResponse(
        _csv(rows) if kind == "csv" else _json_lines(rows),
        media_type="text/csv" if kind == "csv" else "application/x-ndjson",
        headers=headers,
    )


def _json_lines(rows: Iterable[MessageJson]) -> Iterator[str]:
    rest = iter(rows)
    while text := "".join(
        json.dumps(row) + "\n" for row in itertools.islice(rest, EXPORTED_AT_ONCE)
    ):
        yield text


def _csv(rows: Iterable[MessageJson]) -> Iterator[str]:
    columns = ("store_timestamp", "broker", "queue_id", "queue_offset", "msg_id", "tags", "keys")
    head: Iterable[list[object]] = [[*columns, "body"]]
    lines = itertools.chain(head, (_cells(row, columns) for row in rows))
    while some := list(itertools.islice(lines, EXPORTED_AT_ONCE)):
        text = io.StringIO()
        csv.writer(text).writerows(some)
        yield text.getvalue()


def _cells(row: MessageJson, columns: Sequence[str]) -> list[object]:
    values: dict[str, object] = {**row, "keys": " ".join(row["keys"])}
    return [_cell(values[name]) for name in (*columns, "body")]


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
            while not ended.is_set() and visit.is_welcome:
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
