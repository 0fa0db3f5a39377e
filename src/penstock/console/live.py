"""Numbers that move by themselves: one stream of server-sent events for each tab.

    GET /c/local/live?watch=lag:billing,chart:lag:billing,in

Every two seconds the values that changed are sent as one JSON object. They are values, so a tab
that reconnects needs nothing of what it missed. A hidden tab closes its stream. A browser with many
tabs keeps a few streams (`streams`); the other tabs ask every ten seconds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.console.charts import Series, chart
from penstock.console.streams import ENDED, ended_within
from penstock.console.templating import number, rate
from penstock.console.view import page_deadline
from penstock.console.visit import Visit, page
from penstock.errors import PenstockError

STEP_SECONDS = 2.0
MAX_WATCHED = 100
MAX_SINGLE = 5


async def value_of(visit: Visit, name: str, *, from_table: bool = False) -> str | None:
    """The text of a watched value; None for an unknown name or value.

    With ``from_table`` the lag of a group is looked up in the table of all groups.
    """
    view = visit.view
    kind, _, rest = name.partition(":")
    try:
        if kind in ("in", "out"):
            came, went = await view.rates()
            return rate(came if kind == "in" else went)
        if kind == "lag" and rest:
            table = await (view.lags() if from_table else view.group_lag(rest))
            return number(sum(row.lag + row.retries for row in table.rows if row.group == rest))
        if kind == "total" and rest == "lag":
            return number(sum(row.lag + row.retries for row in (await view.lags()).rows))
        if kind == "dead" and rest:
            return number(await view.pending_letters(rest))
        if kind == "chart":
            return await _chart(visit, rest)
    except PenstockError:
        return "?"
    return None


async def _chart(visit: Visit, name: str) -> str | None:
    history = visit.view.history
    if name == "rates":
        await visit.view.rates()
        lines = [Series("in", history.points("in")), Series("out", history.points("out"))]
        return str(chart(lines, visit.times, unit="/s"))
    if name.startswith("lag:"):
        await visit.view.group_lag(name.removeprefix("lag:"))
        return str(chart([Series("lag", history.points(name))], visit.times))
    return None


async def live(visit: Visit) -> Response:
    """The stream of a tab; with ``once=1`` the values of now."""
    streams = visit.console.streams
    names = [name for name in visit.query("watch").split(",") if name][:MAX_WATCHED]
    if visit.query("once"):
        return JSONResponse(await _values(visit, names))
    if streams.is_full:
        return Response("too many open streams\n", 503)

    async def events() -> AsyncIterator[str]:
        page_deadline.set(None)
        shown: dict[str, str] = {}
        with streams.opened(visit.session.key) as ended:
            yield "retry: 5000\n\n"
            while not ended.is_set() and visit.is_welcome:
                values = await _values(visit, names)
                changed = {name: text for name, text in values.items() if shown.get(name) != text}
                shown |= changed
                yield f"data: {json.dumps(changed)}\n\n" if changed else ": no change\n\n"
                await ended_within(ended, STEP_SECONDS)
            yield ENDED

    return StreamingResponse(events(), media_type="text/event-stream")


async def _values(visit: Visit, names: list[str]) -> dict[str, str]:
    # A list of groups is one question about all of them, not one about each.
    from_table = sum(name.startswith("lag:") for name in names) > MAX_SINGLE
    values = {name: await value_of(visit, name, from_table=from_table) for name in names}
    return {name: value for name, value in values.items() if value is not None}


ROUTES = [Route("/live", page(live))]
