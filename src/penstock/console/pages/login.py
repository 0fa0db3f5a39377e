"""Login with the access key of a user of the cluster: the broker decides what is allowed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console import security
from penstock.console.key_check import refusal
from penstock.console.visit import Console, Visit
from penstock.errors import PenstockError


async def login(request: Request) -> Response:
    """The form, and what it sends."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies)
    visit = Visit(request, console, session or console.sessions.start())
    visit.context = next(iter(console.options.contexts))
    visit.is_new = session is None
    problem = None
    if request.method == "POST":
        problem = await _try(visit, console)
        if problem is None:
            return _go_on(visit, console)
    response: Response = visit.render("login.html", status=403 if problem else 200, problem=problem)
    if visit.is_new:
        _keep(response, visit)
    return response


async def _try(visit: Visit, console: Console) -> str | None:
    """Log in; or the reason why not."""
    client = visit.request.client
    address = client.host if client else "-"
    try:
        form = await visit.form(is_change=False)
    except PenstockError as error:
        return str(error)
    user, secret = form.get("user", [""])[0].strip(), form.get("secret", [""])[0]
    refused = await refusal(console, visit.context, user, secret, address)
    if refused is not None:
        visit.record("login refused", user)
        return refused
    console.sessions.end(visit.session)
    visit.session = console.sessions.start(user, secret)
    visit.record("login", user)
    return None


def _go_on(visit: Visit, console: Console) -> Response:
    wanted = visit.query("next")
    # Only a page of this console: an address with a host would lead elsewhere.
    path = wanted if wanted.startswith("/c/") else f"/c/{visit.context}/"
    response = RedirectResponse(console.options.base_path + path, 303)
    _keep(response, visit)
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies)
    if session is not None:
        visit = Visit(request, console, session)
        await visit.form(is_change=False)
        console.sessions.end(session)
    return RedirectResponse(f"{console.options.base_path}/login", 303)


def _keep(response: Response, visit: Visit) -> None:
    security.set_cookie(
        response,
        security.COOKIE,
        visit.session.key,
        path=visit.options.base_path or "/",
        secure=visit.request.url.scheme == "https",
    )


LOGIN_ROUTES = [
    Route("/login", login, methods=["GET", "POST"]),
    Route("/logout", logout, methods=["POST"]),
]
