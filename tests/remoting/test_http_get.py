"""The HTTP server of metrics and health checks: what it serves, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ListenFailed
from penstock.remoting import http_get
from penstock.remoting.http_get import HttpAnswer, HttpGetServer, HttpRequest

SECONDS = 60


async def hello(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(b"hello\n")


async def broken(request: HttpRequest) -> HttpAnswer:
    raise RuntimeError("a secret of the server")


async def large(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(b"x" * (8 << 20))


PAGES = {"/hello": hello, "/broken": broken, "/large": large}


@pytest.fixture
async def server() -> AsyncIterator[HttpGetServer]:
    running = HttpGetServer(PAGES, "127.0.0.1", 0)
    await running.start()
    yield running
    await running.stop()


async def exchange(server: HttpGetServer, data: bytes, *, ends: bool = True) -> bytes:
    """Send bytes and return everything that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            if ends:
                writer.write_eof()
        async with asyncio.timeout(SECONDS):
            try:
                return await reader.read(-1)
            except ConnectionError:
                return b""
    finally:
        writer.close()


def get(path: str, *more: str, version: str = "1.1") -> bytes:
    return "\r\n".join((f"GET {path} HTTP/{version}", "Host: x", *more, "", "")).encode()


async def test_a_page_is_served(server: HttpGetServer) -> None:
    answer = await exchange(server, get("/hello?a=b", "Connection: close"), ends=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 6\r\n" in head
    assert b"Connection: close" in head
    assert body == b"hello\n"


async def test_a_connection_serves_several_requests(server: HttpGetServer) -> None:
    two = get("/hello") + get("/nowhere", "Connection: close")
    answer = await exchange(server, two, ends=False)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"hello\n" in answer
    assert b"not found; there are /broken, /hello, /large" in answer
    old = await exchange(server, get("/hello", version="1.0"), ends=False)
    assert old.endswith(b"hello\n")


async def test_a_head_has_no_body(server: HttpGetServer) -> None:
    answer = await exchange(
        server, b"HEAD /hello HTTP/1.1\r\nConnection: close\r\n\r\n", ends=False
    )
    assert b"Content-Length: 6" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_a_page_that_fails_says_nothing_about_why(server: HttpGetServer) -> None:
    answer = await exchange(server, get("/broken", "Connection: close"), ends=False)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /hello HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /hello HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /hello\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (get("/hello", "Content-Length: 5") + b"hello", HTTPStatus.BAD_REQUEST),
        (get("/hello", "Transfer-Encoding: chunked"), HTTPStatus.BAD_REQUEST),
        (get("/hello", "no colon"), HTTPStatus.BAD_REQUEST),
        (get("/hello", " folded: x"), HTTPStatus.BAD_REQUEST),
        (b"GET /" + b"a" * 10_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (get("/hello", "X: " + "a" * 10_000), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_what_is_not_a_plain_get_is_refused_and_ends_the_connection(
    server: HttpGetServer, request_bytes: bytes, status: HTTPStatus
) -> None:
    answer = await exchange(server, request_bytes, ends=False)
    assert answer.startswith(f"HTTP/1.1 {status.value} ".encode())
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_connections_are_limited(server: HttpGetServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(http_get.MAX_CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            writer.write(get("/hello"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await exchange(server, get("/hello"), ends=False) == b""


async def test_a_head_that_does_not_end_closes_the_connection(
    server: HttpGetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_get, "HEAD_SECONDS", 0.05)
    assert await exchange(server, b"GET /hello HTTP/1.1\r\n", ends=False) == b""
    monkeypatch.setattr(http_get, "HEAD_SECONDS", 60)
    monkeypatch.setattr(http_get, "IDLE_SECONDS", 0.05)
    assert (await exchange(server, get("/hello"), ends=False)).endswith(b"hello\n")


async def test_requests_far_ahead_of_their_answers_close_the_connection(
    server: HttpGetServer,
) -> None:
    answer = await exchange(server, get("/large") * 1000, ends=False)
    assert answer.count(b"HTTP/1.1 200") <= 2


async def test_a_taken_port_is_named(server: HttpGetServer) -> None:
    with pytest.raises(ListenFailed, match=str(server.port)):
        await HttpGetServer(PAGES, "127.0.0.1", server.port).start()


@settings(max_examples=50, deadline=None)
@given(data=st.lists(st.binary(max_size=400), max_size=4))
def test_no_bytes_break_it(data: list[bytes]) -> None:
    async def try_it() -> None:
        server = HttpGetServer(PAGES, "127.0.0.1", 0)
        await server.start()
        try:
            await exchange(server, b"\r\n".join(data) + b"\r\n\r\n", ends=True)
            answer = await exchange(server, get("/hello", "Connection: close"), ends=False)
            assert answer.endswith(b"hello\n")
        finally:
            await server.stop()

    asyncio.run(try_it())
