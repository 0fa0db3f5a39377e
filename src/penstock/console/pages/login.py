"""Login with the access key of a user of the cluster: the broker decides what is allowed."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.console import security
from penstock.console.audit import FAILED_LOGIN
from penstock.console.key_check import INCOMPLETE, MAX_USER, TOO_LONG, TOO_MANY
from penstock.console.security import COOKIE, Login
from penstock.console.visit import Console, Visit, status_of, visit_error
from penstock.errors import PenstockError


async def login(request: Request) -> Response:
    """The form, and what it sends."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies)
    visit = Visit(request, console, session or console.sessions.start())
    visit.context = _context(visit)
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


def _context(visit: Visit) -> str:
    """The cluster to log in to: that of the page which is wanted, else the first that asks."""
    parts = visit.query("next").split("/")
    wanted = unquote(parts[2]) if len(parts) > 2 and parts[1] == "c" else ""
    asking = visit.options.asking
    return wanted if wanted in asking else asking[0]


async def _try(visit: Visit, console: Console) -> str | None:
    """Log in; or the reason why not."""
    client = visit.request.client
    address = client.host if client else "-"
    try:
        form = await visit.form(is_change=False)
    except PenstockError as error:
        return str(error)
    user, secret = form.get("user", [""])[0].strip(), form.get("secret", [""])[0]
    access = console.options.contexts[visit.context]
    refused = await console.keys.refusal(visit.context, access, user, secret, address)
    if refused is not None:
        if refused not in (TOO_MANY, TOO_LONG, INCOMPLETE):
            _record(visit, FAILED_LOGIN, user)
        return refused
    logins = {**visit.session.logins, visit.context: Login(user, secret)}
    former, visit.session = visit.session, console.sessions.start(logins)
    await console.end(former)
    _record(visit, "login", user)
    return None


def _record(visit: Visit, action: str, user: str) -> None:
    """Note a try, and how many were not even made since the last one."""
    tries = visit.console.keys.tries
    missing = {"tries_beyond_the_limit": tries.refused} if tries.refused else {}
    tries.refused = 0
    visit.record(action, user[:MAX_USER], **missing)


def _go_on(visit: Visit, console: Console) -> Response:
    wanted = visit.query("next")
    # Only a page of this console: an address with a host would lead elsewhere.
    path = wanted if wanted.startswith("/c/") else f"/c/{quote(visit.context)}/"
    response = RedirectResponse(console.options.base_path + path, 303)
    _keep(response, visit)
    return response


async def logout(request: Request) -> Response:
    """End the session."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies)
    if session is not None:
        visit = Visit(request, console, session)
        try:
            await visit.form(is_change=False)
        except PenstockError as error:
            return visit_error(visit, error, status_of(error))
        await console.end(session)
    return RedirectResponse(f"{console.options.base_path}/login", 303)


def _keep(response: Response, visit: Visit) -> None:
    security.set_cookie(
        response,
        COOKIE,
        visit.session.key,
        path=visit.options.base_path or "/",
        secure=visit.request.url.scheme == "https",
    )


LOGIN_ROUTES = [
    Route("/login", login, methods=["GET", "POST"]),
    Route("/logout", logout, methods=["POST"]),
]
