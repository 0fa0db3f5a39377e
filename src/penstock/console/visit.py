"""One request: which cluster and user it is for, how its page is rendered, where links lead."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
import zoneinfo
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from penstock.console import security, templating
from penstock.console.audit import Audit
from penstock.console.jobs import Jobs
from penstock.console.key_check import KeyCheck
from penstock.console.options import ConsoleOptions
from penstock.console.security import API, COOKIE, Login, Session, Sessions
from penstock.console.streams import Streams
from penstock.console.templating import Times
from penstock.console.view import PAGE_SECONDS, View, page_deadline
from penstock.errors import (
    GroupNotFound,
    InvalidArgument,
    NoPermission,
    NotFound,
    PenstockError,
    RequestCodeNotSupported,
    TopicNotFound,
)
from penstock.runtime.durations import seconds

THEMES = ("auto", "light", "dark")
MAX_FORM_FIELDS = 20_000
MAX_FILE_NAME = 150
_BAD_TOKEN = "the form is from an earlier session"


@dataclass(slots=True)
class Console:
    """What all requests share."""

    options: ConsoleOptions
    sessions: Sessions = field(default_factory=Sessions)
    jobs: Jobs = field(default_factory=Jobs)
    audit: Audit = field(default_factory=Audit)
    views: dict[tuple[str, Login], View] = field(default_factory=dict)
    streams: Streams = field(default_factory=Streams)
    keys: KeyCheck = field(default_factory=KeyCheck)

    def view(self, context: str, session: Session) -> View:
        """The cluster of a context as a user sees it: with a login, requests are the user's own."""
        access = self.options.contexts[context]
        login = session.login(context)
        key = (context, login)
        found = self.views.get(key)
        if found is None:
            if self.options.asks(context):
                access = type(access).of(
                    access.namesrv,
                    access_key=login.user,
                    secret_key=login.secret,
                    security_token="",
                    tls=access.tls or False,
                    namespace=access.namespace or "",
                )
            found = self.views[key] = View(context, access)
        return found

    async def end(self, session: Session) -> None:
        """Forget a session with all it has open."""
        self.sessions.end(session)
        self.streams.end(session.key)
        await self.tidy()

    async def tidy(self) -> None:
        """Forget old sessions, and close the connections of users who are gone."""
        self.sessions.drop_expired()
        held = self.sessions.logins()
        gone = [
            (context, login)
            for context, login in self.views
            # A job goes on without its user, and needs the connections until its end.
            if login.user
            and (context, login) not in held
            and not any(job.is_running for job in self.jobs.of(context, login.user))
        ]
        for view in [self.views.pop(key) for key in gone]:
            await view.close()

    async def close(self) -> None:
        """End jobs and connections."""
        await self.jobs.close()
        for view in self.views.values():
            await view.close()
        self.views.clear()


