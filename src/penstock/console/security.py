"""What keeps a console from being misused: Host, Origin, headers, tokens, sizes, rates.

Each request passes `Guard` first. A change also needs the token that the page's form carries, which
`Sessions.token` derives from the session cookie; a page of another origin can neither read the
token nor make the browser send the cookie (SameSite=Strict).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.options import ConsoleOptions
from penstock.console.problems import problem_response
from penstock.console.rates import Rates

API = "/api/v1"
COOKIE = "penstock_session"
MAX_REQUEST_BYTES = 5 << 20
MAX_SESSIONS = 1000
IDLE_SECONDS = 3600.0
SESSION_SECONDS = 12 * 3600.0
TRIES_PER_MINUTE = 5

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses requests that a page of another origin could have caused, and sets headers."""

    def __init__(self, app: ASGIApp, options: ConsoleOptions, sessions: Sessions) -> None:
        self._app = app
        self._options = options
        self._sessions = sessions
        self._rates = Rates()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent[name] = value
                if "cache-control" not in sent:
                    sent["cache-control"] = "no-store"
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        path = scope["path"].removeprefix(self._options.base_path)
        is_api = path.startswith("/api/")
        host = headers.get("host", "")
        if _without_port(host) not in self._options.hosts:
            # A name that an attacker points at this address would otherwise be the same origin.
            return _refused(
                421, f"This console is not addressed as {host!r}; see --console-host.", is_api
            )
        if not path.startswith("/static/"):
            seconds = self._rates.wait(self._who(scope, headers, is_api), time.monotonic())
            if seconds:
                return _too_many(seconds, self._rates.per_second, is_api)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if not _is_same_origin(headers, host):
            return _refused(403, "A page of another origin asked for a change.", is_api)
        if not _is_small(headers.get("content-length", "")):
            return _refused(413, f"At most {MAX_REQUEST_BYTES} bytes, announced.", is_api)
        return None

    def _who(self, scope: Scope, headers: Headers, is_api: bool) -> str:
        """Whose requests are counted together: a user's session, else those of an address.

        A session without a login is given to each visitor who asks, so it would be a fresh start.
        """
        if is_api:
            keys = basic_keys(headers.get("authorization", ""))
            session = self._sessions.with_keys(*keys) if keys else None
        else:
            session = self._sessions.peek(cookie_parser(headers.get("cookie", "")))
        if session is not None and session.logins:
            return f"session {session.key}"
        return f"address {scope['client'][0] if scope.get('client') else '-'}"


def _refused(status: int, text: str, is_api: bool) -> Response:
    if is_api:
        return problem_response(status, "Refused", text)
    return PlainTextResponse(f"{text}\n", status)


def _too_many(seconds: float, per_second: float, is_api: bool) -> Response:
    what = "too many requests at once"
    expected = f"at most {per_second:.0f} requests a second"
    if is_api:
        response = problem_response(429, "Too many requests", what, expected=expected)
    else:
        text = f"These were {what}: {expected} of one browser. Wait a moment, then load it again."
        response = PlainTextResponse(f"{text}\n", 429)
    response.headers["retry-after"] = str(math.ceil(seconds))
    return response


def basic_keys(header: str) -> tuple[str, str] | None:
    """The access key and the secret that a request of the API brings along."""
    kind, _, text = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, secret = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, secret) if colon and user else None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Whether a change comes from a page of this console, as far as the browser says."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        # A form of ours has the origin "null", since pages here send no referrer.
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == host
    except ValueError:
        return False


def _is_small(length: str) -> bool:
    """Whether a request announces a size, and one that is read."""
    # Python refuses to read a number of thousands of digits.
    is_number = length.isascii() and length.isdigit() and len(length) < 12
    return is_number and int(length) <= MAX_REQUEST_BYTES


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


@dataclass(frozen=True, slots=True)
class Login:
    """Keys that a cluster accepted."""

    user: str = ""
    secret: str = field(default="", repr=False)


@dataclass(slots=True)
class Session:
    """A browser: who it is on the clusters where it logged in."""

    key: str = field(repr=False)
    made: float
    used: float
    logins: dict[str, Login] = field(default_factory=dict)
    """By context: keys that one cluster accepted say nothing about another cluster."""

    def login(self, context: str) -> Login:
        """Who this is on a cluster; without a user where it did not log in."""
        return self.logins.get(context, _VISITOR)


_VISITOR = Login()


@dataclass(slots=True)
class Sessions:
    """The browsers that are known, in memory; a restart of the console ends all sessions."""

    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _by_key: dict[str, Session] = field(default_factory=dict, repr=False)

    def peek(self, cookies: Mapping[str, str]) -> Session | None:
        """The session of a request, which does not count as a use of it."""
        found = self._by_key.get(cookies.get(COOKIE, ""))
        return found if found is not None and self.is_live(found) else None

    def find(self, cookies: Mapping[str, str]) -> Session | None:
        """The session of a request."""
        found = self.peek(cookies)
        if found is not None:
            found.used = time.monotonic()
        return found

    def is_live(self, session: Session) -> bool:
        """Whether a session was neither ended nor left alone for too long."""
        now = time.monotonic()
        is_young = now - session.used <= IDLE_SECONDS and now - session.made <= SESSION_SECONDS
        return is_young and self._by_key.get(session.key) is session

    def start(self, logins: Mapping[str, Login] | None = None) -> Session:
        """A new session; beyond the limit, one of a visitor without login ends."""
        now = time.monotonic()
        made = Session(secrets.token_urlsafe(32), now, now, dict(logins or {}))
        self._by_key[made.key] = made
        self._forget()
        return made

    def _forget(self) -> None:
        """Keep to the limit. Visitors without a login go first: their number costs nothing."""
        while len(self._by_key) > MAX_SESSIONS:
            visitors = (one.key for one in self._by_key.values() if not one.logins)
            self._by_key.pop(next(visitors, None) or next(iter(self._by_key)))

    def with_keys(self, user: str, secret: str, context: str | None = None) -> Session | None:
        """The session of a request that brings its keys along: on one cluster, or on any."""
        for found in self._by_key.values():
            logins = found.logins.values() if context is None else (found.login(context),)
            if any(_is_same(login, user, secret) for login in logins) and self.is_live(found):
                return found
        return None

    def end(self, session: Session) -> None:
        """Forget a session, and its keys."""
        self._by_key.pop(session.key, None)

    def drop_expired(self) -> None:
        """Forget the sessions that are too old."""
        for session in [one for one in self._by_key.values() if not self.is_live(one)]:
            self.end(session)

    def logins(self) -> set[tuple[str, Login]]:
        """Each context with the keys that a session has there."""
        return {pair for session in self._by_key.values() for pair in session.logins.items()}

    def token(self, session: Session) -> str:
        """What a form of this session carries."""
        return hmac.new(self._secret, session.key.encode(), hashlib.sha256).hexdigest()

    def is_token(self, session: Session, token: str) -> bool:
        """Whether a change comes from a page of this session."""
        return hmac.compare_digest(self.token(session).encode(), token.encode())


def _is_same(login: Login, user: str, secret: str) -> bool:
    same_secret = hmac.compare_digest(login.secret.encode(), secret.encode())
    return bool(login.user) and login.user == user and same_secret


def set_cookie(
    response: Any, name: str, value: str, *, path: str, secure: bool, seconds: int | None = None
) -> None:
    """Give the browser a value that scripts cannot read and other pages do not send."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=path,
        secure=secure,
        httponly=True,
        samesite="strict",
    )
