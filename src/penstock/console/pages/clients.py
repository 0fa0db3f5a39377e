"""Clients: producers and consumers that are connected; what one consumer does right now."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.routing import Route

from penstock.console.pages.listing import MAX_ROWS
from penstock.console.visit import Visit, page
from penstock.protocol.versions import readable_version


async def clients(visit: Visit) -> Response:
    """Everything that is connected, as far as brokers list it."""
    view = visit.view
    producers, groups = await asyncio.gather(
        view.attempt(view.get(("producers",), 5.0, view.admin.all_producers)),
        view.attempt(view.groups()),
    )
    names = (groups.value or [])[:MAX_ROWS]
    members = await view.attempt_all(names, view.clients)
    consumers = [
        (group, client) for group, answer in members.items() for client in answer.value or ()
    ]
    return visit.render(
        "clients.html",
        producers=producers,
        consumers=consumers,
        groups=groups,
        left_out=max(0, len(groups.value or ()) - MAX_ROWS),
        unknown=sorted(group for group, answer in members.items() if not answer.is_known),
        readable_version=readable_version,
        silent=sorted(producers.value.silent) if producers.value else [],
    )


async def member(visit: Visit) -> Response:
    """What one consumer reports about itself, with its stacks."""
    group, client_id = visit.name("group"), visit.name("client")
    info = await visit.view.admin.running_info(group, client_id, stacks=True)
    return visit.render("member.html", group=group, client_id=client_id, info=info)


ROUTES = [
    Route("/clients", page(clients)),
    Route("/groups/{group}/members/{client}", page(member)),
]
