"""One send, from the choice of a queue to the receipt, over as many attempts as it takes.

A send on an open connection needs no task and no future: an attempt is one call of
``Peer.start_request``, its answer a callback. Only a send that has to wait for a route or a
connection gets a task.

    go ─▶ queue ─▶ connection ─▶ request ─▶ answer ─┬─ stored ─▶ done(receipt)
     ▲                                              ├─ no, and another attempt is left
     ├──────────── another broker ──────────────────┤
     └──────────── all failed: a pause ─────────────┘─ no ─▶ done(error)

Which failures are tried again, and how long, is explained in `waiting`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from penstock.client.producing.outgoing import OutgoingMessage
from penstock.client.producing.receipts import Receipt, SendStatus, receipt
from penstock.client.producing.waiting import PAUSES, is_unsent, tried
from penstock.client.requests import refusal
from penstock.errors import (
    InvalidArgument,
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


class MakeCommand(Protocol):
    """Makes the request of an attempt; a repeat says that an earlier one may have been stored."""

    def __call__(self, queue: MessageQueue, *, is_repeat: bool = False) -> Command: ...


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

# The queue does not exist: the route is older than the topic, which has fewer queues now, or was
# created with fewer than its template has. A pause brings a fresh route.
_STALE_ROUTE = ResponseCode.INVALID_PARAMETER

_NONE: frozenset[str] = frozenset()


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
    queue; each attempt needs a new one, because answers are matched by request id. Without
    ``is_patient`` a cluster that is down is not waited for: there are the retries and no pauses.
    """

    __slots__ = (
        "_attempts",
        "_avoid",
        "_begun",
        "_deadline",
        "_done",
        "_doubted",
        "_doubted_queue",
        "_is_bound",
        "_is_finished",
        "_is_patient",
        "_make_command",
        "_may_be_stored",
        "_message",
        "_msg_id",
        "_pauses",
        "_producer",
        "_queue",
        "_retries",
        "_retry_refusals",
        "_started",
        "_went_away",
        "_wish",
    )

    def __init__(
        self,
        producer: ProducerCore,
        message: Message,
        msg_id: str,
        make_command: MakeCommand,
        done: SendDone,
        *,
        wish: MessageQueue | None,
        timeout: float,
        retry_refusals: bool,
        is_patient: bool = True,
    ) -> None:
        self._producer = producer
        self._message = message
        self._msg_id = msg_id
        self._make_command = make_command
        self._done = done
        self._wish = wish
        self._started = producer.clock.monotonic()
        self._deadline = self._started + timeout
        # A broker that refused the message of one queue would refuse it again.
        self._is_bound = wish is not None or message.sharding_key is not None
        self._retry_refusals = retry_refusals and not self._is_bound
        self._is_patient = is_patient
        self._retries = producer.settings.retries
        self._attempts = 0
        self._pauses = 0
        self._may_be_stored = False
        self._avoid: frozenset[str] = _NONE
        """The brokers that failed since the last pause."""
        self._doubted: frozenset[str] = _NONE
        """The brokers that may have stored the message, and store a repeat of it once."""
        self._doubted_queue: MessageQueue | None = None
        """Where to repeat it, while its broker can be reached."""
        self._queue: MessageQueue | None = None
        self._went_away = False
        self._begun = 0.0
        self._is_finished = False
        producer.sends.add(self)

    def go(self) -> None:
        """Make the next attempt."""
        if self._is_finished:
            return
        producer = self._producer
        now = producer.clock.monotonic()
        try:
            wish = self._doubted_queue or self._wish
            target = producer.target(self._message, wish, now, self._avoid)
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
        self._begun = self._started = begun
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
            if not (is_unsent(error) and self._pause()):
                self._give_up(error)
            return
        self.go()

    async def _connect(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._left):
                peer = await self._producer.session.connect(address)
        except TimeoutError:
            # The time is up, so there is no other attempt.
            self._failed(RequestTimeout(f"no connection to {address} in time"), never_left=True)
            return
        except PenstockError as error:
            self._failed(error)
            return
        self._attempt(peer)

    def _attempt(self, peer: Peer) -> None:
        queue = self._queue
        assert queue is not None
        try:
            if queue.broker_name in self._doubted:
                command = self._make_command(queue, is_repeat=True)
            else:
                command = self._make_command(queue)
            peer.start_request(command, self._left, self._answered)
        except InvalidArgument as error:
            self._fail(error)  # Nothing that another attempt would change.
        except PenstockError as error:
            self._failed(error, never_left=True)
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
            if (
                stored.status is SendStatus.OK
                or self._is_bound
                or not producer.settings.retry_unless_stored
                or not self._retry(queue)
            ):
                if self._attempts > 1:
                    stored = stored._replace(attempts=self._attempts)
                self._finish(stored)
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
        may_pass = (
            self._wish is None
            if answer.code == _STALE_ROUTE
            else self._retry_refusals and answer.code in RETRIED_CODES
        )
        if may_pass and self._retry(queue):
            return
        address = producer.session.routes.master(queue.broker_name) or queue.broker_name
        error = refusal(answer, RequestCode.SEND_MESSAGE_V2, address, f"a message to {queue}")
        self._fail(error)

    def _failed(self, error: PenstockError, *, never_left: bool = False) -> None:
        """There is no answer."""
        producer = self._producer
        queue = self._queue
        assert queue is not None
        if producer.faults is not None:
            producer.faults.failed(
                queue.broker_name, producer.clock.monotonic(), is_reachable=False
            )
        unsent = never_left or is_unsent(error)
        self._doubted_queue = None
        if not unsent:
            self._may_be_stored = True
            self._doubt(queue)
        if self._again(queue) if unsent and self._is_patient else self._retry(queue):
            return
        self._give_up(error)

    def _doubt(self, queue: MessageQueue) -> None:
        """Note that a broker may have the message: it is the one to be asked again."""
        session = self._producer.session
        address = session.routes.master(queue.broker_name)
        if address is not None and session.stores_repeats_once(address):
            self._doubted |= {queue.broker_name}
            self._doubted_queue = queue

    @property
    def _left(self) -> float:
        """Seconds left for all further attempts."""
        return self._deadline - self._producer.clock.monotonic()

    def _retry(self, queue: MessageQueue) -> bool:
        """Make another attempt, if one is left; ``queue`` is that of the last one."""
        if self._retries <= 0 or not self._again(queue):
            return False
        self._retries -= 1
        return True

    def _again(self, queue: MessageQueue) -> bool:
        """Make another attempt, if there is time: at once if another broker may do, else later."""
        if self._is_finished or self._left <= 0:
            return False
        if self._doubted_queue is None:
            self._avoid |= {queue.broker_name}
        if self._doubted_queue is not None or not self._is_patient or self._has_another_broker():
            # Not called from here: with many brokers the calls would nest deeply.
            self._producer.clock.call_later(0, self.go)
            return True
        return self._pause()

    def _has_another_broker(self) -> bool:
        routes = self._producer.session.routes
        return not self._is_bound and any(
            other.broker_name not in self._avoid
            for other in routes.publish_queues(self._message.topic)
        )

    def _pause(self) -> bool:
        """Try again after a while, with a fresh route; False if the time does not suffice."""
        if not self._is_patient:
            return False
        producer, session = self._producer, self._producer.session
        self._pauses += 1
        pause = PAUSES.delay(self._pauses, session.chance.random())
        if self._queue is not None:
            address = session.routes.master(self._queue.broker_name)
            if address is not None:
                # Earlier attempts, also of others, may have a longer pause.
                pause = max(pause, session.pool.retry_in(address))
        if self._is_finished or pause >= self._left:
            return False
        self._avoid = _NONE
        # Not awaited: the old route may do when the name server does not answer.
        session.refresh_route_soon(self._message.topic)
        producer.clock.call_later(pause, self.go)
        return True

    def _give_up(self, error: PenstockError) -> None:
        where = self._queue or f"topic {self._message.topic!r}"
        seconds = self._producer.clock.monotonic() - self._started
        often = tried(self._attempts or self._pauses, seconds)
        text = (
            f"message {self._msg_id} to {where} not confirmed {often}: {error.what}"
            if self._may_be_stored
            else f"message {self._msg_id} to {where} not sent {often}: {error.what}"
        )
        self._fail(type(error)(text, expected=error.expected, hint=error.hint))

    def _out_of_time(self, why: str) -> RequestTimeout:
        return RequestTimeout(
            f"message {self._msg_id} not sent within {self._deadline - self._started:.1f} s: {why}",
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
