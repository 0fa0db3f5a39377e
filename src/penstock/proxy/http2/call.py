"""One call: a stream of a connection, with messages in both directions."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.proxy.http2.grpc_status import CallFailed, GrpcStatus

if TYPE_CHECKING:
    from penstock.proxy.http2.connection import Connection

PREFIX_BYTES: Final = 5
"""Before each message: whether it is compressed, and its length."""
_ZLIB_BITS: Final = {"gzip": 31, "deflate": 15}
_UNITS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_TIMEOUT_DIGITS: Final = 8
_MAX_UNREAD: Final = 256
LATE_SECONDS: Final = 60.0
"""What a client may take for the rest of a message, and to take some of what is sent to it."""
_LEAST_BYTES: Final = 16 << 10
"""Less than this in all that time is as good as nothing."""


class Method(NamedTuple):
    """What serves the calls of one path."""

    serve: Callable[[Call], Awaitable[None]]
    is_streaming: bool = False
    """Whether clients send several messages; otherwise a call begins when it has its only one."""
    max_message: int | None = None
    """Bytes of a message of a client; None: as many as the server allows."""
    quick: Callable[[Call], bool] | None = None
    """Serves a call without a task, if it can: it ends the call by `Call.answer`, now or later.
    False leaves the call to ``serve``, as it came."""


Methods = Mapping[str, Method]


class Call:
    """A call under way. Messages that a client sends are bytes, so are those to it."""

    __slots__ = (
        "_buffer",
        "_connection",
        "_head_bytes",
        "_is_changed",
        "_marked_at",
        "_marked_bytes",
        "_max_message",
        "_messages",
        "_unread",
        "begun_at",
        "counted",
        "ends",
        "ends_with",
        "flushed",
        "has_all",
        "headers",
        "is_head_sent",
        "is_open",
        "message",
        "method",
        "pending",
        "queued",
        "send_window",
        "stream_id",
        "taken",
        "task",
        "waiter",
        "whole",
    )

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        headers: Mapping[str, str],
        method: Method,
        *,
        send_window: int,
        max_message: int,
        head_bytes: int,
    ) -> None:
        self._connection = connection
        self._max_message = method.max_message or max_message
        self._head_bytes = head_bytes
        self.stream_id = stream_id
        self.headers = headers
        self.method = method
        self.send_window = send_window
        self.message = b""
        """The only message of a call that is not streaming."""
        self.task: asyncio.Task[None] | None = None
        self.has_all = False
        """Whether the client has sent all that it sends."""
        self.is_open = True
        """Whether its connection knows it: its client may be gone before it is answered."""
        self.is_head_sent = False
        self.pending = bytearray()
        """What the client does not take yet."""
        self.ends_with: bytes | None = None
        """The last frame, which waits for ``pending``."""
        self.queued = 0
        self.flushed = 0
        self.whole = 0
        """How much was flushed when ``pending`` was empty for the last time."""
        self.ends: list[int] = []
        """Where the messages end that are pending, as ``queued`` counts."""
        self.taken = 0
        """Bytes since the last frame that lets the client send more."""
        self.counted = 0
        """Bytes that the server knows to be kept."""
        self.begun_at = connection.heard_at
        """When the client began the message that is not complete."""
        self._marked_at: float | None = None
        self._marked_bytes = 0
        self.waiter: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._unread = 0
        self._is_changed: asyncio.Event | None = None

    # What a method uses

    @property
    def remote(self) -> str:
        """``ip:port`` of the client."""
        return self._connection.remote

    @property
    def timeout(self) -> float | None:
        """Seconds until the client gives up, from the beginning of the call."""
        return parse_timeout(self.headers.get("grpc-timeout", ""))

    def write(self, message: bytes) -> None:
        """Send a message; never waits."""
        self._connection.send_message(self, message)

    def answer(self, message: bytes) -> None:
        """Send the only message of a call and end it; never waits."""
        self._connection.answer(self, message)

    def answer_all(self, messages: Sequence[bytes]) -> bool:
        """Send all messages of a call and end it; False, and nothing, if the client does not take
        them now."""
        return self._connection.answer_all(self, messages)

    def go_on(self, serve: Callable[[Call], Awaitable[None]], left: Callable[[], object]) -> None:
        """Serve the rest of a call in a task; for what ``quick`` has begun.

        ``left`` is called instead if the client is gone before the task begins.
        """
        self._connection.go_on(self, serve, left)

    async def drain(self) -> None:
        """Return when the client takes, or has taken, all that was written."""
        while self.pending:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter

    async def read(self) -> bytes | None:
        """The next message of a client that sends several; None after the last one."""
        while not self._messages:
            if self.has_all:
                return None
            if self._is_changed is None:
                self._is_changed = asyncio.Event()
            self._is_changed.clear()
            await self._is_changed.wait()
        message = self._next()
        self._connection.count(self)
        return message

    # What the connection uses

    def feed(self, data: bytes) -> None:
        """Take bytes of the client; raises `CallFailed`."""
        limit = self._max_message
        if not self._buffer and not self.method.is_streaming and len(data) >= PREFIX_BYTES:
            length = int.from_bytes(data[1:PREFIX_BYTES])
            if not data[0] and length == len(data) - PREFIX_BYTES and length <= limit:
                self._take(data[PREFIX_BYTES:])
                return
        buffer = self._buffer
        if not buffer and self.method.is_streaming:
            self.begun_at = self._connection.heard_at
        buffer += data
        while len(buffer) >= PREFIX_BYTES:
            length = int.from_bytes(buffer[1:PREFIX_BYTES])
            if length > limit:
                raise CallFailed(
                    GrpcStatus.RESOURCE_EXHAUSTED,
                    f"message of {length} bytes, at most {limit} are allowed",
                )
            if len(buffer) < PREFIX_BYTES + length:
                return
            message = bytes(buffer[PREFIX_BYTES : PREFIX_BYTES + length])
            is_packed = buffer[0]
            del buffer[: PREFIX_BYTES + length]
            if is_packed:
                message = inflate(message, self.headers.get("grpc-encoding", ""), limit)
            self._take(message)
            if self.method.is_streaming:
                self.begun_at = self._connection.heard_at

    def _take(self, message: bytes) -> None:
        self._messages.append(message)
        self._unread += len(message)
        if self._is_changed is not None:
            self._is_changed.set()
        if len(self._messages) > (_MAX_UNREAD if self.method.is_streaming else 1):
            raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, "more messages than are expected")

    def _next(self) -> bytes:
        message = self._messages.popleft()
        self._unread -= len(message)
        return message

    @property
    def kept(self) -> int:
        """Bytes of the call in memory: what came in, and what the client does not take."""
        return (
            self._head_bytes
            + len(self._buffer)
            + self._unread
            + len(self.message)
            + len(self.pending)
        )

    @property
    def is_incomplete(self) -> bool:
        """Whether the rest of a message is awaited."""
        return bool(self._buffer) if self.method.is_streaming else not self.has_all

    @property
    def is_cut(self) -> bool:
        """Whether the client has got the beginning of a message, and not its end."""
        return bool(self.pending) and self.flushed not in (self.whole, *self.ends)

    def is_stuck(self, now: float) -> bool:
        """Whether the client takes next to nothing of what is pending; asked now and then."""
        if not self.pending:
            return False
        if self._marked_at is None or self.flushed - self._marked_bytes >= _LEAST_BYTES:
            self._marked_at, self._marked_bytes = now, self.flushed
            return False
        return now - self._marked_at > LATE_SECONDS

    def finish_input(self) -> None:
        """The client sends no more; raises `CallFailed`."""
        self.has_all = True
        if self._is_changed is not None:
            self._is_changed.set()
        if self._buffer:
            raise CallFailed(GrpcStatus.INTERNAL, "the message is cut off")
        if not self.method.is_streaming:
            if not self._messages:
                raise CallFailed(GrpcStatus.INTERNAL, "the call has no message")
            self.message = self._next()

    def wake(self) -> None:
        """Nothing is pending any more."""
        self.ends.clear()
        self._marked_at = None
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def inflate(message: bytes, encoding: str, max_message: int) -> bytes:
    """A message that its client has compressed; raises `CallFailed`."""
    bits = _ZLIB_BITS.get(encoding)
    if bits is None:
        raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"messages in the encoding {encoding[:40]!r}")
    unpacker = zlib.decompressobj(bits)
    try:
        content = unpacker.decompress(message, max_message + 1)
    except zlib.error as error:
        raise CallFailed(GrpcStatus.INTERNAL, f"the message is no {encoding}: {error}") from error
    if len(content) > max_message:
        raise CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, f"message of more than {max_message} bytes")
    if not unpacker.eof:
        raise CallFailed(GrpcStatus.INTERNAL, "the message is cut off")
    return content


def parse_timeout(text: str) -> float | None:
    """Seconds of a header such as ``20S`` or ``500m``; None without any."""
    digits, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits[:_MAX_TIMEOUT_DIGITS]) * unit
