"""Topics: the list, and one topic with its queues, groups and settings."""

from __future__ import annotations

import asyncio
import difflib

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import TopicRow
from penstock.admin.plain_rows import topic_queue, topic_summary
from penstock.console.pages.listing import listed
from penstock.console.shapes import Done, PageOfRows, TopicJson, TopicListJson
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.model.names import READ, WRITE
from penstock.protocol.permissions import permission_text

_SORTS = {
    "name": lambda row: row.name,
    "queues": lambda row: row.read_queues,
    "kind": lambda row: row.kind,
}


async def topics(visit: Visit) -> Response:
    """All topics; numbers of the visible rows only."""
    table = await visit.view.topics()
    internal = visit.query("internal") == "1"
    rows = [row for row in table.rows if internal or not row.kind]
    listing = listed(visit, rows, name=lambda row: row.name, sorts=_SORTS, default="name")
    names = [row.name for row in listing.rows]
    stats = await visit.view.attempt_all(names, visit.view.topic_stats)

    def row_json(row: TopicRow) -> TopicListJson:
        summary = topic_summary(row.name, stats[row.name].value)
        return {**summary, "kind": row.kind, "message_type": row.message_type.upper() or None}

    return visit.answer(
        "topics.html",
        lambda: listing.as_json(row_json),
        listing=listing,
        stats=stats,
        internal=internal,
        hidden=len(table.rows) - len(rows),
        silent=sorted(table.silent),
    )


async def topic(visit: Visit) -> Response:
    """One topic."""
    name, view = visit.name("topic"), visit.view
    row = await _row(visit, name)
    stats, groups, lags = await asyncio.gather(
        view.attempt(view.topic_stats(name)),
        view.attempt(view.topic_groups(name)),
        view.attempt(view.lags()),
    )
    by_group = {}
    if lags.value is not None:
        by_group = {
            one.group: sum(queue.lag for queue in one.queues if queue.topic == name)
            for one in lags.value.rows
        }

    def as_json() -> TopicJson:
        return {
            "topic": name,
            "kind": row.kind,
            "message_type": row.message_type.upper() or None,
            "permission": permission_text(row.permission),
            "queues": None if stats.value is None else [topic_queue(one) for one in stats.value],
            "groups": groups.value,
            "lag_by_group": {one: by_group[one] for one in groups.value or () if one in by_group},
        }

    return visit.answer(
        "topic.html",
        as_json,
        topic=row,
        stats=stats,
        groups=groups,
        lag_by_group=by_group,
        can_read=bool(row.permission & READ),
        can_write=bool(row.permission & WRITE),
    )


async def _row(visit: Visit, name: str) -> TopicRow:
    found = await visit.view.find_topic(name)
    if found is not None:
        return found
    known = [row.name for row in (await visit.view.topics()).rows]
    near = difflib.get_close_matches(name, known, n=1)
    raise TopicNotFound(
        f"there is no topic {name!r}",
        hint=f"did you mean {near[0]}?"
        if near
        else f"penstock topic create {name}{visit.command_options}",
    )


async def create(visit: Visit) -> Response:
    """Make a topic."""
    form = await visit.form()
    name = form.get("topic", [""])[0].strip()
    text = form.get("queues", ["8"])[0].strip()
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise InvalidArgument(f"{text!r} queues", expected="a number such as 8")
    known = await visit.view.find_topic(name)
    before = None if known is None else {"queues": known.read_queues}
    await visit.view.admin.create_topic(name, int(text))
    visit.record("create topic", name, before=before, after={"queues": int(text)})
    visit.view.forget("topics", "stats")
    return visit.go("topics", name)


async def delete(visit: Visit) -> Response:
    """Delete a topic, if its name was typed."""
    name = visit.name("topic")
    form = await visit.form()
    if form.get("name", [""])[0].strip() != name:
        raise InvalidArgument(
            f"topic {name!r} was not deleted", expected="its name, typed into the field"
        )
    await visit.view.admin.delete_topic(name)
    visit.record("delete topic", name, before="present", after="deleted")
    visit.view.forget("topics", "stats")
    return visit.go("topics")


ROUTES = [
    Route("/topics", page(topics, PageOfRows[TopicListJson])),
    Route("/topics/{topic}", page(topic, TopicJson)),
]
CHANGES = [
    Route("/topics/new", page(create, Done), methods=["POST"]),
    Route("/topics/{topic}/delete", page(delete, Done), methods=["POST"]),
]
