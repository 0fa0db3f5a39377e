"""The life cycle of one connection: opened, watched, closed; `peer` handles its content.

    made ─▶ open ─┬─ close(): this turn's output leaves, then the socket closes ─▶ lost
                  ├─ abort(): at once, unsent output is dropped ────────────────▶ lost
                  └─ the peer ends it ───────────────────────────────────────────▶ lost

One timer watches for silence. Traffic does not touch it: when it fires, it looks at the time of the
last traffic, and either closes the connection or is set to the remaining time.
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
    """A transport with its limits and addresses; subclasses give the bytes a meaning."""

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
        """Notes of the owner of the connection."""
        self.close_reason: str = "not connected yet"
        """Why it is closed, for logs and errors."""
        self.is_closed: bool = True
        """Whether nothing can be sent any more, or not yet."""
        self.has_spoken: bool = False
        """Whether a whole frame was received."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.remote}{' closed' if self.is_closed else ''}>"

    # --------------------------------------------------------------------- for the owner

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self._transport.get_extra_info("ssl_object") is not None

    @property
    def file_number(self) -> int:
        """The number of its open file; -1 where it has none."""
        socket = self._transport.get_extra_info("socket")
        return -1 if socket is None else socket.fileno()

    def on_close(self, callback: Callable[[Self], None]) -> None:
        """Call ``callback(peer)`` when the connection is lost; soon, if it already is."""
        call = functools.partial(callback, self)
        if self._is_lost:
            self._loop.call_soon(call)
        else:
            self._close_callbacks.append(call)

    def close(self, reason: str = "closed on our side") -> None:
        """Send the output of this turn, then close; a peer that does not take it is cut."""
        if not self.is_closed:
            self._end(reason)
            # An answer that a handler gives after calling this still belongs to this turn.
            self._loop.call_soon(self._close_now)

    def abort(self, reason: str = "aborted on our side") -> None:
        """Close at once; unsent output is dropped."""
        if self._is_lost:
            return
        if not self.is_closed:
            self._end(reason)
        self._outgoing.drop()
        self._transport.abort()

    def limit_frames(self, max_bytes: int | None) -> None:
        """Refuse longer frames from now on; None: as the limits of the connection say."""
        most = self._limits.max_frame_bytes
        self._decoder.limit(most if max_bytes is None else min(max_bytes, most))

    def give_up(self, reason: str) -> None:
        """Cut the connection because of the frame that it buffers."""
        self._cut(reason)
        self._decoder.drop()

    # --------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without inheriting from it.
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
        """The peer will send no more. RocketMQ's peers never half-close: it has left.

        The answers so far are sent; the transport then closes by itself.
        """
        self._write_batch.end()
        self._leave("closed by the peer")

    def connection_lost(self, error: Exception | None) -> None:
        self._leave(f"{type(error).__name__}: {error}" if error else "closed by the peer")
        self._stop_timer()
        self._outgoing.drop()
        # A remaining reference to the connection must not keep megabytes alive.
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

    @property
    def is_writable(self) -> bool:
        """Whether the connection is open and its peer takes what is sent."""
        return not self.is_closed and not self._outgoing.is_blocked

    # -------------------------------------------------------------------- for subclasses

    def _lost(self) -> None:
        """The connection is lost; what waits for it has to fail."""

    def _wants_input(self) -> bool:
        """Whether more may be read, as far as the subclass is concerned."""
        return True

    def _update_reading(self) -> None:
        """Read only while there is room for the answers."""
        transport = self._transport
        if transport.is_closing():
            return
        if self._outgoing.is_blocked or self.is_closed or not self._wants_input():
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _note_unfinished(self) -> None:
        """Report to the server how much of a partly received frame is buffered."""
        size = self._decoder.buffered
        self._is_gathering = size > 0
        if self._partial_frames is not None:
            self._partial_frames.note(self, size)

    def _end(self, reason: str) -> None:
        """Record why it ends (the first reason wins) and bound the time until it is closed."""
        self.is_closed = True
        self.close_reason = reason
        self._stop_timer()
        self._timer = self._loop.call_later(self._limits.close_seconds, self._close_overdue)

    # ------------------------------------------------------------------------- private

    @property
    def _is_lost(self) -> bool:
        """Whether it is closed and its last bytes are sent or dropped."""
        return self.is_closed and self._timer is None

    def _leave(self, reason: str) -> None:
        """The peer ended it, unless we did before."""
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
        """End the connection at once and log the reason for the operator."""
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
    """Send small answers at once and detect vanished hosts; an in-memory network has no socket."""
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_OPTIONS:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
