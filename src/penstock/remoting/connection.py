"""The life of one connection: made, watched, closed; what is said over it is `peer`'s business.

    made ─▶ open ─┬─ close(): this turn's output leaves, then the socket closes ─▶ lost
                  ├─ abort(): at once, unsent output is dropped ────────────────▶ lost
                  └─ the other side ends it ─────────────────────────────────────▶ lost

One timer watches the silence. It is not touched by traffic: when it fires, it looks at when
something last moved, and either closes the connection or is set to the time that is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable
from typing import Final, Self, cast

from penstock.protocol.frames import FrameDecoder
from penstock.remoting.addresses import format_address
from penstock.remoting.limits import Limits
from penstock.remoting.outgoing import Outgoing
from penstock.remoting.partial_frames import PartialFrames
from penstock.remoting.write_batch import WriteBatch

log = logging.getLogger(__name__)

_KEEPALIVE_OPTIONS: Final = (
    # Seconds of silence before the first probe, between probes, and how many may be lost.
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
)


class Connection(asyncio.Protocol):
    """A transport with its bounds, its end and its name; subclasses give the bytes a meaning."""

    __slots__ = (
        "__weakref__",
        "_accepted",
        "_close_callbacks",
        "_decoder",
        "_heard_at",
        "_is_gathering",
        "_limits",
        "_loop",
        "_outgoing",
        "_partial_frames",
        "_timer",
        "_transport",
        "_write_batch",
        "close_reason",
        "data",
        "has_spoken",
        "is_closed",
        "local",
        "remote",
    )

    _transport: asyncio.Transport
    _outgoing: Outgoing

    def __init__(
        self,
        *,
        limits: Limits,
        write_batch: WriteBatch,
        loop: asyncio.AbstractEventLoop,
        accepted: bool,
        partial_frames: PartialFrames | None = None,
    ) -> None:
        self._limits = limits
        self._write_batch = write_batch
        self._loop = loop
        self._accepted = accepted
        self._decoder = FrameDecoder(limits.max_frame_bytes)
        self._partial_frames = partial_frames
        self._is_gathering = False
        self._close_callbacks: list[Callable[[], None]] = []
        self._heard_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.remote: str = "unknown"
        """The other end as ``ip:port``."""
        self.local: str = "unknown"
        """Our end as ``ip:port``."""
        self.data: dict[str, object] = {}
        """What the owner of the connection wants to remember about it."""
        self.close_reason: str = "not connected yet"
        """Why it is closed, for people."""
        self.is_closed: bool = True
        """Nothing can be said any more, or not yet."""
        self.has_spoken: bool = False
        """Whether a whole frame has come in."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.remote}{' closed' if self.is_closed else ''}>"

    # --------------------------------------------------------------------- for the owner

    def on_close(self, callback: Callable[[Self], None]) -> None:
        """Call ``callback(peer)`` when the connection is gone; soon, if it already is."""
        call = functools.partial(callback, self)
        if self._is_lost:
            self._loop.call_soon(call)
        else:
            self._close_callbacks.append(call)

    def close(self, reason: str = "closed on our side") -> None:
        """Let this turn's output leave, then close; a peer that does not take it is cut."""
        if not self.is_closed:
            self._end(reason)
            # What a handler answers after calling this still belongs to this turn.
            self._loop.call_soon(self._close_now)

    def abort(self, reason: str = "aborted on our side") -> None:
        """Close at once; what was not sent yet is dropped."""
        if self._is_lost:
            return
        if not self.is_closed:
            self._end(reason)
        self._outgoing.drop()
        self._transport.abort()

    def give_up(self, reason: str) -> None:
        """Cut it for the frame that it gathers."""
        self._cut(reason)
        self._decoder.drop()

    # --------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do all an asyncio.Transport does without being one by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.remote = format_address(transport.get_extra_info("peername"))
        self.local = format_address(transport.get_extra_info("sockname"))
        _tune(transport.get_extra_info("socket"))
        self._outgoing = Outgoing(self._loop, transport, self._limits, self._write_batch, self._cut)
        self.is_closed = False
        self.close_reason = ""
        patience = self._limits.first_frame_seconds if self._accepted else self._limits.idle_seconds
        self._timer = self._loop.call_later(patience, self._check_silence)
        log.debug("connected remote=%s local=%s", self.remote, self.local)

    def eof_received(self) -> None:
        """The other side will say no more. RocketMQ's peers never half-close: it has left.

        What was answered so far is sent; the transport closes by itself after this.
        """
        self._write_batch.end()
        self._leave("closed by the other side")

    def connection_lost(self, error: Exception | None) -> None:
        self._leave(f"{type(error).__name__}: {error}" if error else "closed by the other side")
        self._stop_timer()
        self._outgoing.drop()
        # Whoever still knows the connection must not keep megabytes of it.
        self._decoder.drop()
        if self._is_gathering:
            self._note_unfinished()
        self._lost()
        level = logging.INFO if error else logging.DEBUG
        log.log(level, "disconnected remote=%s reason=%s", self.remote, self.close_reason)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("callback of a lost connection failed callback=%r", callback)

    def pause_writing(self) -> None:
        log.debug(
            "peer takes its answers slowly, reading from it is paused remote=%s waiting=%d",
            self.remote,
            self._transport.get_write_buffer_size(),
        )
        self._outgoing.block()
        self._update_reading()

    def resume_writing(self) -> None:
        self._outgoing.unblock()
        self._update_reading()

    # -------------------------------------------------------------------- for subclasses

    def _lost(self) -> None:
        """The connection is gone; whatever waited for it must be told."""

    def _wants_input(self) -> bool:
        """Whether more may be read, as far as the subclass is concerned."""
        return True

    def _update_reading(self) -> None:
        """Read if and only if there is room for the answers."""
        transport = self._transport
        if transport.is_closing():
            return
        if self._outgoing.is_blocked or self.is_closed or not self._wants_input():
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _note_unfinished(self) -> None:
        """Have the server know how much of a frame that came in pieces is there."""
        size = self._decoder.buffered
        self._is_gathering = size > 0
        if self._partial_frames is not None:
            self._partial_frames.note(self, size)

    def _end(self, reason: str) -> None:
        """Note why it ended, first reason wins, and see to it that the end comes in time."""
        self.is_closed = True
        self.close_reason = reason
        self._stop_timer()
        self._timer = self._loop.call_later(self._limits.close_seconds, self._close_overdue)

    # ------------------------------------------------------------------------- private

    @property
    def _is_lost(self) -> bool:
        """Gone for good: closed, and nothing is left to watch over."""
        return self.is_closed and self._timer is None

    def _leave(self, reason: str) -> None:
        """The other side ended it, unless we did before."""
        if self.is_closed:
            return
        if self._decoder.buffered:
            log.warning(
                "connection ended inside a frame remote=%s bytes=%d",
                self.remote,
                self._decoder.buffered,
            )
        self._end(reason)

    def _close_now(self) -> None:
        self._write_batch.end()
        self._transport.close()

    def _close_overdue(self) -> None:
        log.warning(
            "closing connection cut, its last bytes were not taken remote=%s waiting=%d",
            self.remote,
            self._transport.get_write_buffer_size(),
        )
        self.abort()

    def _cut(self, reason: str) -> None:
        """The other side takes no bytes: end it, and tell the operator why."""
        log.warning("connection cut remote=%s reason=%s", self.remote, reason)
        self.abort(reason)

    def _check_silence(self) -> None:
        limits = self._limits
        if self._accepted and not self.has_spoken:
            received = self._decoder.buffered
            log.log(
                logging.WARNING if received else logging.INFO,
                "connection closed, no request came in time remote=%s seconds=%g bytes=%d",
                self.remote,
                limits.first_frame_seconds,
                received,
            )
            self.close(f"no request within {limits.first_frame_seconds:g} s of connecting")
            return
        silent_since = max(self._heard_at, self._outgoing.flushed_at)
        left = silent_since + limits.idle_seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
            return
        log.info("idle connection closed remote=%s seconds=%g", self.remote, limits.idle_seconds)
        self.close(f"idle for {limits.idle_seconds:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _tune(sock: socket.socket | None) -> None:
    """Small answers leave at once; a host that vanished is noticed (an in-memory network has no
    socket to tune)."""
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_OPTIONS:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
