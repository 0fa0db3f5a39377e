"""Brokers: what each one reports about itself, and its settings."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin.plain_rows import BrokerJson, broker_row
from penstock.admin.reports import BrokerAddress
from penstock.console.shapes import BrokerPageJson, Rows
from penstock.console.visit import Visit, page
from penstock.errors import NotFound

_SECRET_WORDS = ("password", "secret", "credential", "accesskey", "token")


async def brokers(visit: Visit) -> Response:
    """All brokers of the cluster."""
    rows = await visit.view.cluster()
    masters = [row.broker_name for row in rows if row.broker_id == 0]
    infos = await visit.view.attempt_all(masters, visit.view.broker_info)

    def row_json(row: BrokerAddress) -> BrokerJson:
        answer = infos.get(row.broker_name) if row.broker_id == 0 else None
        if answer is None:
            return broker_row(row, {})
        return broker_row(row, answer.value or {}, answer.error)

    return visit.answer(
        "brokers.html",
        lambda: Rows[BrokerJson](rows=[row_json(row) for row in rows]),
        rows=rows,
        infos=infos,
        silent=sorted(name for name, answer in infos.items() if not answer.is_known),
    )


async def broker(visit: Visit) -> Response:
    """One broker: runtime information and settings."""
    name, view = visit.name("broker"), visit.view
    rows = [row for row in await view.cluster() if row.broker_name == name]
    if not rows:
        raise NotFound(f"there is no broker {name!r}")
    info, settings = await asyncio.gather(
        view.attempt(view.broker_info(name)), view.attempt(view.broker_config(name))
    )
    shown = {
        key: "(set)" if value and any(w in key.lower() for w in _SECRET_WORDS) else value
        for key, value in sorted((settings.value or {}).items())
    }
    return visit.answer(
        "broker.html",
        lambda: BrokerPageJson(
            broker=name,
            addresses=[row.address for row in rows],
            info=info.value,
            settings=shown if settings.is_known else None,
        ),
        name=name,
        rows=rows,
        info=info,
        settings=settings,
        shown=shown,
    )


ROUTES = [
    Route("/brokers", page(brokers, Rows[BrokerJson])),
    Route("/brokers/{broker}", page(broker, BrokerPageJson)),
]
