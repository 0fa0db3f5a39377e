"""Clients: producers and consumers that are connected; what one consumer does right now."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin.plain_rows import client_row
from penstock.console.pages.listing import MAX_ROWS
from penstock.console.shapes import ClientsJson, MemberJson
from penstock.console.visit import Visit, page
from penstock.protocol.versions import readable_version


async def clients(visit: Visit) -> Response:
    """Everything that is connected, as far as brokers list it."""
    view = visit.view
    producers, groups = await asyncio.gather(
        view.attempt(view.producers()),
        view.attempt(view.groups()),
    )
    names = (groups.value or [])[:MAX_ROWS]
    members = await view.attempt_all(names, view.clients)
    consumers = [
        (group, client) for group, answer in members.items() for client in answer.value or ()
    ]

    def as_json() -> ClientsJson:
        connected = producers.value.rows if producers.value else ()
        return {
            "consumers": [{"group": group, **client_row(one)} for group, one in consumers],
            "producers": [{"group": group, **client_row(one)} for group, one in connected],
        }

    return visit.answer(
        "clients.html",
        as_json,
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

    def as_json() -> MemberJson:
        return {
            "group": group,
            "client_id": client_id,
            "properties": info.properties,
            "queues": [
                {
                    "queue": str(queue),
                    "committed": state.commit_offset,
                    "cached": state.cached_count,
                    "last_pull_ms": state.last_pull_timestamp or None,
                    "last_consumed_ms": state.last_consume_timestamp or None,
                }
                for queue, state in info.mq_table.items()
            ],
            "stacks": info.stack_trace,
        }

    return visit.answer("member.html", as_json, group=group, client_id=client_id, info=info)


ROUTES = [
    Route("/clients", page(clients, ClientsJson)),
    Route("/groups/{group}/members/{client}", page(member, MemberJson)),
]
