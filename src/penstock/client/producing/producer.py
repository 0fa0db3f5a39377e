"""The producer on its session's loop: single sends, one-way sends and batches.

The public classes of `blocking` and `nonblocking` pass it bursts of sends from other threads.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.client import requests
from penstock.client.producing.lingering import Lingering
from penstock.client.producing.outgoing import (
    OutgoingMessage,
    check_batch,
    make_outgoing,
    make_outgoing_copy,
)
from penstock.client.producing.receipts import Receipt
from penstock.client.producing.selection import FaultLatency, RoundRobin, chosen, select
from penstock.client.producing.sending import Attempt, Send, SendDone
from penstock.client.producing.waiting import patiently
from penstock.client.session.client_session import GREETED, ClientSession
from penstock.client.session.members import TransactionAnswer
from penstock.client.settings import ProducerSettings
from penstock.errors import (
    InvalidArgument,
    LifecycleError,
    PenstockError,
)
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.hosts import pack_host
from penstock.model.names import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX, Property
from penstock.model.properties import format_properties
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import REPEAT_MARK
from penstock.protocol.headers.send import SendMessage
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.recall_handles import decode_handle
from penstock.protocol.records.batches import encode_batch
from penstock.protocol.records.message_ids import UniqueIds
from penstock.remoting.peer import Peer

if TYPE_CHECKING:
    from penstock.client.observing.tracing import Tracer

log = logging.getLogger(__name__)

TransactionCheck = Callable[[StoredMessage, TransactionAnswer], None]
STOP_SECONDS = 5.0
PROBE_INTERVAL = 3.0
PROBE_TIMEOUT = 0.2


class ProducerCore:
    """A producer group of one session."""

    def __init__(
        self,
        session: ClientSession,
        settings: ProducerSettings,
        *,
        check: TransactionCheck | None = None,
        tracer: Tracer | None = None,
        topics: Collection[str] = (),
    ) -> None:
        """``topics`` are those whose brokers know the producer from its start."""
        self.session = session
        self.settings = settings
        self.clock = session.clock
        self.faults = FaultLatency(settings.latencies) if settings.avoid_slow_brokers else None
        self.in_flight = 0
        self.sends: set[Send] = set()
        """Open sends."""
        self.tracer = tracer
        self._check = check
        self._turns: dict[str, RoundRobin] = {}
        self._ids = unique_ids(session.client_id, session.chance.getrandbits(32))
        self.id_length = self._ids.length
        self._lingering = Lingering(self) if settings.linger > 0 else None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_running = False
        for topic in topics:
            self.turns(topic)

    # -------------------------------------------------------------- as its session sees it

    @property
    def group(self) -> str:
        return self.settings.group

    @property
    def topics(self) -> set[str]:
        return set(self._turns)

    def check_transaction(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        if self._check is None:
            log.warning("no check_transaction to decide about a transaction group=%s", self.group)
            answer(TransactionDecision.UNKNOWN)
        else:
            self._check(message, self._traced(message, answer))

    def _traced(self, message: StoredMessage, answer: TransactionAnswer) -> TransactionAnswer:
        """Trace the decision about a transaction that a broker asked for."""
        tracer = self.tracer
        if tracer is None:
            return answer

        def traced(decision: int) -> None:
            transaction = message.properties.get(Property.TRANSACTION_ID)
            tracer.transaction_ended(
                message,
                message.msg_id,
                transaction,
                decision,
                message.queue.broker_name,
                from_check=True,
            )
            answer(decision)

        return traced

    # --------------------------------------------------------------------------- lifecycle

    def start(self) -> None:
        """Join the session."""
        if self._is_running:
            raise LifecycleError(f"producer {self.group!r} was started twice")
        self.session.add_producer(self)
        self._is_running = True
        self.session.start()
        if self._turns:
            self.session.tasks.spawn(self._join_brokers(), f"{self.group} joins")
        if self.tracer is not None:
            self.tracer.start()
        if self.faults is not None:
            self.session.tasks.spawn(self._probe_by_the_clock(self.faults), f"{self.group} probes")
        log.info("producer started group=%s client=%s", self.group, self.session.client_id)

    async def _join_brokers(self) -> None:
        """Make the producer known to the brokers of its topics before its first send."""
        await self.session.refresh_all_routes()
        self.session.heartbeat_soon()

    async def _probe_by_the_clock(self, faults: FaultLatency) -> None:
        """Check whether unreachable brokers accept connections again."""
        while self._is_running:
            await self.clock.sleep(PROBE_INTERVAL)
            faults.forget(set(self.session.routes.brokers))
            for broker_name in faults.suspects():
                address = self.session.routes.master(broker_name)
                if address is None:
                    continue
                try:
                    async with asyncio.timeout(PROBE_TIMEOUT):
                        await self.session.pool.peer(address)
                except (PenstockError, TimeoutError):
                    continue
                faults.probed(broker_name, is_reachable=True)

    def join_quietly(self) -> None:
        """Start without joining: every heartbeat names the inner producer anyway."""
        self._is_running = True

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for the answers to open sends, then leave."""
        if not self._is_running:
            return
        self._is_running = False
        if self._lingering is not None:
            self._lingering.flush()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning(
                "producer stops with unanswered sends group=%s count=%d", self.group, self.in_flight
            )
            for send in list(self.sends):
                send.abandon(self._not_running())
        if self.tracer is not None:
            await self.tracer.stop()
        await self.session.remove_producer(self.group)
        log.info("producer stopped group=%s", self.group)

    def spawn(self, work: Coroutine[Any, Any, None], send: Send) -> None:
        """Run a task that a send has to wait for."""
        if self.session.tasks.spawn(work, f"{self.group} send") is None:
            send.abandon(self._not_running())

    # ----------------------------------------------------------------------------- sending

    @property
    def lanes(self) -> Lingering | None:
        """The lanes for plain messages; None: every message takes the plain path."""
        return self._lingering if self._is_running and self.tracer is None else None

    def send(
        self,
        message: Message,
        done: SendDone,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        retry_refusals: bool = True,
        extra: dict[str, str] | None = None,
    ) -> None:
        """Send a message; ``done`` is called exactly once, with the receipt or the error.

        It may be called before this returns. With ``retry_refusals`` a refusal is retried on
        another broker, as in Java's synchronous send; its asynchronous send does not retry it.
        """
        if not self._is_running:
            done(self._not_running())
            return
        lanes = self.lanes
        if (
            lanes is not None
            and queue is None
            and timeout is None
            and extra is None
            and lanes.take(message, done)
        ):
            return
        lingering = self._lingering
        try:
            outgoing = make_outgoing(message, self.new_id(), self.settings, extra)
        except PenstockError as error:
            done(error)
            return
        if self.tracer is not None:
            done = self.tracer.watch(message, outgoing, done)
        if lingering is not None and outgoing.may_batch and timeout is None:
            if queue is None and message.sharding_key is None:
                lingering.add(message, outgoing, None, done)
                return
            # Without a route, the queue of a sharding key is unknown: send it by itself.
            queues = self.session.routes.publish_queues(outgoing.topic)
            if queues or message.sharding_key is None:
                try:
                    wish = chosen(queue, queues, message)
                except PenstockError as error:
                    done(error)
                    return
                lingering.add(message, outgoing, wish, done)
                return
        self.begin()
        self.send_outgoing(
            message, outgoing, queue, done, timeout=timeout, retry_refusals=retry_refusals
        )

    def send_outgoing(
        self,
        message: Message,
        outgoing: OutgoingMessage,
        queue: MessageQueue | None,
        done: SendDone,
        *,
        timeout: float | None = None,
        retry_refusals: bool,
        code: int = RequestCode.SEND_MESSAGE_V2,
        is_patient: bool = True,
    ) -> None:
        """Send a checked message."""
        Send(
            self,
            message,
            outgoing.msg_id,
            functools.partial(self.command, code, outgoing, self.clock.time_ms()),
            done,
            wish=queue,
            timeout=self.settings.send_timeout if timeout is None else timeout,
            retry_refusals=retry_refusals,
            is_patient=is_patient,
        ).go()

    def go_on(
        self, message: Message, wish: MessageQueue | None, attempt: Attempt, done: SendDone
    ) -> None:
        """Continue a send whose first attempt was made elsewhere, without a receipt."""
        self.begin()
        Send(
            self,
            message,
            attempt.outgoing.msg_id,
            functools.partial(
                self.command, RequestCode.SEND_MESSAGE_V2, attempt.outgoing, attempt.born_ms
            ),
            done,
            wish=wish,
            timeout=attempt.left,
            retry_refusals=True,
        ).go_on(attempt.queue, attempt.begun, attempt.answer)

    async def deliver(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  it covers all attempts
        extra: dict[str, str] | None = None,
    ) -> Receipt:
        """Send a message and return its receipt."""
        future, done = _awaited()
        self.send(message, done, queue=queue, timeout=timeout, extra=extra)
        return await future

    async def deliver_outgoing(
        self,
        message: Message,
        outgoing: OutgoingMessage,
        code: int = RequestCode.SEND_MESSAGE_V2,
        *,
        is_patient: bool = True,
    ) -> Receipt:
        """Send a checked message and return its receipt."""
        future, done = _awaited()
        if self.tracer is not None:
            done = self.tracer.watch(message, outgoing, done)
        self.begin()
        self.send_outgoing(
            message, outgoing, None, done, retry_refusals=True, code=code, is_patient=is_patient
        )
        return await future

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send a message without waiting for an answer: one attempt, no receipt."""
        if not self._is_running:
            raise self._not_running()
        outgoing = make_outgoing(message, self.new_id(), self.settings)
        queues = await self.queues(message.topic)
        queue = chosen(queue, queues, message)
        if queue is None:
            queue = select(self.turns(message.topic), queues)
        address = (await self.session.find_broker(queue, only_this=True)).address
        peer = await self.session.connect(address)
        peer.oneway(
            self.command(RequestCode.SEND_MESSAGE_V2, outgoing, self.clock.time_ms(), queue)
        )

    async def send_batch(
        self,
        messages: list[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Receipt:
        """Send messages of one topic in one request: all are stored, or none."""
        if not self._is_running:
            raise self._not_running()
        check_batch(messages)
        uncompressed = replace(self.settings, compress_over=0)
        plain = [make_outgoing(message, self.new_id(), uncompressed) for message in messages]
        body = encode_batch(
            [(outgoing.body, outgoing.properties.encode(), outgoing.flag) for outgoing in plain]
        )
        if len(body) > self.settings.max_message_bytes:
            raise InvalidArgument(
                f"a batch of {len(body)} bytes to topic {messages[0].topic!r}",
                expected=f"at most {self.settings.max_message_bytes}",
                hint="send several batches",
            )
        first = messages[0]
        if any(message.sharding_key != first.sharding_key for message in messages):
            first = replace(first, sharding_key=None)  # They have no common queue.
        future, done = _awaited()
        if self.tracer is not None:
            done = self.tracer.watch_batch(messages, plain, done)
        self.begin()
        self.send_batch_body(
            first,
            [outgoing.msg_id for outgoing in plain],
            body,
            queue,
            done,
            timeout=timeout,
            retry_refusals=True,
        )
        return await future

    def send_batch_body(
        self,
        first: Message,
        msg_ids: list[str],
        body: bytes,
        queue: MessageQueue | None,
        done: SendDone,
        *,
        timeout: float | None = None,
        retry_refusals: bool,
    ) -> None:
        """Send an encoded batch."""
        # No unique id for the batch, as 5.x clients set it: 4.9 brokers overwrite the ids of the
        # messages with it, and 5.x brokers do not need it in ordinary topics.
        properties = format_properties({Property.WAIT: "true"})
        outgoing = OutgoingMessage(first.topic, body, properties, 0, 0, ",".join(msg_ids), False)
        self.send_outgoing(
            first,
            outgoing,
            queue,
            done,
            timeout=timeout,
            retry_refusals=retry_refusals,
            code=RequestCode.SEND_BATCH_MESSAGE,
        )

    async def send_encoded(
        self, topic: str, body: bytes, properties: str | None, *, queue: MessageQueue | None = None
    ) -> None:
        """Send an encoded batch, or one message with these ``properties``, as encoded."""
        if not self._is_running:
            raise self._not_running()
        future, done = _awaited()
        first = Message(topic, b"")
        self.begin()
        if properties is None:
            self.send_batch_body(first, [], body, queue, done, retry_refusals=True)
        else:
            outgoing = OutgoingMessage(topic, body, properties, 0, 0, "", False)
            self.send_outgoing(first, outgoing, queue, done, retry_refusals=True)
        await future

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic a message can be sent to."""
        queues = await self.session.publish_queues(topic, self.settings.default_topic_queues)
        self.turns(topic)  # From now on the topic is in use, and its route is refreshed.
        return queues

    async def wait_for_queues(self, topic: str, seconds: float) -> tuple[MessageQueue, ...]:
        """The same, waiting so long for a route."""
        return await patiently(
            functools.partial(self.queues, topic), seconds, self.clock, self.session.chance.random
        )

    async def resend(
        self,
        topic: str,
        message: StoredMessage,
        properties: dict[str, str],
        *,
        reconsume_times: int,
        max_reconsume_times: int,
    ) -> Receipt:
        """Send a stored message to another topic, with its properties: a retry or a dead letter."""
        outgoing = make_outgoing_copy(
            topic,
            message,
            properties,
            self.settings,
            reconsume_times=reconsume_times,
            max_reconsume_times=max_reconsume_times,
        )
        # Consumers have a way of their own when this fails, and many messages may wait for it.
        return await self.deliver_outgoing(Message(topic, b""), outgoing, is_patient=False)

    async def recall(self, topic: str, handle: str) -> str:
        """Take a timer message back before it is due; return its unique id."""
        if not self._is_running:
            raise self._not_running()
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise InvalidArgument(f"recall from topic {topic!r}", expected="an ordinary topic")
        named = decode_handle(handle)
        queues = await self.queues(topic)
        of_broker = [queue for queue in queues if queue.broker_name == named.broker_name]
        queue = (of_broker or list(queues))[0]
        address = (await self.session.find_broker(queue, only_this=True)).address
        request = requests.recall(topic, handle, self.settings.group)
        return await self.session.calls.call(address, request)

    # -------------------------------------------------------------------- for its own sends

    def target(
        self, message: Message, wish: MessageQueue | None, now: float, avoid: Collection[str] = ()
    ) -> tuple[MessageQueue, str | None] | None:
        """The queue of an attempt and the address of its master; None while no route is known.

        ``avoid`` are the brokers that just failed. With `settings.avoid_slow_brokers` slow and
        unreachable brokers are avoided, too.
        """
        routes = self.session.routes
        queues = routes.publish_queues(message.topic)
        if not queues:
            return None
        queue = chosen(wish, queues, message)
        if queue is None:
            turns = self.turns(message.topic)
            queue = select(turns, queues, avoid=avoid, faults=self.faults, now=now)
        return queue, routes.master(queue.broker_name)

    def turns(self, topic: str) -> RoundRobin:
        """The turns of the queues of a topic."""
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns[topic] = RoundRobin(self.session.chance.getrandbits(31))
        return turns

    def is_in_use(self, topic: str) -> bool:
        """Whether a message was sent to the topic, so that its route is refreshed."""
        return topic in self._turns

    def ready_peer(self, address: str) -> Peer | None:
        """The connection to an address, if it can be used at once."""
        peer = self.session.pool.find(address)
        return peer if peer is not None and GREETED in peer.data else None

    def new_id(self) -> str:
        """A unique id for a message."""
        return self._ids.next(self.clock.time_ms())

    def new_ids(self, count: int) -> list[str]:
        """Unique ids for several messages."""
        return self._ids.several(self.clock.time_ms(), count)

    def finished(self, count: int = 1) -> None:
        """Note that ``count`` sends have their answer."""
        self.in_flight -= count
        if not self.in_flight:
            self._idle.set()

    def begin(self, count: int = 1) -> None:
        """Note that ``count`` more sends wait for their answer."""
        if not self.in_flight:
            self._idle.clear()
        self.in_flight += count

    def command(
        self,
        code: int,
        outgoing: OutgoingMessage,
        born_ms: int,
        queue: MessageQueue,
        *,
        is_repeat: bool = False,
    ) -> Command:
        """The request that sends a checked message to a queue.

        ``is_repeat``: an earlier request with the same unique id may have been stored.
        """
        properties = outgoing.properties
        if outgoing.time is not None:
            address = self.session.routes.master(queue.broker_name) or ""
            version = self.session.broker_versions.get(address, 0)
            properties += outgoing.time.properties(version, queue.broker_name)
        if is_repeat:
            properties += REPEAT_MARK
        header = SendMessage(
            self.settings.group,
            outgoing.topic,
            DEFAULT_TOPIC,
            self.settings.default_topic_queues,
            queue.queue_id,
            outgoing.sys_flag,
            born_ms,
            outgoing.flag,
            properties,
            outgoing.reconsume_times,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )
        return self.session.calls.send_command(code, header, outgoing.body)

    def _not_running(self) -> LifecycleError:
        return LifecycleError(
            f"producer {self.group!r} is not running",
            hint="start() it, or use it in a with block",
        )


def unique_ids(client_id: str, constant: int) -> UniqueIds:
    """The generator of one producer: ids contain its address, process and a random constant."""
    ip = client_id.partition("@")[0]
    try:
        packed = pack_host(ip, 0)[:-4]
    except PenstockError:
        packed = b"\x7f\x00\x00\x01"
    return UniqueIds(ip=packed, process_id=os.getpid(), constant=constant)


def _awaited() -> tuple[asyncio.Future[Receipt], SendDone]:
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

    def done(result: Receipt | PenstockError) -> None:
        if future.done():
            return
        if isinstance(result, Receipt):
            future.set_result(result)
        else:
            future.set_exception(result)

    return future, done
