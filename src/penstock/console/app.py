"""The application: routes, the guard before them, and what happens where no page fits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.console.api import api_routes, problem
from penstock.console.audit import Audit
from penstock.console.options import ConsoleOptions
from penstock.console.pages import PAGES
from penstock.console.pages.login import LOGIN_ROUTES
from penstock.console.security import Guard
from penstock.console.visit import Console, Visit, visit_error
from penstock.errors import NotFound, PenstockError

log = logging.getLogger(__name__)

TIDY_SECONDS = 30.0
STATIC = Path(__file__).with_name("static")


def make_app(options: ConsoleOptions) -> Starlette:
    """The console as an ASGI application; close ``app.state.console`` at the end."""
    console = Console(options, audit=Audit(options.audit_file))
    pages: list[BaseRoute] = []
    for family in PAGES:
        pages += family.ROUTES
        if not options.no_export:
            pages += getattr(family, "EXPORTS", [])
        if not options.read_only:
            pages += getattr(family, "CHANGES", [])
    routes: list[BaseRoute] = [
        Route("/", _first_page),
        Mount("/static", _Static(directory=STATIC)),
        *(LOGIN_ROUTES if options.asking else []),
        Mount("/c/{context}", routes=pages),
        *api_routes(pages),
    ]
    if options.base_path:
        routes = [Mount(options.base_path, routes=routes)]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, options=options, sessions=console.sessions),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        ],
        exception_handlers={404: _missing, 405: _missing},
    )
    app.state.console = console
    return app


@asynccontextmanager
async def running_app(options: ConsoleOptions) -> AsyncIterator[Starlette]:
    """The application with its end."""
    app = make_app(options)
    tidying = asyncio.ensure_future(_tidy(app.state.console))
    try:
        yield app
    finally:
        tidying.cancel()
        await asyncio.wait([tidying])
        await app.state.console.close()


async def _tidy(console: Console) -> None:
    """Look for sessions that ended by themselves, from time to time."""
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        try:
            await console.tidy()
        except (PenstockError, OSError) as error:
            log.error("connections of a user not closed error=%s", error)


class _Static(StaticFiles):
    """Files that come with a release: a browser asks again and gets 304 while they are the same."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response


async def _first_page(request: Request) -> Response:
    options: ConsoleOptions = request.app.state.console.options
    return RedirectResponse(f"{options.base_path}/c/{next(iter(options.contexts))}/", 307)


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these alone"
    console: Console = request.app.state.console
    if request.url.path.startswith(f"{console.options.base_path}/api/"):
        return problem(NotFound(f"there is no {request.method} {request.url.path}"), 404)
    session = console.sessions.find(request.cookies) or console.sessions.start()
    visit = Visit(request, console, session)
    return visit_error(visit, NotFound(f"there is no page {request.url.path}"), 404)
