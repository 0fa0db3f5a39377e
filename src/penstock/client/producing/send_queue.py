"""Sends handed from other threads to the session's loop; `async_send_futures` is the way back."""

from __future__ import annotations

from typing import Final, TypeAlias

from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.sending import SendDone, unforeseen
from penstock.client.session.host import Host
from penstock.model import Message, MessageQueue
from penstock.runtime.burst import Burst

QueuedSend: TypeAlias = tuple[Message, SendDone, MessageQueue | None, float | None, bool]
"""Message, callback for the result, queue, timeout, whether refusals are retried."""

BURST: Final = 512
"""Messages taken in one turn of the session's loop. Their requests are written when the turn ends,
so a broker works on them while the next ones are taken."""


class SendQueue(Burst[QueuedSend]):
    """Messages on their way to the producer; `put` is called from any thread.

    The callback is called on the session's loop.
    """

    __slots__ = ("_core",)

    def __init__(self, core: ProducerCore, host: Host) -> None:
        super().__init__(
            host.call_soon, self._send_all, limit=BURST, reschedule=host.loop.call_soon
        )
        self._core = core

    def _send_all(self, sends: list[QueuedSend]) -> None:
        send, lanes = self._core.send, self._core.lanes
        for message, done, queue, timeout, retry_refusals in sends:
            try:
                if (
                    lanes is not None
                    and queue is None
                    and timeout is None
                    and lanes.take(message, done)
                ):
                    continue
                send(message, done, queue=queue, timeout=timeout, retry_refusals=retry_refusals)
            except Exception as error:
                # A message may hold objects of the user, whose methods may raise anything.
                done(unforeseen(error, "a message"))
