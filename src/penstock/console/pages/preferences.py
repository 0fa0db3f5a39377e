"""What a browser prefers: theme and time zone, kept in cookies; and the log of changes."""

from __future__ import annotations

import zoneinfo
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console.security import set_cookie
from penstock.console.shapes import Rows
from penstock.console.visit import THEMES, Visit, page
from penstock.errors import InvalidArgument

_YEAR_SECONDS = 365 * 86400


async def preferences(visit: Visit) -> Response:
    """The form of theme and zone."""
    zones = sorted(zoneinfo.available_timezones())
    return visit.render("preferences.html", themes=THEMES, zones=zones)


async def save(visit: Visit) -> Response:
    """Keep theme and zone, and go back to the page the browser came from."""
    form = await visit.form(is_change=False)
    back = urlsplit(form.get("back", [""])[0])
    path = back.path if back.path.startswith(visit.at()) else visit.at("settings")
    response = RedirectResponse(f"{path}?{back.query}" if back.query else path, 303)
    theme, zone = form.get("theme", [""])[0], form.get("zone", [""])[0]
    if theme and theme not in THEMES:
        raise InvalidArgument(f"theme {theme!r}", expected=f"one of {', '.join(THEMES)}")
    if zone and zone not in zoneinfo.available_timezones():
        raise InvalidArgument(f"time zone {zone!r}", expected="a name such as Europe/Berlin")
    keys = form.get("keys", [""])[0]
    if keys not in ("", "on", "off"):
        raise InvalidArgument(f"keys {keys!r}", expected="on or off")
    for name, value in (("theme", theme), ("zone", zone), ("keys", keys)):
        if name in form:
            set_cookie(
                response,
                name,
                value,
                path=visit.options.base_path or "/",
                secure=visit.request.url.scheme == "https",
                seconds=_YEAR_SECONDS,
            )
    return response


async def audit(visit: Visit) -> Response:
    """The newest changes that were made through this console."""
    own = visit.user
    entries = [
        one
        for one in visit.console.audit.newest
        # With a login, each user sees what was done in their own name.
        if one.get("context") == visit.context and (not own or one.get("user") == own)
    ]
    return visit.answer(
        "audit.html", lambda: Rows[dict[str, Any]](rows=[*entries]), entries=entries
    )


ROUTES = [
    Route("/settings", page(preferences)),
    # A preference changes nothing of the cluster, so it is there with --read-only, too.
    Route("/settings/save", page(save), methods=["POST"]),
    Route("/audit", page(audit, Rows[dict[str, Any]])),
]
