"""One connection of HTTP/2, with the calls of its client.

Frames come in here and become calls; what calls send leaves by `Output`. Bytes come from peers:
what they make us keep is bounded, and what they make us do without a call is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

from penstock.proxy.http2 import frames
from penstock.proxy.http2.call import LATE_SECONDS, Call, Methods
from penstock.proxy.http2.frames import (
    MAX_WINDOW,
    SETTING,
    UINT32,
    Broken,
    Fault,
    frame,
    go_away,
    reset,
    unpadded,
    window_update,
)
from penstock.proxy.http2.grpc_status import CallFailed, GrpcStatus
from penstock.proxy.http2.hpack import (
    MAX_LIST_BYTES,
    HeaderDecoder,
    MalformedHeaders,
    TooManyHeaders,
)
from penstock.proxy.http2.input import Input
from penstock.proxy.http2.load import MAX_BYTES, MAX_CONNECTION_BYTES, MAX_CONNECTION_CALLS, Load
from penstock.proxy.http2.output import FIRST_WINDOW, Output, last_frame, no_grpc, refusal

log = logging.getLogger(__name__)

MAX_CONTROL_FRAMES: Final = 10_000
"""Between two rounds of the server: frames that are no part of a call cost time, too."""
MAX_SETTINGS: Final = 500
"""The same of settings: each changes the windows of all calls."""
MAX_BLOCK_BYTES: Final = 4 * MAX_LIST_BYTES
_CALL_WINDOW: Final = 1 << 20
_CONNECTION_WINDOW: Final = 16 << 20
_SHORT_HEAD: Final = 4096
_HEADER_BYTES: Final = 96
"""About what a header takes besides its text: a few bytes of a block make a short one."""


class Connection(asyncio.Protocol):
    """Serves one client."""

    def __init__(
        self,
        methods: Methods,
        *,
        max_message: int,
        load: Load,
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        self._methods = methods
        self._max_message = max_message
        self._load = load
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.remote = "127.0.0.1:0"
        self.calls: dict[int, Call] = {}
        self.opened_at = self.heard_at = self._loop.time()
        self.busy_at = self.heard_at
        """When it last had a call."""
        self.is_leaving = False
        self._kept = 0
        """Bytes of all calls."""
        self._control_frames = 0
        self._settings = 0
        self._pings = 0
        self._last_id = 0
        self._input = Input(self._loop, take=self._take, broken=self._break)
        self._decoder = HeaderDecoder()
        self._block: tuple[int, int, bytearray] | None = None
        """A header block that is continued: stream, flags, bytes."""
        self._block_at = 0.0
        self._taken = 0
        self._output = Output(
            self._loop, count=self.count, ended=self._close, overrun=self._drop_unread
        )

    @property
    def is_greeted(self) -> bool:
        """Whether its client has begun to speak HTTP/2."""
        return self._input.is_greeted

    # ------------------------------------------------------------------- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none
        self._input.open(transport)
        self._output.open(transport)
        peer = transport.get_extra_info("peername")
        if peer:
            host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
            self.remote = f"{host}:{peer[1]}"
        settings = b"".join(
            SETTING.pack(key, value)
            for key, value in (
                (frames.MAX_STREAMS, MAX_CONNECTION_CALLS),
                (frames.INITIAL_WINDOW, _CALL_WINDOW),
                (frames.LIST_SIZE, MAX_LIST_BYTES),
            )
        )
        self._send(frame(frames.SETTINGS, 0, 0, settings))
        self._send(window_update(0, _CONNECTION_WINDOW - FIRST_WINDOW))
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._input.drop()
        self._output.drop()
        for call in list(self.calls.values()):
            self._forget(call)
        self._drop_block()
        self._closed(self)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self._input.feed(data)

    def eof_received(self) -> bool:
        return False

    # -------------------------------------------------------------------------- frames

    def _take(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise Broken(Fault.PROTOCOL, "a header block is not continued")
        if kind == frames.DATA:
            self._take_data(flags, stream_id, body)
        elif kind == frames.HEADERS:
            self._take_headers(flags, stream_id, body)
        elif kind == frames.WINDOW_UPDATE:
            self._take_window_update(stream_id, body)
        elif kind == frames.CONTINUATION:
            self._take_continuation(flags, body)
        elif kind == frames.PING:
            self._take_ping(flags, stream_id, body)
        else:
            self._count_control("too many frames that are no calls")
            if kind == frames.SETTINGS:
                self._take_settings(flags, stream_id, body)
            elif kind == frames.RESET:
                self._take_reset(stream_id, body)
            elif kind == frames.PUSH_PROMISE or (kind == frames.PRIORITY and len(body) != 5):
                raise Broken(Fault.PROTOCOL, f"a frame of the kind {kind}")
            # GOAWAY: the client opens no more streams, but awaits answers. Kinds that are not
            # known have no meaning.

    def _count_control(self, text: str) -> None:
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES:
            raise Broken(Fault.ENHANCE_YOUR_CALM, text)

    def _take_ping(self, flags: int, stream_id: int, body: bytes) -> None:
        if stream_id or len(body) != 8:
            raise Broken(Fault.PROTOCOL, "a ping that is none")
        self._pings += 1
        if self._pings > MAX_CONTROL_FRAMES + self._output.data_frames:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "too many pings")
        if not flags & frames.ACK:
            self._send(frame(frames.PING, frames.ACK, 0, body))

    def _take_headers(self, flags: int, stream_id: int, body: bytes) -> None:
        body = unpadded(flags, body)
        if flags & frames.HAS_PRIORITY:
            if len(body) < 5:
                raise Broken(Fault.FRAME_SIZE, "headers are cut off")
            body = body[5:]
        if not stream_id & 1:
            raise Broken(Fault.PROTOCOL, f"a client opens stream {stream_id}")
        if flags & frames.END_HEADERS:
            self._take_block(flags, stream_id, body)
        else:
            self._block = (stream_id, flags, bytearray(body))
            self._block_at = self.heard_at
            self._count_block(len(body))

    def _take_continuation(self, flags: int, body: bytes) -> None:
        if self._block is None:
            raise Broken(Fault.PROTOCOL, "a continuation of nothing")
        stream_id, first_flags, block = self._block
        block += body
        self._count_block(len(body))
        # Empty ones would never end.
        self._count_control("a header block without end")
        if len(block) > MAX_BLOCK_BYTES:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & frames.END_HEADERS:
            self._drop_block()
            self._take_block(first_flags, stream_id, bytes(block))

    def _count_block(self, size: int) -> None:
        self._kept += size
        self._load.size += size
        if self._load.is_too_much(self._kept):
            raise Broken(Fault.ENHANCE_YOUR_CALM, "too much is kept for another header block")

    def _drop_block(self) -> None:
        if self._block is not None:
            size = len(self._block[2])
            self._block = None
            self._kept -= size
            self._load.size -= size

    def _take_block(self, flags: int, stream_id: int, block: bytes) -> None:
        too_many = None
        is_malformed = False
        headers: dict[str, str] = {}
        try:
            headers = self._decoder.decode(block)
        except TooManyHeaders as error:
            too_many = str(error)
        except MalformedHeaders:
            is_malformed = True
        call = self.calls.get(stream_id)
        if call is not None:
            # What follows the messages of a client says nothing that is needed.
            if call.has_all or not flags & frames.END_STREAM:
                raise Broken(Fault.PROTOCOL, "headers within a stream")
            self._finish_input(call)
            return
        if stream_id <= self._last_id:
            # An answer was quicker than the rest of the request.
            return
        if self.is_leaving:
            return
        self._last_id = stream_id
        if self._load.is_full(len(self.calls)):
            self._send(reset(stream_id, Fault.REFUSED_STREAM))
        elif is_malformed:
            self._send(reset(stream_id, Fault.PROTOCOL))
        elif too_many is not None:
            self._refuse(flags, stream_id, CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, too_many))
        else:
            size = len(block) + _HEADER_BYTES * len(headers)
            self._open(flags, stream_id, headers, size)

    def _open(self, flags: int, stream_id: int, headers: dict[str, str], size: int) -> None:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(
            "application/grpc"
        ):
            self._send(no_grpc(stream_id))
            self._reset_unless_all(flags, stream_id)
            return
        method = self._methods.get(headers.get(":path", ""))
        if method is None:
            text = f"no method {headers.get(':path', '')[:200]}"
            self._refuse(flags, stream_id, CallFailed(GrpcStatus.UNIMPLEMENTED, text))
            return
        call = self.calls[stream_id] = Call(
            self,
            stream_id,
            headers,
            method,
            send_window=self._output.first_window,
            max_message=self._max_message,
            head_bytes=size,
        )
        self._load.calls += 1
        # Short headers of a call that is about to begin count with its message.
        if (method.is_streaming or size > _SHORT_HEAD) and not self._has_room(call):
            return
        if method.is_streaming:
            self._start(call)
        if flags & frames.END_STREAM:
            self._finish_input(call)

    def _take_data(self, flags: int, stream_id: int, body: bytes) -> None:
        size = len(body)
        # A client may always send more: what is kept of it is bounded in other ways.
        self._taken += size
        if self._taken >= _CONNECTION_WINDOW // 2:
            self._send(window_update(0, self._taken))
            self._taken = 0
        content = unpadded(flags, body)
        if not content and not flags & frames.END_STREAM:
            self._count_control("too many empty frames")
        call = self.calls.get(stream_id)
        if call is None:
            if not stream_id or (stream_id > self._last_id and not self.is_leaving):
                raise Broken(Fault.PROTOCOL, f"data of stream {stream_id}, which is not open")
            return
        if call.has_all:
            raise Broken(Fault.STREAM_CLOSED, "data after the end")
        try:
            call.feed(content)
        except CallFailed as failed:
            self._fail(call, failed)
            return
        if flags & frames.END_STREAM:
            self._finish_input(call)
            return
        if not self._has_room(call):
            return
        call.taken += size
        if call.taken >= _CALL_WINDOW // 2:
            self._send(window_update(stream_id, call.taken))
            call.taken = 0

    def count(self, call: Call) -> None:
        """Note how much of a call is kept."""
        # A task of the call may come after its end.
        if call.is_open:
            change = call.kept - call.counted
            call.counted += change
            self._kept += change
            self._load.size += change

    def _has_room(self, call: Call) -> bool:
        """Whether there is room for what has come of a call, which fails otherwise."""
        self.count(call)
        if not self._load.is_too_much(self._kept):
            return True
        text = (
            f"requests and answers that wait are too large, {self._kept} bytes: at most "
            f"{MAX_CONNECTION_BYTES} of a connection and {MAX_BYTES} of all"
        )
        self._fail(call, CallFailed(GrpcStatus.RESOURCE_EXHAUSTED, text))
        return False

    def _take_window_update(self, stream_id: int, body: bytes) -> None:
        if len(body) != 4:
            raise Broken(Fault.FRAME_SIZE, "a window update that is none")
        more = UINT32.unpack(body)[0] & MAX_WINDOW
        if not more:
            raise Broken(Fault.PROTOCOL, "a window update of nothing")
        if not stream_id:
            self._output.widen(more)
            return
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id > self._last_id and not self.is_leaving:
                raise Broken(Fault.PROTOCOL, f"a window of stream {stream_id}")
            return
        self._output.widen_call(call, more)

    def _take_settings(self, flags: int, stream_id: int, body: bytes) -> None:
        if stream_id or len(body) % SETTING.size or (flags & frames.ACK and body):
            raise Broken(Fault.PROTOCOL, "settings that are none")
        if flags & frames.ACK:
            return
        self._settings += 1
        if self._settings > MAX_SETTINGS:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "too many settings")
        first_window = self._output.first_window
        for key, value in SETTING.iter_unpack(body):
            if key == frames.INITIAL_WINDOW:
                if value > MAX_WINDOW:
                    raise Broken(Fault.FLOW_CONTROL, "the first window is too large")
                first_window = value
            elif key == frames.FRAME_SIZE:
                self._output.change_max_frame(value)
        self._send(frame(frames.SETTINGS, frames.ACK, 0, b""))
        # Once for a frame: it may name thousands of windows, and there may be thousands of calls.
        if first_window != self._output.first_window:
            self._output.change_first_window(first_window, self.calls.values())

    def _take_reset(self, stream_id: int, body: bytes) -> None:
        if len(body) != 4 or not stream_id or (stream_id > self._last_id and not self.is_leaving):
            raise Broken(Fault.PROTOCOL, "a reset that is none")
        call = self.calls.get(stream_id)
        if call is not None:
            self._forget(call)

    # --------------------------------------------------------------------------- calls

    def _finish_input(self, call: Call) -> None:
        try:
            call.finish_input()
        except CallFailed as failed:
            self._fail(call, failed)
            return
        if not self._has_room(call):
            return
        if not call.method.is_streaming:
            self._start(call)

    def _start(self, call: Call) -> None:
        quick = call.method.quick
        if quick is not None:
            try:
                if quick(call):
                    return
            except Exception:
                log.exception("call failed path=%s", call.headers.get(":path"))
                self._end(call, CallFailed(GrpcStatus.UNKNOWN, "the server failed"))
                return
        call.task = self._loop.create_task(self._serve(call, call.method.serve))

    def go_on(
        self,
        call: Call,
        serve: Callable[[Call], Awaitable[None]],
        left: Callable[[], object],
    ) -> None:
        """Serve the rest of a call in a task; ``left`` is called if that never begins."""
        if not call.is_open:
            left()
            return
        has_begun = False

        async def begin(call: Call) -> None:
            nonlocal has_begun
            has_begun = True
            await serve(call)

        # A task that is cancelled in the turn that made it runs nothing at all.
        call.task = self._loop.create_task(self._serve(call, begin))
        call.task.add_done_callback(lambda task: None if has_begun else left())

    async def _serve(self, call: Call, serve: Callable[[Call], Awaitable[None]]) -> None:
        try:
            await serve(call)
        except CallFailed as failed:
            self._end(call, failed)
        except asyncio.CancelledError:
            self._end(call, CallFailed(GrpcStatus.UNKNOWN, "the server stops"))
            raise
        except Exception:
            log.exception("call failed path=%s", call.headers.get(":path"))
            self._end(call, CallFailed(GrpcStatus.UNKNOWN, "the server failed"))
        else:
            self._end(call, None)

    def _fail(self, call: Call, failed: CallFailed) -> None:
        """End a call for what its client has sent."""
        task = call.task
        self._end(call, failed)
        if task is not None:
            task.cancel()

    def _forget(self, call: Call) -> None:
        """A call whose client is gone."""
        if not call.is_open:
            return
        self._remove(call)
        if call.task is not None:
            call.task.cancel()

    def _remove(self, call: Call) -> None:
        del self.calls[call.stream_id]
        call.is_open = False
        self._output.forget(call)
        self._kept -= call.counted
        self._load.size -= call.counted
        self._load.calls -= 1
        call.counted = 0
        self.busy_at = self._loop.time()

    def _refuse(self, flags: int, stream_id: int, failed: CallFailed) -> None:
        self._send(refusal(stream_id, failed))
        self._reset_unless_all(flags, stream_id)

    def _reset_unless_all(self, flags: int, stream_id: int) -> None:
        if not flags & frames.END_STREAM:
            self._send(reset(stream_id, Fault.NO_ERROR))

    # ------------------------------------------------------------------------- sending

    def send_message(self, call: Call, message: bytes) -> None:
        """Send a message of a call, as far as its client takes it now."""
        if call.is_open:
            self._output.send_message(call, message)

    def answer(self, call: Call, message: bytes) -> None:
        """Send the only message of a call and end it."""
        if not call.is_open:
            return
        if call.has_all and not call.is_head_sent and self._output.send_answer(call, message):
            self._remove(call)
            self._close_if_done()
        else:
            self._output.send_message(call, message)
            self._end(call, None)

    def answer_all(self, call: Call, messages: Sequence[bytes]) -> bool:
        """Send all messages of a call and end it, if its client takes them now."""
        if not call.is_open or not call.has_all or call.is_head_sent:
            return False
        if not self._output.send_answers(call, messages):
            return False
        self._remove(call)
        self._close_if_done()
        return True

    def _end(self, call: Call, failed: CallFailed | None) -> None:
        """End a call after what it has to send."""
        if not call.is_open:
            return
        if failed is not None and call.is_cut:
            # A client would take what follows for the rest of the message.
            self._remove(call)
            self._send(reset(call.stream_id, Fault.INTERNAL))
            return
        last = last_frame(call, failed)
        if call.pending and failed is None:
            call.ends_with = last
            call.message = b""
            self.count(call)
        else:
            self._close(call, last)

    def _close(self, call: Call, last: bytes) -> None:
        self._remove(call)
        self._send(last)
        if not call.has_all:
            # The client need not send the rest.
            self._send(reset(call.stream_id, Fault.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self.is_leaving and not self.calls:
            self.close()

    def _send(self, data: bytes) -> None:
        self._output.send(data)

    def _drop_unread(self) -> None:
        log.info("client does not read, dropped remote=%s", self.remote)
        self.abort()

    # ------------------------------------------------------------------------- the end

    def look_after(self, now: float) -> None:
        """Begin another round: count anew, and end what does not get on."""
        self._control_frames = self._settings = self._pings = self._output.data_frames = 0
        for call in list(self.calls.values()):
            if call.is_incomplete and now - call.begun_at > LATE_SECONDS:
                text = f"the message is not complete after {LATE_SECONDS:g} seconds"
                self._fail(call, CallFailed(GrpcStatus.DEADLINE_EXCEEDED, text))
            elif call.is_stuck(now):
                log.info("client takes no answer remote=%s stream=%d", self.remote, call.stream_id)
                self._send(reset(call.stream_id, Fault.CANCEL))
                self._forget(call)
        if self._block is not None and now - self._block_at > LATE_SECONDS:
            self._break(Broken(Fault.PROTOCOL, "a header block is not continued"))
        else:
            self._close_if_done()

    def ping(self) -> None:
        """Have the client say that it is there."""
        self._send(frame(frames.PING, 0, 0, bytes(8)))

    def leave(self) -> None:
        """Take no more calls; the connection ends with the last one."""
        if not self.is_leaving:
            self.is_leaving = True
            self._send(go_away(self._last_id, Fault.NO_ERROR, ""))
            if not self.calls:
                self.close()

    def close(self) -> None:
        """Close the connection; what is written is sent if the client takes it."""
        self._output.write()
        if self._transport is not None:
            self._input.resume()
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _break(self, broken: Broken) -> None:
        log.info("connection ended remote=%s error=%s", self.remote, broken)
        if self._transport is None:
            return
        if self.is_greeted:
            self._send(go_away(self._last_id, broken.fault, str(broken)))
        for call in list(self.calls.values()):
            self._forget(call)
        self.close()
