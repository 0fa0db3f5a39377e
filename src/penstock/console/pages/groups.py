"""Consumer groups: the list sorted by lag, and one group with the doctor's findings."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import GroupLag, QueueLag
from penstock.admin.plain_rows import client_row, lag_queue
from penstock.console.charts import Series, chart
from penstock.console.pages.listing import listed
from penstock.console.shapes import GroupJson, GroupListJson, PageOfRows
from penstock.console.visit import Visit, page
from penstock.doctor.facts import MemberFacts
from penstock.errors import GroupNotFound
from penstock.model import MessageQueue
from penstock.protocol.versions import readable_version

_SORTS = {
    "lag": lambda row: row.lag + row.retries,
    "name": lambda row: row.group,
    "retries": lambda row: row.retries,
    "behind": lambda row: -row.behind_since if row.behind_since and row.lag else 0,
}


async def groups(visit: Visit) -> Response:
    """All groups, furthest behind first; members and dead letters of the visible rows only."""
    view = visit.view
    table, names, dead = await asyncio.gather(
        view.lags(), view.attempt(view.groups()), view.attempt(view.dead_letter_groups())
    )
    known = {row.group for row in table.rows}
    # A group that has never committed anything has no row of its own.
    rows = [*table.rows, *(_empty(name) for name in names.value or () if name not in known)]
    listing = listed(visit, rows, name=lambda row: row.group, sorts=_SORTS, default="-lag")
    shown = [row.group for row in listing.rows]
    with_letters = set(dead.value or ())
    members, letters = await asyncio.gather(
        view.attempt_all(shown, view.clients),
        view.attempt_all([name for name in shown if name in with_letters], view.pending_letters),
    )

    trends = {name: view.history.slope(f"lag:{name}") for name in shown}
    for row in listing.rows:
        # From now on the lag of what is shown is noted, so that the next look knows a trend.
        view.history.watch(f"lag:{row.group}")
        view.history.add(f"lag:{row.group}", row.lag + row.retries)

    def row_json(row: GroupLag) -> GroupListJson:
        clients = members[row.group].value
        pending = letters[row.group].value if row.group in letters else 0
        return {
            "group": row.group,
            "members": None if clients is None else len(clients),
            "topics": list(row.topics),
            "lag": row.lag + row.retries,
            "retries": row.retries,
            "in_flight": row.in_flight,
            "behind_since_ms": row.behind_since if row.lag and row.behind_since else None,
            "dead_letters": pending,
        }

    return visit.answer(
        "groups.html",
        lambda: listing.as_json(row_json),
        listing=listing,
        members=members,
        letters=letters,
        trends=trends,
        silent=sorted(table.silent),
    )


def _empty(name: str) -> GroupLag:
    return GroupLag(name, (), 0, 0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of a group with the member that holds it."""

    lag: QueueLag
    owner: str | None


async def group(visit: Visit) -> Response:
    """One group: why it receives nothing, how far it is behind, who its members are."""
    name, view = visit.name("group"), visit.view
    known = await view.attempt(view.has_group(name))
    if known.value is False:
        near = difflib.get_close_matches(name, await view.groups(), n=1)
        raise GroupNotFound(
            f"there is no consumer group {name!r}",
            hint=f"did you mean {near[0]}?" if near else None,
        )
    lag, report, clients, letters = await asyncio.gather(
        view.attempt(view.group_lag(name)),
        view.attempt(view.examine(name)),
        view.attempt(view.clients(name)),
        view.attempt(view.pending_letters(name)),
    )
    row = lag.value.rows[0] if lag.value is not None and lag.value.rows else None
    owners: dict[tuple[str, str, int], str] = {}
    if report.value is not None:
        for member in report.value.facts.members:
            for queue in member.queues or ():
                owners[queue.topic, queue.broker_name, queue.queue_id] = member.client_id
    queues = [
        QueueRow(one, owners.get((one.topic, one.broker_name, one.queue_id)))
        for one in sorted(row.queues if row else (), key=lambda one: -one.lag)
    ]
    points = view.history.points(f"lag:{name}")

    def as_json() -> GroupJson:
        holders = {MessageQueue(*place): [owner] for place, owner in owners.items()}
        return {
            "group": name,
            "lag": None if row is None else row.lag + row.retries,
            "retries": None if row is None else row.retries,
            "in_flight": None if row is None else row.in_flight,
            "dead_letters": letters.value,
            "queues": [lag_queue(one.lag, holders) for one in queues],
            "members": None if clients.value is None else [client_row(c) for c in clients.value],
            "doctor": None if report.value is None else report.value.as_dict(),
        }

    return visit.answer(
        "group.html",
        as_json,
        group=name,
        row=row,
        lag=lag,
        queues=queues,
        report=report,
        members=report.value.facts.members if report.value else (),
        streams=report.value.facts.streams if report.value else (),
        clients=clients,
        letters=letters,
        subscriptions=_subscriptions(report.value.facts.members if report.value else ()),
        lag_chart=chart([Series("lag", points)], visit.times),
        readable_version=readable_version,
        silent=sorted(lag.value.silent) if lag.value else [],
    )


def _subscriptions(members: Iterable[MemberFacts]) -> list[tuple[str, str]]:
    found = {
        (one.topic, one.expression)
        for member in members
        for one in member.subscriptions or ()
        if not one.topic.startswith("%RETRY%")
    }
    return sorted(found)


ROUTES = [
    Route("/groups", page(groups, PageOfRows[GroupListJson])),
    Route("/groups/{group}", page(group, GroupJson)),
]
