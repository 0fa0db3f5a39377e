"""The byte stream of a connection, cut into frames.

    length:4 | serializer:1 header_length:3 | header | body      (length counts what follows it)

There is no magic and no checksum, so only the two length words tell a RocketMQ peer from another
program. They are checked as soon as they are received: a frame that announces more than the limit
is refused before any of it is buffered.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, NoReturn, TypeAlias

from penstock.errors import ProtocolError

JSON: Final = 0
BINARY: Final = 1
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""RocketMQ's own limit; it counts the whole frame with its first length word."""
MAX_HEADER_BYTES: Final = 0xFF_FFFF

_LENGTHS: Final = Struct(">iI")
_LENGTH_BYTES: Final = _LENGTHS.size
_unpack_lengths: Final = _LENGTHS.unpack_from
_new_tuple: Final = tuple.__new__


class Frame(NamedTuple):
    """One frame: the serialisation of its header, the header, the body."""

    serializer: int
    header: bytes
    body: bytes


BareFrame: TypeAlias = tuple[int, bytes, bytes]
"""The values of a `Frame` as a plain tuple, which takes half the time to make."""


class FrameDecoder:
    """Bytes in, frames out; it owns its buffer and nothing else.

    Whole frames are cut straight out of the chunk they came in. Only a frame that spans chunks is
    gathered in the buffer, and the buffer never holds more than that one frame: however small the
    chunks are, every byte is copied a fixed number of times.
    """

    __slots__ = ("_buffer", "_max_length", "_wanted")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_length = max_frame_bytes - 4
        self._buffer = bytearray()
        # How long the buffer must be before it is worth looking at: both length words first,
        # then the whole frame.
        self._wanted = _LENGTH_BYTES

    def limit(self, max_frame_bytes: int) -> None:
        """Refuse longer frames from now on."""
        self._max_length = max_frame_bytes - 4

    @property
    def buffered(self) -> int:
        """The buffered bytes of a partly received frame."""
        return len(self._buffer)

    def drop(self) -> None:
        """Drop the partly received frame."""
        self._buffer = bytearray()
        self._wanted = _LENGTH_BYTES

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames ``data`` completes; keep the rest for the next call.

        A ``ProtocolError`` is final: the stream has no mark to find the next frame by.
        """
        return [_new_tuple(Frame, frame) for frame in self.cut(data)]

    def cut(self, data: bytes) -> list[BareFrame]:
        """As ``feed``, with plain tuples, for callers that unpack a frame at once."""
        frames: list[BareFrame] = []
        start = self._finish_buffered(data, frames) if self._buffer else 0
        size = len(data)
        # No legal frame is shorter than both length words, so peeking at them never waits for
        # bytes that will not come.
        while size - start >= _LENGTH_BYTES:
            length, mark = _unpack_lengths(data, start)
            end = start + 4 + length
            header = start + _LENGTH_BYTES
            serializer = mark >> 24
            body = header + (mark & MAX_HEADER_BYTES)
            if length < 4 or length > self._max_length or body > end or serializer > BINARY:
                self._refuse(length, mark)
            if end > size:
                self._wanted = end - start
                break
            frames.append((serializer, data[header:body], data[body:end]))
            start = end
        if start < size:
            self._buffer += memoryview(data)[start:]
        return frames

    def _finish_buffered(self, data: bytes, frames: list[BareFrame]) -> int:
        """Complete the buffered frame; return how many bytes of ``data`` it took."""
        buffer = self._buffer
        taken = 0
        while True:
            lacking = self._wanted - len(buffer)
            part = data[taken : taken + lacking]
            buffer += part
            taken += len(part)
            if len(part) < lacking:
                return taken
            length, mark = _unpack_lengths(buffer)
            header_length = mark & MAX_HEADER_BYTES
            is_sound = 4 + header_length <= length <= self._max_length
            if not is_sound or mark >> 24 > BINARY:
                self._refuse(length, mark)
            self._wanted = length + 4
            if len(buffer) == self._wanted:
                break
        body = _LENGTH_BYTES + header_length
        with memoryview(buffer) as view:
            frames.append((mark >> 24, bytes(view[_LENGTH_BYTES:body]), bytes(view[body:])))
        # A new buffer rather than clear(): nothing of a large frame stays allocated.
        self._buffer = bytearray()
        self._wanted = _LENGTH_BYTES
        return taken

    def _refuse(self, length: int, mark: int) -> NoReturn:
        start = _LENGTHS.pack(length, mark)
        if mark >> 24 > BINARY and 4 <= length <= self._max_length:
            what = f"frame with header serializer {mark >> 24}"
            expected = f"{JSON} (JSON) or {BINARY} (binary)"
        else:
            what = f"frame of {length} bytes with a header of {mark & MAX_HEADER_BYTES}"
            expected = f"4 to {self._max_length} bytes, header included"
        raise ProtocolError(
            f"{what}, its first bytes {start!r}",
            expected=expected,
            hint="is the peer a RocketMQ client, and this its remoting port?",
        )
