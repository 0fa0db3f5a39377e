"""What comes in on a connection, cut into frames; in a turn no more than others can wait for.

A few kilobytes of frames may take long to serve: messages that inflate, calls that each want an
answer. When a connection has had its part of a turn, what has come of it waits for the next one,
and its transport reads no more until all of that is taken: what waits is what was read at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from penstock.proxy.http2.frames import (
    HEAD,
    HEAD_BYTES,
    MAX_FRAME,
    MAX_WINDOW,
    PREFACE,
    Broken,
    Fault,
)
from penstock.proxy.http2.hpack import HeaderError

TURN_SECONDS: Final = 0.005
"""What a connection may take of a turn of the loop; if its last frame takes longer, it rests for as
long as that."""


class Input:
    """The receiving side of one connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        take: Callable[[int, int, int, bytes], None],
        broken: Callable[[Broken], None],
    ) -> None:
        """``take`` serves a frame: kind, flags, stream, body. ``broken`` ends the connection."""
        self._loop = loop
        self._take = take
        self._broken = broken
        self._transport: asyncio.Transport | None = None
        self.is_greeted = False
        self._rest = b""
        self._is_resting = False
        self._until = 0.0
        """When its part of the turn was over."""

    def open(self, transport: asyncio.Transport) -> None:
        """Receive from this from now on."""
        self._transport = transport

    def drop(self) -> None:
        """The connection is lost."""
        self._transport = None
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        if self._rest:
            data = self._rest + data
        if self._is_resting:
            # A transport may hand over what it had read when it was paused.
            self._rest = data
        else:
            self._take_turn(data)

    def resume(self) -> None:
        """Read again; a connection that closes reads until its peer does, too."""
        transport = self._transport
        if self._is_resting and transport is not None and not transport.is_closing():
            self._is_resting = False
            transport.resume_reading()

    def _take_turn(self, data: bytes) -> None:
        try:
            is_all = self._cut(data)
        except Broken as broken:
            self._broken(broken)
        except HeaderError as error:
            self._broken(Broken(Fault.COMPRESSION, str(error)))
        else:
            if is_all:
                self.resume()
            else:
                self._rest_now()

    def _rest_now(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not self._is_resting:
            self._is_resting = True
            transport.pause_reading()
        # The last frame may have taken long, so the others get as much again.
        self._loop.call_later(max(0.0, time.perf_counter() - self._until), self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            data, self._rest = self._rest, b""
            self._take_turn(data)

    def _cut(self, data: bytes) -> bool:
        """Take frames; whether it was all that are whole, and not just those for a turn."""
        position = 0
        if not self.is_greeted:
            if not data.startswith(PREFACE[: len(data)]):
                raise Broken(Fault.PROTOCOL, "the peer does not speak HTTP/2")
            if len(data) < len(PREFACE):
                self._rest = data
                return True
            self.is_greeted = True
            position = len(PREFACE)
        take = self._take
        now = time.perf_counter
        until = self._until = now() + TURN_SECONDS
        is_all = True
        end = len(data)
        while end - position >= HEAD_BYTES:
            word, flags, stream_id = HEAD.unpack_from(data, position)
            length = word >> 8
            if length > MAX_FRAME:
                raise Broken(Fault.FRAME_SIZE, f"frame of {length} bytes")
            begin = position + HEAD_BYTES
            if end - begin < length:
                break
            position = begin + length
            take(word & 0xFF, flags, stream_id & MAX_WINDOW, data[begin:position])
            if self._transport is None or self._transport.is_closing():
                return True
            if now() > until and position < end:
                is_all = False
                break
        self._rest = data[position:] if position else data
        return is_all
