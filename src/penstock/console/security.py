"""What keeps a console from being used by other pages: Host, Origin, headers, tokens, sizes.

Each request passes `Guard` first. A change also needs the token that the page's form carries, which
`Sessions.token` derives from the session cookie; a page of another origin can neither read the
token nor make the browser send the cookie (SameSite=Strict).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.console.options import ConsoleOptions

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

    def __init__(self, app: ASGIApp, options: ConsoleOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent[name] = value
                if "cache-control" not in sent:
                    sent["cache-control"] = "no-store"
            await send(message)

        refused = self._refusal(scope["method"], headers)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if _without_port(host) not in self._options.hosts:
            # A name that an attacker points at this address would otherwise be the same origin.
            return PlainTextResponse(
                f"This console is not addressed as {host!r}; see --console-host.\n", 421
            )
        if method in ("GET", "HEAD"):
            return None
        if not _is_same_origin(headers, host):
            return PlainTextResponse("A page of another origin asked for a change.\n", 403)
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_REQUEST_BYTES:
            return PlainTextResponse(f"At most {MAX_REQUEST_BYTES} bytes, announced.\n", 413)
        return None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """Whether a change comes from a page of this console, as far as the browser says."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        # A form of ours has the origin "null", since pages here send no referrer.
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == host


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


@dataclass(slots=True)
class Session:
    """A browser: who it is, if it logged in."""

    key: str
    made: float
    used: float
    user: str = ""
    secret: str = field(default="", repr=False)


@dataclass(slots=True)
class Sessions:
    """The browsers that are known, in memory; a restart of the console ends all sessions."""

    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _by_key: dict[str, Session] = field(default_factory=dict, repr=False)
    _failures: dict[str, list[float]] = field(default_factory=dict)

    def find(self, cookies: Mapping[str, str]) -> Session | None:
        """The session of a request."""
        found = self._by_key.get(cookies.get(COOKIE, ""))
        now = time.monotonic()
        if found is None:
            return None
        if now - found.used > IDLE_SECONDS or now - found.made > SESSION_SECONDS:
            del self._by_key[found.key]
            return None
        found.used = now
        return found

    def start(self, user: str = "", secret: str = "") -> Session:
        """A new session; beyond the limit, one of a visitor without login ends."""
        now = time.monotonic()
        made = Session(secrets.token_urlsafe(32), now, now, user, secret)
        self._by_key[made.key] = made
        self._forget()
        return made

    def _forget(self) -> None:
        """Keep to the limit. Visitors without a login go first: their number costs nothing."""
        while len(self._by_key) > MAX_SESSIONS:
            visitors = (one.key for one in self._by_key.values() if not one.user)
            self._by_key.pop(next(visitors, None) or next(iter(self._by_key)))

    def of_user(self, user: str, secret: str) -> Session | None:
        """The session of a request of the API that brings its keys along."""
        for found in self._by_key.values():
            if found.user == user and hmac.compare_digest(found.secret.encode(), secret.encode()):
                return self.find({COOKIE: found.key})
        return None

    def end(self, session: Session) -> None:
        """Forget a session, and its keys."""
        self._by_key.pop(session.key, None)

    def token(self, session: Session) -> str:
        """What a form of this session carries."""
        return hmac.new(self._secret, session.key.encode(), hashlib.sha256).hexdigest()

    def is_token(self, session: Session, token: str) -> bool:
        """Whether a change comes from a page of this session."""
        return hmac.compare_digest(self.token(session).encode(), token.encode())

    def may_try(self, address: str) -> bool:
        """Whether another login may be tried from there now."""
        now = time.monotonic()
        recent = [at for at in self._failures.get(address, ()) if now - at < 60]
        self._failures[address] = recent
        return len(recent) < TRIES_PER_MINUTE

    def note_failure(self, address: str) -> None:
        """Count a login that failed."""
        self._failures.setdefault(address, []).append(time.monotonic())
        while len(self._failures) > MAX_SESSIONS:
            self._failures.pop(next(iter(self._failures)))


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
