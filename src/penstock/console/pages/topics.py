"""Topics: the list, and one topic with its queues, groups and settings."""

from __future__ import annotations

import asyncio
import difflib

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import TopicRow
from penstock.console.pages.listing import listed
from penstock.console.visit import Visit, page
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.model.names import READ, WRITE

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
    return visit.render(
        "topics.html",
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
    return visit.render(
        "topic.html",
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
    await visit.view.admin.create_topic(name, int(text))
    visit.record("create topic", name, queues=int(text))
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
    visit.record("delete topic", name)
    visit.view.forget("topics", "stats")
    return visit.go("topics")


ROUTES = [Route("/topics", page(topics)), Route("/topics/{topic}", page(topic))]
CHANGES = [
    Route("/topics/new", page(create), methods=["POST"]),
    Route("/topics/{topic}/delete", page(delete), methods=["POST"]),
]
