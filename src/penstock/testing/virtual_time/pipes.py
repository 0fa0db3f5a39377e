"""One direction of an in-memory connection.

A pipe keeps its bytes in order, also if latencies of writes differ; order between pipes is up to
the network. What the reader has not taken yet counts against the writer: the first
`SOCKET_BUFFER` bytes lie "in the kernel", the rest in the transport, where the protocol's
`pause_writing` sees them.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.virtual_time.network import Connection
    from penstock.testing.virtual_time.transports import Endpoint

SOCKET_BUFFER = 64 * 1024
MAX_READ = 256 * 1024
END_OF_STREAM = b""


def reset_error() -> ConnectionResetError:
    """What a socket raises when the other side reset the connection."""
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class Pipe:
    """One direction of a connection: bytes written and not yet read, in order.

    The pipe is its own handle on the queues of the loop (`_run`, `_cancelled`), so that moving
    bytes allocates no timer.
    """

    __slots__ = (
        "_cancelled",
        "_connection",
        "_give_up",
        "_items",
        "_last_arrival",
        "_network",
        "_reset_at",
        "_scheduled",
        "direction",
        "receiver",
        "sender",
        "unread",
        "vanished",
    )

    def __init__(self, connection: Connection, direction: str) -> None:
        self._connection = connection
        self._network = connection.network
        self.direction: str = direction
        self.sender: Endpoint
        self.receiver: Endpoint
        self.unread: int = 0
        # True: the connection is dead in this direction, and neither end knows.
        self.vanished: bool = False
        self._items: deque[tuple[float, bytes]] = deque()
        self._last_arrival = 0.0
        self._reset_at: float | None = None
        self._scheduled = False
        self._cancelled = False
        self._give_up: asyncio.TimerHandle | None = None

    # -- the writing side ---------------------------------------------------------------------

    def push(self, data: bytes) -> None:
        """Put ``data`` on its way; `END_OF_STREAM` says that nothing will follow."""
        self.unread += len(data)
        if self.vanished:
            self._watch_for_give_up()
            return
        arrival = self._arrival()
        self._items.append((arrival, data))
        if not self._scheduled and not self.receiver.reading_paused:
            self._schedule(arrival)

    def push_reset(self) -> None:
        """Tell the reader that the connection is gone, after what is already on its way."""
        if self.vanished or self._reset_at is not None:
            return
        self._reset_at = self._arrival()
        if not self._scheduled:
            self._schedule(self._reset_at)

    def _arrival(self) -> float:
        arrival = self._network.now + self._network.latency(
            self.sender.host_name, self.receiver.host_name
        )
        self._last_arrival = max(arrival, self._last_arrival)
        return self._last_arrival

    # -- on the way ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Look again: the reader resumed, or a partition healed."""
        if self._give_up is not None and not self._is_blocked():
            self._give_up.cancel()
            self._give_up = None
        if not self._scheduled and (self._items or self._reset_at is not None):
            self._schedule(self._network.now)

    def vanish(self) -> None:
        """Lose what is under way and all that follows, without a word to either side."""
        self.vanished = True
        self._items.clear()
        self._reset_at = None
        if self.unread:
            self._watch_for_give_up()

    def _is_blocked(self) -> bool:
        return self.vanished or self._network.is_cut_off(
            self.sender.host_name, self.receiver.host_name
        )

    def _watch_for_give_up(self) -> None:
        if self._give_up is None and self.unread and not self.sender.is_dead:
            self._give_up = self._network.loop.call_later(
                self._network.give_up_seconds,
                self._network_gave_up,
                context=self.sender.context,
            )

    def _network_gave_up(self) -> None:
        self._give_up = None
        if self._is_blocked():
            self.vanished = True
            self.sender.lose(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def stop_watching(self) -> None:
        """The writer is gone: stop waiting for an acknowledgement."""
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _schedule(self, when: float) -> None:
        self._scheduled = True
        self._network.loop.schedule_at(when, self)

    # -- the reading side ---------------------------------------------------------------------

    def _run(self) -> None:
        """Called by the loop when the first bytes are due."""
        self.receiver.context.run(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        receiver = self.receiver
        if self.vanished or receiver.is_dead or not receiver.is_open:
            return
        if self._is_blocked():
            self._watch_for_give_up()
            return
        now = self._network.now
        # An end that closes reads no more, but what is thrown away also makes room.
        is_paused = receiver.reading_paused and not receiver.is_closing()
        if self._reset_at is not None and (not self._items or is_paused):
            # A reset is noticed even by an end that reads nothing at the moment.
            if self._reset_at > now:
                self._schedule(self._reset_at)
                return
            self._items.clear()
            receiver.lose(reset_error())
            return
        if not self._items or is_paused:
            return
        if self._items[0][0] > now:
            self._schedule(self._items[0][0])
            return
        chunk = self._take(now)
        if self._items or self._reset_at is not None:
            self._schedule(max(now, self._items[0][0]) if self._items else now)
        self.unread -= len(chunk)
        self._hand_over(chunk)
        self.sender.made_room()

    def _take(self, now: float) -> bytes:
        """What one read returns: all that has arrived, or a random part of it."""
        items = self._items
        chunk = items.popleft()[1]
        if chunk and items and items[0][0] <= now and items[0][1]:
            parts = [chunk]
            size = len(chunk)
            while items and items[0][0] <= now and items[0][1] and size < MAX_READ:
                parts.append(items.popleft()[1])
                size += len(parts[-1])
            chunk = b"".join(parts)
        cut = self._network.split(self.sender.host_name, self.receiver.host_name, len(chunk))
        if cut:
            items.appendleft((now, chunk[cut:]))
            chunk = chunk[:cut]
        return chunk

    def _hand_over(self, chunk: bytes) -> None:
        receiver, connection = self.receiver, self._connection
        if receiver.is_closed:
            # The reader is gone: the kernel answers with a reset.
            if chunk:
                receiver.outgoing.push_reset()
            return
        if self._network.loses_connection(self.sender.host_name, receiver.host_name):
            connection.cut()
            return
        if chunk:
            self._network.record("data", connection.number, self.direction, len(chunk))
            receiver.deliver(chunk)
        else:
            self._network.record("eof", connection.number, self.direction)
            receiver.deliver_end()
