"""A server of HTTP/2 with a few methods, and a client of raw bytes."""

from __future__ import annotations

import asyncio
import functools
import gzip
import itertools
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from penstock.proxy.http2.call import Call, Method
from penstock.proxy.http2.frames import PREFACE
from penstock.proxy.http2.grpc_status import CallFailed, GrpcStatus
from penstock.proxy.http2.hpack import HeaderDecoder, literal
from penstock.proxy.http2.listening import Http2Server

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GO_AWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
MAX_MESSAGE = 1 << 20
SMALL_MESSAGE = 1000
MAX_FRAME = 16_384
SECONDS = 20.0
_marks = itertools.count()


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    body: bytes


class Methods:
    """What the server of these tests serves."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.flushed: list[int] = []
        self.calls: list[Call] = []
        self.left: list[Call] = []

    async def echo(self, call: Call) -> None:
        call.write(call.message)

    async def many(self, call: Call) -> None:
        try:
            for _ in range(10):
                call.write(call.message)
            await call.drain()
        finally:
            self.flushed.append(call.flushed)

    async def wait(self, call: Call) -> None:
        self.started += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def chat(self, call: Call) -> None:
        while (message := await call.read()) is not None:
            call.write(message.upper())

    async def unread(self, call: Call) -> None:
        self.calls.append(call)
        await asyncio.get_running_loop().create_future()

    async def half(self, call: Call) -> None:
        call.write(call.message)
        raise CallFailed(GrpcStatus.UNKNOWN, "in the middle")

    async def fail(self, call: Call) -> None:
        raise CallFailed(GrpcStatus.INVALID_ARGUMENT, "100 % wrong: ü")

    async def crash(self, call: Call) -> None:
        raise RuntimeError("a fault of ours")

    def quickly(self, call: Call) -> bool:
        """Answers at once, later, never, or leaves the call to the plain path, as its test says."""
        if call.message == b"crash":
            raise RuntimeError("a fault of ours")
        if call.message == b"leave":
            return False
        if call.message == b"slow":
            time.sleep(0.01)
        if call.message == b"later":
            self.calls.append(call)
        else:
            call.answer(call.message)
        return True

    def several(self, call: Call) -> bool:
        """Answers with ten messages: at once if the client takes them, else by the plain path."""
        if call.message.startswith(b"later"):
            self.calls.append(call)
        elif not call.answer_all([call.message] * 10):
            call.go_on(self.many, functools.partial(self.left.append, call))
        return True

    def table(self) -> dict[str, Method]:
        names = ("echo", "many", "wait", "half", "fail", "crash")
        return {f"/{name}": Method(getattr(self, name)) for name in names} | {
            "/chat": Method(self.chat, is_streaming=True),
            "/unread": Method(self.unread, is_streaming=True),
            "/quick": Method(self.half, quick=self.quickly),
            "/several": Method(self.half, quick=self.several),
            "/small": Method(self.echo, max_message=SMALL_MESSAGE),
        }


class Peer:
    """A client that sends what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = HeaderDecoder()

    def send(self, kind: int, flags: int, stream_id: int, body: bytes = b"") -> None:
        self.writer.write(frame(kind, flags, stream_id, body))

    def call(self, stream_id: int, path: str, message: bytes = b"hello", **more: str) -> None:
        self.send(HEADERS, END_HEADERS, stream_id, head(path, **more))
        data = framed(message)
        for begin in range(0, len(data), MAX_FRAME):
            is_last = begin + MAX_FRAME >= len(data)
            self.send(DATA, END_STREAM * is_last, stream_id, data[begin : begin + MAX_FRAME])

    def packed_call(self, stream_id: int, path: str, message: bytes) -> None:
        """A call whose message is compressed."""
        self.send(HEADERS, END_HEADERS, stream_id, head(path, grpc_encoding="gzip"))
        self.send(DATA, END_STREAM, stream_id, b"\1" + framed(gzip.compress(message))[1:])

    def more(self, stream_id: int, size: int) -> None:
        """Let the server send more."""
        self.send(WINDOW, 0, stream_id, struct.pack(">I", size))

    async def settled(self) -> list[Frame]:
        """What the server has sent up to now."""
        found: list[Frame] = []
        # The first ping may be answered before the calls in front of it are.
        for _ in range(2):
            mark = b"%08d" % next(_marks)
            self.send(PING, 0, 0, mark)
            while (one := await self.take()).kind != PING or one.body != mark:
                found.append(one)
        return found

    async def take(self) -> Frame:
        async with asyncio.timeout(SECONDS):
            word, flags, stream_id = struct.unpack(">IBI", await self.reader.readexactly(9))
            assert word >> 8 <= MAX_FRAME, "longer than a client has to take"
            return Frame(word & 255, flags, stream_id, await self.reader.readexactly(word >> 8))

    async def until(self, *kinds: int) -> Frame:
        while True:
            found = await self.take()
            if found.kind in kinds:
                return found

    async def answer(self, stream_id: int) -> tuple[bytes, dict[str, str]]:
        """The data and the last headers of a stream."""
        data = b""
        while True:
            found = await self.until(DATA, HEADERS)
            if found.stream_id != stream_id:
                continue
            if found.kind == DATA:
                data += found.body
            else:
                headers = self.decoder.decode(found.body)
                if found.flags & END_STREAM:
                    return data, headers

    async def fault(self) -> int:
        """The code of the GOAWAY that ends the connection; -1 if it ends without one."""
        try:
            gone = await self.until(GO_AWAY)
            await asyncio.wait_for(self.reader.read(), SECONDS)
        except (asyncio.IncompleteReadError, ConnectionError):
            return -1
        return int.from_bytes(gone.body[4:8])


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(body) << 8 | kind, flags, stream_id) + body


def head(path: str, **more: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return b"".join(literal(name, value) for name, value in headers.items())


def framed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def setting(key: int, value: int) -> bytes:
    return struct.pack(">HI", key, value)


class Place(NamedTuple):
    server: Http2Server
    methods: Methods
    port: int
    context: ssl.SSLContext | None = None
    """With it, the server speaks TLS."""

    @asynccontextmanager
    async def peer(self, settings: bytes = b"") -> AsyncIterator[Peer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        peer = Peer(reader, writer)
        writer.write(PREFACE)
        peer.send(SETTINGS, 0, 0, settings)
        try:
            yield peer
        finally:
            writer.close()
