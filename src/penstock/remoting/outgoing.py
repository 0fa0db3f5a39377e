"""The output of one connection: gathered for one loop turn, then sent with one write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.errors import IllegalMessage
from penstock.protocol.codes import request_name
from penstock.protocol.commands import RESPONSE, Buffer, Command, body_size, encode_head
from penstock.remoting.limits import Limits
from penstock.remoting.write_batch import WriteBatch

log = logging.getLogger(__name__)

LARGE: Final = 16 * 1024
"""Buffers of this size and above are passed to the transport as they are; smaller ones are joined,
since copying them costs less than one more entry in the list of buffers."""


class Outgoing:
    """Encodes, gathers and writes the output of one connection, and watches that it is taken.

    Its owner reports when the transport is over its high mark (`block`) and under its low mark
    again (`unblock`); ``cut`` ends the connection.
    """

    __slots__ = (
        "_cut",
        "_has_large",
        "_is_in_turn",
        "_limits",
        "_loop",
        "_parts",
        "_stuck_timer",
        "_taken_before",
        "_takes_lists",
        "_transport",
        "_write_batch",
        "_written_total",
        "flushed",
        "flushed_at",
        "is_blocked",
        "size",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        limits: Limits,
        write_batch: WriteBatch,
        cut: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._limits = limits
        self._write_batch = write_batch
        self._cut = cut
        self._parts: list[Buffer] = []
        self._has_large = False
        self._is_in_turn = False
        self._written_total = 0
        self._taken_before = 0
        self._stuck_timer: asyncio.TimerHandle | None = None
        self.size = 0
        """Bytes gathered in this turn."""
        self.is_blocked = False
        """Whether the peer takes its bytes too slowly to be sent more."""
        self.flushed_at = loop.time()
        self.flushed: Callable[[], None] | None = None
        """Called once, after the next flush."""
        # From Python 3.12 on, writelines of asyncio does not report that its buffer is over the
        # high mark, so a peer that reads nothing would be answered for ever. Before, it joined.
        self._takes_lists = not type(transport).__module__.startswith("asyncio.")
        transport.set_write_buffer_limits(high=limits.write_high, low=limits.write_low)

    def add(self, command: Command) -> None:
        """Encode ``command`` now, send it when the turn ends."""
        body = command.body
        if not body:
            head = encode_head(command, 0)
            self._parts.append(head)
            self.size += len(head)
        elif type(body) is bytes and len(body) < LARGE:
            head = encode_head(command, len(body))
            self._parts += (head, body)
            self.size += len(head) + len(body)
        else:
            self._add_in_parts(command)
        if not self._is_in_turn:
            self._is_in_turn = True
            self._write_batch.add(self)

    def add_frame(self, frame: bytes) -> None:
        """Send a frame that is encoded already when the turn ends."""
        self._parts.append(frame)
        self.size += len(frame)
        if not self._is_in_turn:
            self._is_in_turn = True
            self._write_batch.add(self)

    def _add_in_parts(self, command: Command) -> None:
        body = command.body
        length = body_size(body)
        head = encode_head(command, length)
        size = len(head) + length
        if size > self._limits.max_frame_bytes:
            kind = "answer" if command.flag & RESPONSE else request_name(command.code)
            raise IllegalMessage(
                f"{kind} of {size} bytes",
                expected=f"at most {self._limits.max_frame_bytes} bytes in one frame",
                hint="send less at once, or raise max_frame_bytes on both sides",
            )
        self.size += size
        self._parts.append(head)
        if isinstance(body, bytes | bytearray | memoryview):
            self._parts.append(body)
        elif length < LARGE:
            self._parts.append(b"".join(body))
            return
        else:
            self._parts += body
        self._has_large = True

    def flush(self) -> None:
        """Pass everything gathered to the transport, in one write."""
        self._is_in_turn = False
        parts = self._parts
        if not parts:
            return
        transport = self._transport
        if transport.is_closing():
            self.drop()
            return
        self._written_total += self.size
        self._parts = []
        self.size = 0
        self.flushed_at = self._loop.time()
        if self._has_large and self._takes_lists:
            transport.writelines(join_small(parts))
        else:
            transport.write(b"".join(parts))
        self._has_large = False
        if self.is_blocked:
            waiting = transport.get_write_buffer_size()
            if waiting > self._limits.write_cut:
                self._cut(
                    f"{waiting} bytes wait for a peer that does not take them "
                    f"(write_cut={self._limits.write_cut})"
                )
                return
        if self.flushed is not None:
            flushed, self.flushed = self.flushed, None
            flushed()

    def withhold(self, reason: str) -> None:
        """Drop the gathered output and cut the connection, whose answers are now incomplete."""
        self.drop()
        self._cut(reason)

    def drop(self) -> None:
        """Drop the gathered output and stop watching: the connection is lost."""
        self._parts.clear()
        self.size = 0
        self._is_in_turn = False
        self.flushed = None
        self.unblock()

    def block(self) -> None:
        """The transport is over its high mark: watch whether the peer takes anything."""
        self.is_blocked = True
        self._taken_before = self._taken()
        self._watch()

    def unblock(self) -> None:
        """The transport is under its low mark again."""
        self.is_blocked = False
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def _watch(self) -> None:
        self._stuck_timer = self._loop.call_later(self._limits.stuck_seconds, self._check_stuck)

    def _check_stuck(self) -> None:
        self._stuck_timer = None
        taken = self._taken()
        if taken == self._taken_before:
            self._cut(
                f"no byte of {self._transport.get_write_buffer_size()} waiting ones was taken "
                f"for {self._limits.stuck_seconds:g} s (stuck_seconds)"
            )
            return
        self._taken_before = taken
        self._watch()

    def _taken(self) -> int:
        """The bytes that the system has accepted since the connection was made."""
        return self._written_total - self._transport.get_write_buffer_size()


def join_small(parts: list[Buffer]) -> list[Buffer]:
    """``parts`` with adjacent small buffers joined, and large ones as they are."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE:
            small.append(part)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined
