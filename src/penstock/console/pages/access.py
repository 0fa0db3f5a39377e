"""Users and their rights, on brokers with authentication: ours, and Apache's from 5.3 on."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin.plain_rows import right_row, user_row
from penstock.console.shapes import AccessJson
from penstock.console.visit import Visit, page


async def access(visit: Visit) -> Response:
    """Who may do what; a broker never tells secrets."""
    users, rights = await visit.view.users(), await visit.view.rights()
    rows = [user_row(user, rights) for user in users]
    entries = [right_row(right) for right in rights]
    return visit.answer(
        "access.html",
        lambda: AccessJson(users=rows, rights=entries),
        users=sorted(rows, key=lambda row: row["name"]),
        rights=sorted(entries, key=lambda row: (row["user"], row["resource"])),
    )


ROUTES = [Route("/access", page(access, AccessJson))]
