"""One send, from the choice of a queue to the receipt, over as many attempts as it takes.

A send on an open connection needs no task and no future: an attempt is one call of
``Peer.start_request``, its answer a callback. Only a send that has to wait for a route or a
connection gets a task.

    go ─▶ queue ─▶ connection ─▶ request ─▶ answer ─┬─ stored ─▶ done(receipt)
     ▲                                              ├─ no, and another attempt is left
     └──────────────────────────────────────────────┘─ no ─▶ done(error)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.client.producing.outgoing import OutgoingMessage
from penstock.client.producing.receipts import Receipt, SendStatus, receipt
from penstock.client.requests import refusal
from penstock.errors import (
    PenstockError,
    ProtocolError,
    RemotingError,
    RequestTimeout,
    ServiceNotAvailable,
)
from penstock.model import Message, MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer

if TYPE_CHECKING:
    from penstock.client.producing.producer import ProducerCore

log = logging.getLogger(__name__)

SendDone: TypeAlias = Callable[[Receipt | PenstockError], None]

# Another broker may accept the message.
RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


def unforeseen(error: Exception, what: str) -> PenstockError:
    """Wrap an unexpected exception, so the waiting caller still gets an error."""
    if isinstance(error, PenstockError):
        return error
    log.error("send failed what=%s", what, exc_info=error)
    failure = PenstockError(f"{what} not sent: {error!r}")
    failure.__cause__ = error
    return failure


class Attempt(NamedTuple):
    """A first attempt without a receipt: what was sent, to which queue, and its answer."""

    outgoing: OutgoingMessage
    queue: MessageQueue
    born_ms: int
    begun: float
    left: float
    """Seconds left for further attempts."""
    answer: Command | RemotingError


class Send:
    """One send of a message or a batch.

    ``wish`` is the queue to send to, or None for any. ``make_command`` makes the request for a
    queue; each attempt needs a new one, because answers are matched by request id.
    """

    __slots__ = (
        "_attempts",
        "_avoid",
        "_begun",
        "_deadline",
        "_done",
        "_is_finished",
        "_make_command",
        "_message",
        "_msg_id",
        "_producer",
        "_queue",
        "_retries",
        "_retry_refusals",
        "_went_away",
        "_wish",
    )

    def __init__(
        self,
        producer: ProducerCore,
        message: Message,
        msg_id: str,
        make_command: Callable[[MessageQueue], Command],
        done: SendDone,
        *,
        wish: MessageQueue | None,
        timeout: float,
        retry_refusals: bool,
    ) -> None:
        self._producer = producer
        self._message = message
        self._msg_id = msg_id
        self._make_command = make_command
        self._done = done
        self._wish = wish
        self._deadline = producer.clock.monotonic() + timeout
        self._retry_refusals = retry_refusals
        # A retry goes to another queue, which a message bound to one queue does not have.
        is_bound = wish is not None or message.sharding_key is not None
        self._retries = 0 if is_bound else producer.settings.retries
        self._attempts = 0
        self._avoid: str | None = None
        self._queue: MessageQueue | None = None
        self._went_away = False
        self._begun = 0.0
        self._is_finished = False
        producer.sends.add(self)

    def go(self) -> None:
        """Make the next attempt."""
        producer = self._producer
        now = producer.clock.monotonic()
        try:
            target = producer.target(self._message, self._wish, now, self._avoid)
        except PenstockError as error:
            self._fail(error)
            return
        if target is None:
            producer.spawn(self._find_route(), self)
            return
        queue, address = target
        self._queue = queue
        self._begun = now
        self._attempts += 1
        if address is None:
            self._failed(
                ServiceNotAvailable(
                    f"broker {queue.broker_name!r} of {queue} has no master",
                    hint="is it up and registered at the name server?",
                )
            )
            return
        peer = producer.ready_peer(address)
        if peer is None:
            producer.spawn(self._connect(address), self)
        else:
            self._attempt(peer)

    def go_on(self, queue: MessageQueue, begun: float, answer: Command | RemotingError) -> None:
        """Continue after a first attempt that was made elsewhere, with its answer."""
        self._queue = queue
        self._begun = begun
        self._attempts = 1
        self._answered(answer)

    async def _find_route(self) -> None:
        producer = self._producer
        try:
            async with asyncio.timeout(self._left):
                await producer.session.publish_queues(
                    self._message.topic, producer.settings.default_topic_queues
                )
        except TimeoutError:
            self._fail(self._out_of_time(f"no route for topic {self._message.topic!r} yet"))
            return
        except PenstockError as error:
            self._fail(error)
            return
        self.go()

    async def _connect(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._left):
                peer = await self._producer.session.connect(address)
        except TimeoutError:
            self._failed(RequestTimeout(f"no connection to {address} in time"))
            return
        except PenstockError as error:
            self._failed(error)
            return
        self._attempt(peer)

    def _attempt(self, peer: Peer) -> None:
        queue = self._queue
        assert queue is not None
        try:
            peer.start_request(self._make_command(queue), self._left, self._answered)
        except PenstockError as error:
            self._failed(error)
        except Exception as error:
            self._fail(unforeseen(error, f"message {self._msg_id}"))

    def _answered(self, answer: Command | RemotingError) -> None:
        queue = self._queue
        assert queue is not None
        if not isinstance(answer, Command):
            self._failed(answer)
            return
        producer = self._producer
        try:
            stored = receipt(answer, self._msg_id, queue)
        except ProtocolError as error:
            self._fail(error)
            return
        if stored is not None:
            if producer.tracer is not None:
                producer.tracer.heard(queue.broker_name, answer.ext)
            if producer.faults is not None:
                now = producer.clock.monotonic()
                producer.faults.sent(queue.broker_name, now - self._begun, now)
            if stored.status is SendStatus.OK or not (
                producer.settings.retry_unless_stored and self._retries > 0
            ):
                if self._attempts > 1:
                    stored = stored._replace(attempts=self._attempts)
                self._finish(stored)
                return
            self._again(queue)
            return
        if answer.code == ResponseCode.GO_AWAY and not self._went_away:
            self._leave(queue)
            return
        self._refused(answer, queue)

    def _leave(self, queue: MessageQueue) -> None:
        # The server is about to stop: send the request once more, over a new connection.
        self._went_away = True
        session = self._producer.session
        address = session.routes.master(queue.broker_name)
        if address is not None and (peer := session.pool.find(address)) is not None:
            peer.close("the server asked to go away")
        self._producer.spawn(self._connect(address or ""), self)

    def _refused(self, answer: Command, queue: MessageQueue) -> None:
        producer = self._producer
        if producer.faults is not None:
            producer.faults.failed(queue.broker_name, producer.clock.monotonic(), is_reachable=True)
        if answer.code in RETRIED_CODES and self._retry_refusals and self._may_retry():
            self._again(queue)
            return
        address = producer.session.routes.master(queue.broker_name) or queue.broker_name
        error = refusal(answer, RequestCode.SEND_MESSAGE_V2, address, f"a message to {queue}")
        self._fail(error)

    def _failed(self, error: PenstockError) -> None:
        """No answer, so the message may or may not be stored."""
        producer = self._producer
        queue = self._queue
        assert queue is not None
        if producer.faults is not None:
            producer.faults.failed(
                queue.broker_name, producer.clock.monotonic(), is_reachable=False
            )
        if self._may_retry():
            self._again(queue)
            return
        tried = f"after {self._attempts} attempts" if self._attempts > 1 else "in one attempt"
        text = f"message {self._msg_id} to {queue} not confirmed {tried}: {error.what}"
        self._fail(type(error)(text, expected=error.expected, hint=error.hint))

    @property
    def _left(self) -> float:
        """Seconds left for all further attempts."""
        return self._deadline - self._producer.clock.monotonic()

    def _may_retry(self) -> bool:
        return (
            not self._is_finished
            and self._retries > 0
            and self._producer.clock.monotonic() < self._deadline
        )

    def _again(self, queue: MessageQueue) -> None:
        self._retries -= 1
        self._avoid = queue.broker_name
        self.go()

    def _out_of_time(self, why: str) -> RequestTimeout:
        return RequestTimeout(
            f"message {self._msg_id} not sent in time: {why}",
            hint="raise send_timeout, or check why the cluster is slow",
        )

    def abandon(self, error: PenstockError) -> None:
        """Give up; a later answer is ignored."""
        self._fail(error)

    def _fail(self, error: PenstockError) -> None:
        vars(error)["attempts"] = self._attempts  # read by middleware
        self._finish(error)

    def _finish(self, result: Receipt | PenstockError) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        self._producer.sends.discard(self)
        self._producer.finished()
        self._done(result)