class Visit:
    """A request for a page, with the cluster it is about."""

    def __init__(self, request: Request, console: Console, session: Session) -> None:
        self.request = request
        self.console = console
        self.session = session
        self.is_new = False
        self.is_api = False
        self.context: str = request.path_params.get("context", "")
        self.times = Times(self.zone)

    # -------------------------------------------------------------------------- who, which

    @property
    def options(self) -> ConsoleOptions:
        return self.console.options

    @property
    def user(self) -> str:
        """Who asks, on the cluster of the address; empty without a login there."""
        return self.session.login(self.context).user

    @property
    def is_welcome(self) -> bool:
        """Whether the session may see the cluster now: streams last longer than a session may."""
        if not self.options.asks(self.context):
            return True
        return bool(self.user) and self.console.sessions.is_live(self.session)

    @functools.cached_property
    def view(self) -> View:
        """The cluster of the address."""
        return self.console.view(self.context, self.session)

    def name(self, parameter: str) -> str:
        """A part of the path."""
        text: str = self.request.path_params[parameter]
        return text

    def query(self, parameter: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.request.query_params.get(parameter, default).strip()

    def count(self, parameter: str, default: int, *, most: int) -> int:
        """A number in the address, brought into its bounds."""
        text = self.query(parameter)
        is_number = text.isascii() and text.isdigit() and len(text) < 12
        return min(max(int(text), 1), most) if is_number else default

    @functools.cached_property
    def zone(self) -> tzinfo:
        """The zone in which times are shown and read."""
        name = self.request.cookies.get("zone", "")
        if name and re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name):
            with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
                return zoneinfo.ZoneInfo(name)
        local = datetime.now().astimezone().tzinfo
        assert local is not None, "made by astimezone"
        return local

    @property
    def zone_name(self) -> str:
        key = getattr(self.zone, "key", None)
        return str(key or datetime.now(self.zone).strftime("%Z") or os.environ.get("TZ", "local"))

    def moment_ms(self, text: str, what: str) -> int | None:
        """A time that a form or an address gives; without a zone it is in the page's zone.

        Also epoch milliseconds, and ``10m`` or ``2h`` for that long ago.
        """
        if not text:
            return None
        if text.isascii() and text.isdigit() and len(text) == 13:
            return int(text)
        try:
            when = datetime.fromisoformat(text)
            return round(
                (when if when.tzinfo else when.replace(tzinfo=self.zone)).timestamp() * 1000
            )
        except (ValueError, OverflowError):
            pass
        try:
            return round((time.time() - seconds(text.removesuffix("ago").strip())) * 1000)
        except InvalidArgument:
            raise InvalidArgument(
                f"{what} {text!r}",
                expected="a time such as 2026-11-16T14:30, or 10m for ten minutes ago",
            ) from None

    @property
    def theme(self) -> str:
        chosen = self.request.cookies.get("theme", "")
        return chosen if chosen in THEMES else "auto"

    @property
    def has_keys_on(self) -> bool:
        """Whether single letters are commands in this browser."""
        return self.request.cookies.get("keys", "") != "off"

    @property
    def has_keys(self) -> bool:
        """Whether requests are signed, so that the cluster has users and rights to show."""
        has_keys = self.options.contexts[self.context].credentials is not None
        return has_keys or self.options.asks(self.context)

    @property
    def may_change(self) -> bool:
        operators = self.options.operators
        return not self.options.read_only and (operators is None or self.user in operators)

    def require_operator(self) -> None:
        """Refuse a user who only looks."""
        if not self.may_change:
            raise Forbidden(
                f"user {self.user!r} may not change anything here",
                expected="a user of --operator",
            )

    # ------------------------------------------------------------------------------- links

    def at(self, *parts: object, **query: object) -> str:
        """The address of a page of this cluster; parameters that are empty are left out."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        return self._with_query(f"{self.options.base_path}/c/{quote(self.context)}/{path}", query)

    def api_at(self, *parts: object, **query: object) -> str:
        """The address of a page's twin in the API."""
        base = self.options.base_path
        return f"{base}{API}{self.at(*parts, **query).removeprefix(base)}"

    def here(self, **changed: object) -> str:
        """This page with other parameters."""
        query: dict[str, object] = {**dict(self.request.query_params), **changed}
        # Two slashes at the start would make the next part the name of another host.
        path = "/" + (self.options.base_path + self._raw_path).lstrip("/\\")
        return self._with_query(path, query)

    def with_same_query(self, *parts: object, **changed: object) -> str:
        """Another page with the parameters of this one."""
        return self._with_query(self.at(*parts), {**dict(self.request.query_params), **changed})

    @property
    def _raw_path(self) -> str:
        raw = self.request.scope.get("raw_path") or quote(self.request.url.path).encode()
        return (
            bytes(raw)
            .decode("ascii", "replace")
            .partition("?")[0]
            .removeprefix(self.options.base_path)
        )

    @property
    def section(self) -> str:
        """The part of the path that names the family of pages; empty for the overview."""
        parts = self._raw_path.split("/")[3:]
        if "dead-letters" in parts:
            return "dead-letters"
        return {"messages": "topics"}.get(parts[0], parts[0]) if parts else ""

    @staticmethod
    def _with_query(path: str, query: Mapping[str, object]) -> str:
        given = {key: value for key, value in query.items() if value not in (None, "", False)}
        return f"{path}?{urlencode(given)}" if given else path

    @property
    def command_options(self) -> str:
        """What a command on a page needs to mean this cluster."""
        addresses = self.options.contexts[self.context].addresses
        return "" if addresses == "127.0.0.1:9876" else f" --namesrv {addresses}"

    # ----------------------------------------------------------------------------- answers

    def render(self, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """A page."""
        text = templating.render(
            template,
            {
                "visit": self,
                "at": self.at,
                "here": self.here,
                "times": self.times,
                "token": self.console.sessions.token(self.session),
                "base": self.options.base_path,
                "now": time.time_ns() // 1_000_000,
                **values,
            },
        )
        return HTMLResponse(text, status)

    def answer(
        self, template: str, data: Callable[[], object], *, status: int = 200, **values: object
    ) -> Response:
        """A page, or for the API its twin: the plain object that ``data`` makes."""
        if not self.is_api:
            return self.render(template, status=status, **values)
        response = JSONResponse(data(), status)
        if silent := values.get("silent"):
            assert isinstance(silent, list), "names of brokers"
            response.headers["x-partial"] = quote(", ".join(silent), safe=", ")
        return response

    def go(self, *parts: object, **query: object) -> Response:
        """Lead the browser to another page, after a change; the API names its twin."""
        if self.is_api:
            return JSONResponse({"location": self.api_at(*parts, **query)})
        return RedirectResponse(self.at(*parts, **query), 303)

    async def form(self, *, is_change: bool = True) -> dict[str, list[str]]:
        """The fields of a form that this session's page sent."""
        if is_change:
            self.require_operator()
        body = await self.request.body()
        if len(body) > security.MAX_REQUEST_BYTES:
            raise InvalidArgument("a form of that size", expected="at most 5 MiB")
        if self.is_api:
            return _fields(self.request.headers.get("content-type", ""), body)
        fields: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
        except (ValueError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"a form that cannot be read: {error}") from None
        for key, value in pairs:
            fields.setdefault(key, []).append(value)
        sent = fields.pop("token", [""])[0] or self.request.headers.get("x-penstock-token", "")
        if self.is_new or not self.console.sessions.is_token(self.session, sent):
            raise Forbidden(_BAD_TOKEN, hint="open the page again and repeat the change")
        return fields

    def record_refusal(self, error: Exception) -> None:
        """Note a change that was asked for and not made."""
        if self.request.method == "POST":
            self.record("refused", self._raw_path, before=None, after=None, result=str(error))

    def record(self, action: str, target: str, **facts: object) -> None:
        """Write a change to the audit log."""
        client = self.request.client
        self.console.audit.add(
            user=self.user or "-",
            address=client.host if client else "-",
            context=self.context,
            action=action,
            target=target,
            **facts,
        )


def _fields(content_type: str, body: bytes) -> dict[str, list[str]]:
    """The members of a JSON object as fields of a form."""
    # A page of another origin cannot send this type without asking first, and is not answered.
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Forbidden(f"a change as {content_type!r}", expected="application/json")
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"a request that is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(
            "a request that is no JSON object", expected='such as {"to": "first"}'
        )
    return {
        key: [_field(one) for one in (value if isinstance(value, list) else [value])]
        for key, value in found.items()
    }


