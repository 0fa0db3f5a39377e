"""What leaves a connection: all that a turn of the loop brings, in one write.

Messages wait in their calls for as long as the client does not take them: for the window of the
call, for that of the connection, or for the transport. Control frames never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final
from urllib.parse import quote

from penstock.proxy.http2 import frames
from penstock.proxy.http2.call import PREFIX_BYTES, Call
from penstock.proxy.http2.frames import (
    HEAD,
    MAX_FRAME,
    MAX_WINDOW,
    UINT32,
    Broken,
    Fault,
    frame,
)
from penstock.proxy.http2.grpc_status import CallFailed
from penstock.proxy.http2.hpack import literal

MAX_UNSENT_BYTES: Final = 1 << 20
"""Answers to control frames, which a client does not take."""
FIRST_WINDOW: Final = 65_535
_FLUSH_BYTES: Final = 256 << 10
_MAX_TEXT: Final = 1000

# Status 200 has an entry in the static table.
_SAME: Final = b"\x88" + literal("content-type", "application/grpc")
_ENDED_OK: Final = literal("grpc-status", "0")
_LAST: Final = frames.END_STREAM | frames.END_HEADERS
# Headers, the beginning of the only message, and what follows it: an answer as most are.
_BEGIN: Final = Struct(f">IBI{len(_SAME)}sIBIBI")
_END: Final = Struct(f">IBI{len(_ENDED_OK)}s")
_SAME_HEAD: Final = len(_SAME) << 8 | frames.HEADERS
_ENDED_OK_HEAD: Final = len(_ENDED_OK) << 8 | frames.HEADERS


class Output:
    """The sending side of one connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        count: Callable[[Call], None],
        ended: Callable[[Call, bytes], None],
        overrun: Callable[[], None],
    ) -> None:
        """``count`` notes how much of a call waits, ``ended`` closes a call after all that waited,
        with its last frame, and ``overrun`` ends the connection of a client that does not read.
        """
        self._loop = loop
        self._count = count
        self._ended = ended
        self._overrun = overrun
        self._transport: asyncio.Transport | None = None
        self.first_window = FIRST_WINDOW
        """That of a new call."""
        self.data_frames = 0
        """Those that were sent: clients measure the line with a ping after each."""
        self._max_frame = MAX_FRAME
        self._window = FIRST_WINDOW
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unsent = 0
        """Bytes that were written although the client does not read."""
        self._is_flushing = False
        self._is_paused = False
        self._held_up: dict[int, Call] = {}
        """Calls that wait for the window of the connection, or for its transport.

        Those that wait for their own window are not here: nothing but a frame of theirs helps them.
        """

    # The transport

    def open(self, transport: asyncio.Transport) -> None:
        """Send to this from now on."""
        self._transport = transport

    def drop(self) -> None:
        """The connection is lost."""
        self._transport = None
        self._out.clear()

    def pause(self) -> None:
        """The transport has enough."""
        self._is_paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._is_paused = False
        self._unsent = 0
        self._send_held_up()

    def send(self, data: bytes) -> None:
        """Send frames when the turn ends."""
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)
        elif self._out_bytes > _FLUSH_BYTES:
            # A transport says only after a write that the client does not keep up.
            self.write()

    def _flush(self) -> None:
        self._is_flushing = False
        self.write()

    def write(self) -> None:
        """Pass on what was sent so far, now."""
        if self._transport is None or not self._out:
            return
        if self._is_paused:
            # Data waits for the client; this is the rest.
            self._unsent += self._out_bytes
        self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        if self._unsent > MAX_UNSENT_BYTES:
            self._overrun()

    # Messages

    def send_message(self, call: Call, message: bytes) -> None:
        """Send a message of a call, as far as its client takes it now."""
        if not call.is_head_sent:
            call.is_head_sent = True
            self.send(frame(frames.HEADERS, frames.END_HEADERS, call.stream_id, _SAME))
        size = PREFIX_BYTES + len(message)
        call.queued += size
        prefix = b"\0" + UINT32.pack(len(message))
        if not call.pending and self._has_room(call, size):
            self._use(call, size)
            self.send(HEAD.pack(size << 8, 0, call.stream_id) + prefix + message)
            return
        if not call.pending:
            call.whole = call.flushed
        call.pending += prefix
        call.pending += message
        call.ends.append(call.queued)
        self._send_pending(call)

    def send_answer(self, call: Call, message: bytes) -> bool:
        """Send the whole answer of a call, of which nothing was sent; False if it has to wait."""
        size = PREFIX_BYTES + len(message)
        if not self._has_room(call, size):
            return False
        self._use(call, size)
        stream_id = call.stream_id
        begin = _BEGIN.pack(
            _SAME_HEAD,
            frames.END_HEADERS,
            stream_id,
            _SAME,
            size << 8,
            0,
            stream_id,
            0,
            len(message),
        )
        self.send(begin + message + _END.pack(_ENDED_OK_HEAD, _LAST, stream_id, _ENDED_OK))
        return True

    def send_answers(self, call: Call, messages: Sequence[bytes]) -> bool:
        """The same of an answer with several messages, in as few frames as they fit in."""
        size = sum(map(len, messages)) + PREFIX_BYTES * len(messages)
        if size > call.send_window or size > self._window or self._is_paused:
            return False
        stream_id = call.stream_id
        data = b"".join([b"\0" + UINT32.pack(len(one)) + one for one in messages])
        out = [frame(frames.HEADERS, frames.END_HEADERS, stream_id, _SAME)]
        for begin in range(0, size, self._max_frame):
            part = data[begin : begin + self._max_frame]
            out.append(frame(frames.DATA, 0, stream_id, part))
            self._use(call, len(part))
        out.append(frame(frames.HEADERS, _LAST, stream_id, _ENDED_OK))
        self.send(b"".join(out))
        return True

    def _has_room(self, call: Call, size: int) -> bool:
        return (
            size <= call.send_window
            and size <= self._window
            and size <= self._max_frame
            and not self._is_paused
        )

    def _use(self, call: Call, size: int) -> None:
        call.send_window -= size
        self._window -= size
        call.flushed += size
        self.data_frames += 1

    def _send_pending(self, call: Call) -> None:
        pending = call.pending
        while pending and not self._is_paused:
            size = min(len(pending), call.send_window, self._window, self._max_frame)
            if size <= 0:
                break
            self.send(HEAD.pack(size << 8, 0, call.stream_id) + pending[:size])
            del pending[:size]
            self._use(call, size)
        self._count(call)
        if pending and call.send_window > 0:
            self._held_up[call.stream_id] = call
            return
        self._held_up.pop(call.stream_id, None)
        if not pending:
            call.wake()
            if call.ends_with is not None:
                self._ended(call, call.ends_with)

    def _send_held_up(self) -> None:
        # One that stays the first waits for the connection again, and so do all others.
        while self._held_up and self._window > 0 and not self._is_paused:
            self._send_pending(next(iter(self._held_up.values())))

    def forget(self, call: Call) -> None:
        """A call is over."""
        self._held_up.pop(call.stream_id, None)

    # What the client takes

    def widen(self, more: int) -> None:
        """The client takes more, of all calls together."""
        self._window += more
        if self._window > MAX_WINDOW:
            raise Broken(Fault.FLOW_CONTROL, "the window is too large")
        if self._held_up:
            self._send_held_up()

    def widen_call(self, call: Call, more: int) -> None:
        """The client takes more of a call."""
        call.send_window += more
        if call.send_window > MAX_WINDOW:
            raise Broken(Fault.FLOW_CONTROL, "the window of a stream is too large")
        if call.pending:
            self._send_pending(call)

    def change_first_window(self, size: int, calls: Iterable[Call]) -> None:
        """New calls have this window, and those under way so much more or less."""
        change = size - self.first_window
        self.first_window = size
        for call in list(calls):
            self.widen_call(call, change)

    def change_max_frame(self, size: int) -> None:
        """The client takes frames of this size."""
        if not MAX_FRAME <= size < 1 << 24:
            raise Broken(Fault.PROTOCOL, f"frames of {size} bytes")
        self._max_frame = size


def last_frame(call: Call, failed: CallFailed | None) -> bytes:
    """What ends a call."""
    block = _ENDED_OK if failed is None else _trailers(failed)
    return _last(call.stream_id, block if call.is_head_sent else _SAME + block)


def refusal(stream_id: int, failed: CallFailed) -> bytes:
    """The whole answer to a call that was not begun."""
    return _last(stream_id, _SAME + _trailers(failed))


def no_grpc(stream_id: int) -> bytes:
    """The whole answer to what is no call of gRPC."""
    return _last(stream_id, literal(":status", "415"))


def _last(stream_id: int, block: bytes) -> bytes:
    return frame(frames.HEADERS, _LAST, stream_id, block)


def _trailers(failed: CallFailed) -> bytes:
    text = quote(failed.text[:_MAX_TEXT], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return literal("grpc-status", str(int(failed.status))) + literal("grpc-message", text)
