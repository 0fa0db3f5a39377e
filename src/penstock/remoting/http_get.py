"""A small HTTP/1.1 server that answers GET and HEAD: for metrics and health checks.

It runs on the loop of the server that it describes, so it is bounded in every direction: the size
of a request's head, the number of connections, and the time that one may stay idle. A request
with a body, or with anything else that it does not need, is refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, cast

from penstock.remoting.listener import PlainListener

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 32
HEAD_SECONDS: Final = 10.0
"""From the first byte of a head to its end."""
IDLE_SECONDS: Final = 90.0
"""Between two requests; Prometheus asks every 15 to 60 seconds."""
ANSWER_SECONDS: Final = 30.0

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_END: Final = b"\r\n\r\n"


class HttpRequest(NamedTuple):
    """What a page may depend on."""

    path: str
    accepts_gzip: bool


class HttpAnswer(NamedTuple):
    """The answer to a request."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN_TEXT
    is_gzipped: bool = False


Page = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class HttpGetServer:
    """Serves pages by path."""

    def __init__(self, pages: Mapping[str, Page], host: str, port: int) -> None:
        self._pages = pages
        self._host = host
        self._port = port
        self._listener: PlainListener | None = None
        self._connections: set[_Connection] = set()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._listener is not None, "started"
        return self._listener.port

    async def start(self) -> None:
        """Listen; raises `ListenFailed`."""
        self._listener = await PlainListener.open(
            lambda: _Connection(self._pages, self._connections), self._host, self._port
        )

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        await self._listener.wait_closed()


class _Connection(asyncio.Protocol):
    """One connection; requests are answered one after the other."""

    def __init__(self, pages: Mapping[str, Page], open_ones: set[_Connection]) -> None:
        self._pages = pages
        self._open = open_ones
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._is_unread = False
        """Whether the peer has not read the last answer: the next one waits."""

    # Callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's streams are not of this class, but they do the same.
        stream = self._transport = cast("asyncio.Transport", transport)
        if len(self._open) >= MAX_CONNECTIONS:
            log.warning("connection refused, too many are open limit=%d", MAX_CONNECTIONS)
            stream.abort()
            return
        self._open.add(self)
        self._expect(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._buffer and self._answering is None:
            self._expect(HEAD_SECONDS)
        self._buffer += data
        if self._answering is None and not self._is_unread:
            self._next()
        if len(self._buffer) > MAX_HEAD_BYTES:
            # Requests far ahead of their answers, or a head that was refused.
            self.close()

    def pause_writing(self) -> None:
        self._is_unread = True

    def resume_writing(self) -> None:
        self._is_unread = False
        if self._answering is None and self._transport is not None:
            self._expect(IDLE_SECONDS)
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._transport = None

    def close(self) -> None:
        """Close now, even in the middle of an answer."""
        if self._transport is not None:
            self._transport.abort()

    # Requests

    def _expect(self, seconds: float) -> None:
        """Close the connection unless something happens in that time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.close)

    def _next(self) -> None:
        """Answer the next request if its head is complete."""
        if self._transport is None or self._transport.is_closing():
            return
        end = self._buffer.find(_END)
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too large")
            return
        if end > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too large")
            return
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + len(_END)]
        found = _REQUEST_LINE.fullmatch(lines[0])
        if found is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
            return
        headers = _headers(lines[1:])
        if headers is None or "transfer-encoding" in headers or _has_body(headers):
            self._refuse(HTTPStatus.BAD_REQUEST, "a request without a body is expected")
            return
        if found[1] not in (b"GET", b"HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
            return
        connection = headers.get("connection", "" if found[3] == b"1" else "close").lower()
        request = HttpRequest(
            found[2].decode().partition("?")[0], "gzip" in headers.get("accept-encoding", "")
        )
        self._expect(ANSWER_SECONDS)
        self._answering = self._loop.create_task(
            self._answer(request, is_head=found[1] == b"HEAD", is_last="close" in connection)
        )

    async def _answer(self, request: HttpRequest, *, is_head: bool, is_last: bool) -> None:
        page = self._pages.get(request.path)
        if page is None:
            known = ", ".join(sorted(self._pages))
            answer = HttpAnswer(f"not found; there are {known}\n".encode(), HTTPStatus.NOT_FOUND)
        else:
            try:
                answer = await page(request)
            except Exception:
                log.exception("page failed path=%s", request.path)
                answer = HttpAnswer(b"the page failed\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._answering = None
        if self._transport is None:
            return
        self._write(answer, is_head=is_head, is_last=is_last)
        if not is_last:
            self._expect(ANSWER_SECONDS if self._is_unread else IDLE_SECONDS)
            if self._buffer and not self._is_unread:
                self._next()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._write(HttpAnswer(f"{why}\n".encode(), status), is_head=False, is_last=True)

    def _write(self, answer: HttpAnswer, *, is_head: bool, is_last: bool) -> None:
        assert self._transport is not None, "open"
        lines = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET, HEAD")
        if answer.is_gzipped:
            lines += ["Content-Encoding: gzip", "Vary: Accept-Encoding"]
        if is_last:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode() + _END
        self._transport.write(head if is_head else head + answer.body)
        if is_last:
            self._transport.close()


def _headers(lines: list[bytes]) -> dict[str, str] | None:
    """The header fields in lower case; None if a line is none."""
    fields: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(b":")
        if not separator or not name or name.strip() != name:
            return None
        fields[name.decode("latin-1").lower()] = value.decode("latin-1").strip()
    return fields


def _has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0"
