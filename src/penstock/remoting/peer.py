"""One connection, both directions: matches answers to our requests, serves those of the peer.

    bytes ─▶ FrameDecoder ─▶ Command ─┬─ response ─▶ PendingRequests ─▶ done(answer)
                                      └─ request ──▶ handler ─┬─ Command ─▶ Outgoing ─▶ one write
                                                              ├─ Promise ─▶ later, the same way
                                                              ├─ bytes: a frame, ready to go
                                                              └─ None: no answer

A request whose header begins like one with a fast path is first offered to it, undecoded.

Everything happens inside ``data_received``: no task, no future and no timer per request. A handler
is a plain function; its return value is encoded at once and sent when the loop turn ends
(`write_batch`).

Two conditions stop the reading. The transport is over its high mark: the peer does not take its
answers, so it may not request more. And one chunk of requests may have answers of any size: when a
turn has gathered ``write_high`` bytes, the rest of the chunk waits in the backlog until they are
written.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.errors import (
    ConnectionLost,
    PenstockError,
    ProtocolError,
    RemotingError,
    RequestTimeout,
    SystemBusy,
    TooManyRequests,
)
from penstock.protocol.codes import request_name, response_name
from penstock.protocol.commands import ONEWAY, RESPONSE, Command, decode_command
from penstock.protocol.frames import JSON, BareFrame
from penstock.remoting.connection import Connection
from penstock.remoting.limits import Limits
from penstock.remoting.partial_frames import PartialFrames
from penstock.remoting.pending import Done, PendingRequests, finish
from penstock.remoting.promise import Promise, error_answer
from penstock.remoting.protocol_guess import SHOWN_BYTES, guess_protocol
from penstock.remoting.write_batch import WriteBatch

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[["Peer", Command], Command | Promise | bytes | None]
"""Serves a request. Called inside ``data_received``, so it must not block; see `Peer`."""

FastPath: TypeAlias = Callable[["Peer", bytes, bytes], bytes | None]
"""Serves a request of the usual kind from its JSON header and body, and returns the whole answer,
which is empty for a one-way request; None leaves it to the handler, which is the plain path."""

PeerHook: TypeAlias = Callable[["Peer"], None]

_MAX_REQUEST_ID: Final = 0x7FFF_FFFF
_KEY_BYTES: Final = 12
_NO_FAST_PATHS: Final[Mapping[bytes, FastPath]] = {}


def fast_path_key(code: int) -> bytes:
    """The first bytes of a header that is offered to the fast path of its code.

    RocketMQ's own clients write the keys of a header in alphabetical order; requests of other
    clients are served by the handler. Codes of two or three digits fit.
    """
    return b'{"code":%d,"' % code if code < 100 else b'{"code":%d,' % code


class Peer(Connection):
    """The other end of one connection.

    The handler's return value decides: a `Command` is the answer (its request id, serialisation
    and response bit are filled in here), a `Promise` is answered later, ``None`` is not answered.
    On hot paths a handler may encode the answer itself: ``bytes`` are a whole frame.
    A `PenstockError` it raises is answered with its code and text, anything else with SYSTEM_ERROR
    and a traceback in the log. A one-way request is never answered.
    """

    __slots__ = (
        "_backlog",
        "_fast_paths",
        "_handler",
        "_last_request_id",
        "_opened",
        "_pending",
        "_said_busy",
        "late_answers",
        "open_promises",
        "unasked_answers",
    )

    _pending: PendingRequests

    def __init__(
        self,
        handler: Handler,
        *,
        limits: Limits,
        write_batch: WriteBatch,
        loop: asyncio.AbstractEventLoop,
        accepted: bool,
        opened: PeerHook | None = None,
        fast_paths: Mapping[bytes, FastPath] = _NO_FAST_PATHS,
        partial_frames: PartialFrames | None = None,
    ) -> None:
        super().__init__(
            limits=limits,
            write_batch=write_batch,
            loop=loop,
            accepted=accepted,
            partial_frames=partial_frames,
        )
        self._handler = handler
        self._opened = opened
        self._fast_paths = fast_paths
        self._backlog: deque[BareFrame] = deque()
        self._last_request_id = 0
        self._said_busy = False
        self.open_promises: int = 0
        """Requests of the peer that wait for their promise."""
        self.unasked_answers: int = 0
        self.late_answers: int = 0

    # ------------------------------------------------------------------------- asking

    async def request(self, command: Command, timeout: float) -> Command:  # noqa: ASYNC109
        """Send a request and return its answer, with any code.

        Raises `RequestTimeout`, `ConnectionLost` or `TooManyRequests`.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        request_id = self.start_request(command, timeout, functools.partial(_settle, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.forget(request_id)
            raise

    def start_request(self, command: Command, timeout: float, done: Done) -> int:
        """Send a request; ``done`` gets the answer or the `RemotingError`, exactly once.

        Raises `ConnectionLost`, `TooManyRequests` or `RequestTimeout` (no time left) when nothing
        was sent; then ``done`` is not called. It is never called from within this call. Returns
        the request id, which is also written into ``command``.
        """
        if self.is_closed:
            raise ConnectionLost(f"connection to {self.remote} is closed: {self.close_reason}")
        if len(self._pending) >= self._limits.max_in_flight:
            raise TooManyRequests(
                f"{len(self._pending)} requests to {self.remote} wait for answers",
                expected=f"at most {self._limits.max_in_flight} (max_in_flight)",
                hint="send slower, or wait for answers",
            )
        if timeout <= 0:
            raise RequestTimeout(
                f"no time left to ask {self.remote} for {request_name(command.code)}"
            )
        # 0 is never used: the Node client takes it for "no number" and answers with another.
        request_id = self._last_request_id = self._last_request_id % _MAX_REQUEST_ID + 1
        command.request_id = request_id
        self._outgoing.add(command)
        self._pending.add(request_id, command.code, timeout, done)
        return request_id

    def oneway(self, command: Command) -> None:
        """Send a request without an answer; raises `ConnectionLost` if the connection is lost."""
        if self.is_closed:
            raise ConnectionLost(f"connection to {self.remote} is closed: {self.close_reason}")
        self._last_request_id = self._last_request_id % _MAX_REQUEST_ID + 1
        command.request_id = self._last_request_id
        command.flag |= ONEWAY
        self._outgoing.add(command)

    @property
    def in_flight(self) -> int:
        """Requests of ours that wait for an answer."""
        return len(self._pending)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way in either direction."""
        return (
            not self.open_promises
            and not self._backlog
            and not self._outgoing.size
            and not self._pending
            and not self._transport.get_write_buffer_size()
        )

    # ------------------------------------------------------------------------- serving

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            frames = self._decoder.cut(data)
        except ProtocolError as error:
            self._refuse_bytes(data, error)
            return
        if not frames or self._is_gathering:
            self._note_unfinished()
        if self._backlog:
            # Reading is paused, yet a TLS transport may still deliver bytes it had decrypted.
            self._backlog.extend(frames)
        elif frames:
            self.has_spoken = True
            self._serve(frames)

    def _serve(self, frames: Sequence[BareFrame]) -> None:
        """Handle frames in order, until the answers of this turn reach ``write_high`` bytes."""
        outgoing = self._outgoing
        write_high = self._limits.write_high
        max_promises = self._limits.max_promises
        handler = self._handler
        fast_paths = self._fast_paths
        remaining = iter(frames)
        for frame in remaining:
            if outgoing.size > write_high:
                self._set_aside([frame, *remaining])
                return
            serializer, header, body = frame
            if fast_paths and serializer == JSON and self.open_promises < max_promises:
                fast_path = fast_paths.get(header[:_KEY_BYTES])
                if fast_path is not None:
                    try:
                        short = fast_path(self, header, body)
                    except Exception as error:
                        self._answer_failure(decode_command(frame), error)
                        continue
                    if short:
                        outgoing.add_frame(short)
                        continue
                    if short is not None:
                        continue
            try:
                command = decode_command(frame)
            except ProtocolError as error:
                self._refuse_bytes(header, error)
                return
            flag = command.flag
            if flag & RESPONSE:
                self._take_answer(command)
                continue
            try:
                if self.open_promises >= max_promises and not flag & ONEWAY:
                    self._refuse_as_busy()
                answer = handler(self, command)
                if isinstance(answer, bytes):
                    if not flag & ONEWAY:
                        outgoing.add_frame(answer)
                else:
                    if answer.__class__ is not Command:
                        answer = self._later_or_never(command, answer)
                        if answer is None:
                            continue
                    if not flag & ONEWAY:
                        answer.request_id = command.request_id
                        answer.serializer = command.serializer
                        answer.flag = RESPONSE
                        outgoing.add(answer)
            except Exception as error:
                self._answer_failure(command, error)
            if self.is_closed:
                return

    def _later_or_never(self, request: Command, answer: Command | Promise | None) -> Command | None:
        if not isinstance(answer, Promise):
            return answer
        if request.flag & ONEWAY:
            answer.detach()
            return None
        early = answer.attach(self, request)
        if early is None:
            self.open_promises += 1
        return early

    def _set_aside(self, frames: Sequence[BareFrame]) -> None:
        """Serve the rest of a chunk after the gathered answers are written."""
        self._backlog.extend(frames)
        self._outgoing.flushed = self._serve_backlog
        self._update_reading()

    def _serve_backlog(self) -> None:
        if self.is_closed:
            self._backlog.clear()
            return
        if self._outgoing.is_blocked:
            return  # resume_writing comes back here.
        frames, self._backlog = list(self._backlog), deque()
        self._serve(frames)
        self._update_reading()

    def _wants_input(self) -> bool:
        return not self._backlog

    def _refuse_as_busy(self) -> None:
        if not self._said_busy:
            self._said_busy = True
            log.warning(
                "too many requests of a peer wait for answers, further ones are refused "
                "remote=%s waiting=%d max_promises=%d",
                self.remote,
                self.open_promises,
                self._limits.max_promises,
            )
        raise SystemBusy(
            f"[OVERLOAD]{self.open_promises} requests of this connection wait for answers"
        )

    def fulfil(self, answer: Command, request_id: int, serializer: int) -> bool:
        """Send the answer of a promise; ``False`` if the connection is lost."""
        self.open_promises -= 1
        if self._said_busy and self.open_promises < self._limits.max_promises // 2:
            self._said_busy = False
        if self.is_closed:
            return False
        answer.request_id = request_id
        answer.serializer = serializer
        answer.flag = RESPONSE
        self._outgoing.add(answer)
        return True

    def use_handler(self, handler: Handler) -> None:
        """Serve all further requests with ``handler``."""
        self._handler = handler
        self._fast_paths = _NO_FAST_PATHS

    def _take_answer(self, answer: Command) -> None:
        done = self._pending.take(answer.request_id)
        if done is not None:
            finish(done, answer)
            return
        if self._pending.was_abandoned(answer.request_id):
            self.late_answers += 1
            log.debug("late answer dropped remote=%s request_id=%d", self.remote, answer.request_id)
            return
        self.unasked_answers += 1
        if self.unasked_answers == 1:
            # One line per connection: a confused peer may send millions.
            log.warning(
                "answer without a request dropped, further ones are only counted "
                "remote=%s request_id=%d code=%s",
                self.remote,
                answer.request_id,
                response_name(answer.code),
            )

    def _answer_failure(self, request: Command, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            log.error(
                "handler failed request=%s remote=%s",
                request_name(request.code),
                self.remote,
                exc_info=error,
            )
        elif log.isEnabledFor(logging.DEBUG):
            log.debug(
                "request refused request=%s remote=%s error=%s",
                request_name(request.code),
                self.remote,
                error,
            )
        if not request.flag & ONEWAY:
            answer = error_answer(error)
            answer.request_id = request.request_id
            answer.serializer = request.serializer
            self._outgoing.add(answer)

    def _refuse_bytes(self, data: bytes, error: ProtocolError) -> None:
        log.warning(
            "connection closed, its bytes are not RocketMQ frames "
            "remote=%s error=%s bytes=%r from=%s",
            self.remote,
            error,
            bytes(data[:SHOWN_BYTES]),
            "a RocketMQ peer out of step" if self.has_spoken else guess_protocol(data),
        )
        self._backlog.clear()
        self.close(f"bytes that are not RocketMQ frames: {error.what}")

    # --------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._pending = PendingRequests(self._loop, self.remote)
        if self._opened is not None:
            self._opened(self)

    def eof_received(self) -> None:
        if self.open_promises or self._pending or self._backlog:
            log.info(
                "peer left with work under way remote=%s promises=%d requests=%d unserved=%d",
                self.remote,
                self.open_promises,
                len(self._pending),
                len(self._backlog),
            )
        super().eof_received()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._backlog:
            self._serve_backlog()

    def _lost(self) -> None:
        self._backlog.clear()
        self._pending.fail_all(self.close_reason)


def _settle(future: asyncio.Future[Command], answer: Command | RemotingError) -> None:
    if future.done():
        return
    if isinstance(answer, RemotingError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