def _field(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else ""
    return "" if value is None else str(value)


def file_name(text: str) -> str:
    """A name that fits into a header and is the name of a file everywhere."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)
    return name[:MAX_FILE_NAME] or "_"


class Forbidden(PenstockError):
    """A change without the token of its page."""


Endpoint = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Twin:
    """What the API gives in place of a page."""

    endpoint: Endpoint
    shape: Any
    """The type of the answer, for its description."""


def page(endpoint: Endpoint, twin: Any = None) -> Callable[[Request], Awaitable[Response]]:
    """A page of a cluster: finds cluster and session; what goes wrong becomes a page as well.

    With ``twin``, the type of a plain object, the API has the same page as JSON.
    """

    async def serve(request: Request) -> Response:
        console: Console = request.app.state.console
        session = console.sessions.find(request.cookies)
        visit = Visit(request, console, session or console.sessions.start())
        visit.is_new = session is None
        page_deadline.set(time.monotonic() + PAGE_SECONDS)
        response = await _answer(endpoint, visit)
        if visit.is_new:
            security.set_cookie(
                response,
                COOKIE,
                visit.session.key,
                path=console.options.base_path or "/",
                secure=request.url.scheme == "https",
            )
        return response

    if twin is not None:
        serve.twin = Twin(endpoint, twin)  # type: ignore[attr-defined]
    return serve


async def _answer(endpoint: Endpoint, visit: Visit) -> Response:
    if visit.context not in visit.options.contexts:
        return visit_error(visit, NotFound(f"no cluster {visit.context!r} is served here"), 404)
    if visit.options.asks(visit.context) and not visit.user:
        base = visit.options.base_path
        target = quote(visit.here().removeprefix(base), safe="/")
        return RedirectResponse(f"{base}/login?next={target}", 303)
    try:
        return await endpoint(visit)
    except (PenstockError, TimeoutError) as error:
        visit.record_refusal(error)
        return visit_error(visit, error, status_of(error))


def status_of(error: Exception) -> int:
    """The status of HTTP that says what kind of error it is."""
    if isinstance(error, (NotFound, TopicNotFound, GroupNotFound)):
        return 404
    if isinstance(error, (Forbidden, NoPermission)):
        return 403
    return 400 if isinstance(error, InvalidArgument) else 502


def error_title(status: int, error: Exception) -> str:
    """What went wrong, in a few words."""
    titles = {404: "Not found", 403: "Not allowed", 400: "That cannot be done"}
    if isinstance(error, RequestCodeNotSupported):
        return "Not supported by this cluster"
    return titles.get(status, "The cluster did not answer")


def visit_error(visit: Visit, error: Exception, status: int) -> Response:
    """A page that says what went wrong, what was expected and what to do."""
    if visit.context not in visit.options.contexts:
        visit.context = next(iter(visit.options.contexts))
    return visit.render(
        "error.html",
        status=status,
        what=getattr(error, "what", None) or str(error) or type(error).__name__,
        expected=getattr(error, "expected", None),
        hint=getattr(error, "hint", None),
        title=error_title(status, error),
    )
