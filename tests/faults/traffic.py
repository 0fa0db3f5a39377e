"""Everything that clients do at once, and an exact account of it.

Plain sends, transactions, timers, popped messages and calls over gRPC run while a fault is on. A
client notes what the broker confirmed; what got no answer may be there or not. When the fault is
over, `Traffic.check` reads all topics and compares:

* what was confirmed is there, at the queue offset that the answer named, and once;
* nothing is there that was not sent, and offsets have no gaps;
* what was committed is visible once, what was rolled back never, and no transaction stays open;
* a timer arrives, and never early; a second time only if the broker died after it;
* what was acknowledged never comes again, and what was not does.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
from tests.crash.test_transaction_kill import Table
from tests.faults.cluster import Cluster
from tests.proxy.lab import message as grpc_message

from penstock import Message, MessageQueue, StoredMessage, aio
from penstock.errors import PenstockError
from penstock.proxy.endpoint import UNARY
from penstock.proxy.times import duration
from penstock.proxy.wire import messages as wire
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.definitions import SERVICE
from penstock.testing.eventually import eventually

QUEUES: Final = 2
BROKER: Final = "broker-a"
PLAIN, PAYMENTS, TIMERS, POPPED, CALLED = "plain", "payments", "timers", "popped", "called"
TOPICS: Final = (PLAIN, PAYMENTS, TIMERS, POPPED, CALLED)
PROBE: Final = "probe"
"""For tests: what is in it is not counted."""
POP_GROUP: Final = "poppers"
CALL_GROUP: Final = "callers"
INVISIBLE: Final = 3.0
CALL_INVISIBLE: Final = 10.0
"""The least that a broker allows."""
LONGEST_TIMER: Final = 2.0
SETTLE_SECONDS: Final = 60.0
PAUSE: Final = 0.005
ID: Final = (("x-mq-client-id", "a-client"),)

Refused = (PenstockError, grpc.aio.AioRpcError, OSError, TimeoutError)
"""What a client gets that the broker does not serve."""


class Wrong(AssertionError):
    """The account and the broker disagree."""


class Traffic:
    """The clients of a cluster, over all of its lives, and what they know."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._table = Table(seed)
        self._plain: dict[bytes, tuple[int, int]] = {}
        """Body to queue and offset, as confirmed."""
        self._plain_sent: set[bytes] = set()
        self._timers: dict[bytes, float] = {}
        self._timers_sent: set[bytes] = set()
        self._called: set[bytes] = set()
        self._called_sent: set[bytes] = set()
        self._popped: set[bytes] = set()
        self._popped_sent: set[bytes] = set()
        self._acknowledged: set[bytes] = set()
        self._unsure: set[bytes] = set()
        """Acknowledged without an answer."""
        self._again: list[bytes] = []
        self._handled_calls: Counter[bytes] = Counter()
        self._unsure_calls: set[bytes] = set()
        self._stopping = asyncio.Event()
        self._deaths: list[float] = []
        self.refusals: Counter[str] = Counter()
        """What clients got that were not served."""

    @property
    def confirmed(self) -> int:
        """How much the broker confirmed: the measure of progress."""
        return (
            len(self._plain)
            + len(self._timers)
            + len(self._called)
            + len(self._acknowledged)
            + sum(state is not None for state in self._table.states.values())
        )

    def note_death(self) -> None:
        """The broker is killed: timers that it delivered shortly before may come again."""
        self._deaths.append(time.time())

    async def make_topics(self, cluster: Cluster) -> None:
        async with aio.Admin(namesrv=cluster.namesrv) as admin:
            for topic in (*TOPICS, PROBE):
                await admin.create_topic(topic, queues=QUEUES)

    # Clients

    @asynccontextmanager
    async def flowing(self, cluster: Cluster) -> AsyncIterator[None]:
        """All clients work until the end of the block; new ones each time."""
        self._stopping.clear()
        works = (self._send, self._transact, self._remind, self._feed, self._pop, self._call)
        tasks = [asyncio.create_task(self._repeat(work, cluster)) for work in works]
        try:
            yield
        finally:
            self._stopping.set()
            done, left = await asyncio.wait(tasks, timeout=SETTLE_SECONDS)
            for task in left:
                task.cancel()
            for task in done:
                task.result()
            if left:
                raise Wrong(f"{len(left)} clients do not end: {left}")

    async def flow(self, count: int) -> None:
        """Return when so much more is confirmed."""
        wanted = self.confirmed + count
        await eventually(lambda: self.confirmed >= wanted, SETTLE_SECONDS, interval=0.01)

    async def _repeat(self, work: Callable[[Cluster], Awaitable[None]], cluster: Cluster) -> None:
        """Begin anew after a refusal: that is what a program does."""
        while not self._stopping.is_set():
            try:
                await work(cluster)
            except Refused as error:
                self.refusals[f"{work.__name__}: {error}"[:300]] += 1
                await asyncio.sleep(0.05)

    def _body(self, kind: str) -> bytes:
        text = f"{kind}-{next(self._numbers)}"
        return text.encode().ljust(len(text) + self._chance.randrange(400), b".")

    async def _pause(self) -> bool:
        await asyncio.sleep(PAUSE)
        return not self._stopping.is_set()

    async def _send(self, cluster: Cluster) -> None:
        async with aio.Producer("senders", namesrv=cluster.namesrv, retries=0) as producer:
            while await self._pause():
                body = self._body("plain")
                self._plain_sent.add(body)
                receipt = await producer.send(Message(PLAIN, body, keys=[f"{len(body)}"]))
                self._plain[body] = (receipt.queue.queue_id, receipt.queue_offset)

    async def _transact(self, cluster: Cluster) -> None:
        async with self._bank(cluster) as producer:
            while await self._pause():
                await self._table.transact(producer, self._body("payment"))

    def _bank(self, cluster: Cluster) -> aio.Producer:
        return aio.Producer(
            "bank",
            namesrv=cluster.namesrv,
            check_transaction=self._table.check,
            topics=[PAYMENTS],
            retries=0,
            send_timeout=2,
        )

    async def _remind(self, cluster: Cluster) -> None:
        async with aio.Producer("reminders", namesrv=cluster.namesrv, retries=0) as producer:
            while await self._pause():
                body = self._body("timer")
                due = time.time() + self._chance.uniform(0.1, LONGEST_TIMER)
                self._timers_sent.add(body)
                await producer.send(Message(TIMERS, body, deliver_at=due))
                self._timers[body] = due

    async def _feed(self, cluster: Cluster) -> None:
        async with aio.Producer("feeders", namesrv=cluster.namesrv, retries=0) as producer:
            while await self._pause():
                body = self._body("popped")
                self._popped_sent.add(body)
                await producer.send(Message(POPPED, body))
                self._popped.add(body)

    async def _pop(self, cluster: Cluster) -> None:
        async with self._popper(cluster) as consumer:
            await consumer.subscribe(POPPED)
            while await self._pause():
                for message in await consumer.receive(16, wait=0.2):
                    if self._chance.random() < 0.7:
                        await self._acknowledge(consumer, message)

    def _popper(self, cluster: Cluster) -> aio.SimpleConsumer:
        return aio.SimpleConsumer(
            POP_GROUP, namesrv=cluster.namesrv, invisible=INVISIBLE, start_from="first"
        )

    async def _acknowledge(self, consumer: aio.SimpleConsumer, message: StoredMessage) -> None:
        if message.body in self._acknowledged:
            self._again.append(message.body)
        self._unsure.add(message.body)
        await consumer.ack(message)
        self._unsure.discard(message.body)
        self._acknowledged.add(message.body)

    async def _call(self, cluster: Cluster) -> None:
        async with _channel(cluster) as channel:
            while await self._pause():
                body = self._body("called")
                self._called_sent.add(body)
                await _grpc_send(channel, body)
                self._called.add(body)
                await self._take_calls(channel, wait=0.0)

    async def _take_calls(self, channel: grpc.aio.Channel, wait: float) -> int:
        """Receive and acknowledge; how many messages there were."""
        request = wire.ReceiveMessageRequest(
            group=wire.Resource(name=CALL_GROUP),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=CALLED), id=-1),
            batch_size=32,
            invisible_duration=duration(CALL_INVISIBLE),
            long_polling_timeout=duration(wait),
        )
        method = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=wire.ReceiveMessageRequest.SerializeToString,
            response_deserializer=wire.ReceiveMessageResponse.FromString,
        )
        answers = [one async for one in method(request, metadata=ID, timeout=10 + wait)]
        messages = [one.message for one in answers if one.WhichOneof("content") == "message"]
        status = answers[0].status
        if not messages and status.code != Code.MESSAGE_NOT_FOUND:
            raise OSError(f"not received: {status}")
        for message in messages:
            ack = wire.AckMessageRequest(
                group=wire.Resource(name=CALL_GROUP),
                topic=wire.Resource(name=CALLED),
                entries=[
                    wire.AckMessageEntry(
                        message_id=message.system_properties.message_id,
                        receipt_handle=message.system_properties.receipt_handle,
                    )
                ],
            )
            self._unsure_calls.add(message.body)
            answer = await _grpc_call(channel, "AckMessage", ack)
            code = answer.entries[0].status.code
            if code < Code.INTERNAL_ERROR:  # else the endpoint got no answer of the broker
                self._unsure_calls.discard(message.body)
            if code == Code.OK:
                self._handled_calls[message.body] += 1
        return len(messages)

    # The account

    async def check(self, cluster: Cluster) -> None:
        """Wait until all is settled, and compare; raises `Wrong`, or what failed."""
        if cluster.has_failed:
            raise Wrong(f"the broker wrote a traceback:\n{cluster.process.output}")
        async with aio.Admin(namesrv=cluster.namesrv) as admin:
            await self._check_plain(admin)
            await self._check_transactions(cluster, admin)
            await self._check_timers(admin)
        await self._check_popped(cluster)
        await self._check_called(cluster)

    async def _check_plain(self, admin: aio.Admin) -> None:
        stored = await _stored(admin, PLAIN)
        counts = Counter(message.body for message in stored.values())
        _only(counts, self._plain_sent)
        _once(counts)
        for body, place in self._plain.items():
            found = stored.get(place)
            if found is None or found.body != body:
                raise Wrong(f"{body[:20]!r} was confirmed at {place}, where {found} is")

    async def _check_transactions(self, cluster: Cluster, admin: aio.Admin) -> None:
        async with self._bank(cluster):
            await _until(lambda: _no_transaction(admin), "a transaction stays open")
        counts = Counter(message.body for message in (await _stored(admin, PAYMENTS)).values())
        committed = {body for body, state in self._table.states.items() if state}
        if counts.keys() != committed:
            lost, extra = committed - counts.keys(), counts.keys() - committed
            raise Wrong(f"committed and not there: {lost}; there and not committed: {extra}")
        _once(counts)

    async def _check_timers(self, admin: aio.Admin) -> None:
        async def are_there() -> bool:
            found = await _stored(admin, TIMERS)
            return {message.body for message in found.values()} >= self._timers.keys()

        await _until(are_there, "a confirmed timer does not arrive")
        found = sorted((await _stored(admin, TIMERS)).values(), key=lambda one: one.store_timestamp)
        counts = Counter(message.body for message in found)
        _only(counts, self._timers_sent)
        for message in found:
            due = int(message.properties["TIMER_DELIVER_MS"])
            if message.store_timestamp < due:
                raise Wrong(f"{message.body[:20]!r} is {due - message.store_timestamp} ms early")
        if not self._deaths:
            _once(counts)

    async def _check_popped(self, cluster: Cluster) -> None:
        async with self._popper(cluster) as consumer:
            await consumer.subscribe(POPPED)

            async def is_done() -> bool:
                for message in await consumer.receive(32, wait=0.5, invisible=30):
                    await self._acknowledge(consumer, message)
                return not self._popped - self._acknowledged - self._unsure

            await _until(is_done, "popped messages are lost")
        _only(Counter(self._acknowledged), self._popped_sent)
        if self._again:
            raise Wrong(f"acknowledged, and came again: {self._again}")

    async def _check_called(self, cluster: Cluster) -> None:
        async with _channel(cluster) as channel:

            async def is_done() -> bool:
                await self._take_calls(channel, 0.5)
                return not self._called - self._handled_calls.keys() - self._unsure_calls

            await _until(is_done, "messages of gRPC are lost")
        _only(self._handled_calls, self._called_sent)
        _once(self._handled_calls)


def _only(found: Counter[bytes], sent: set[bytes]) -> None:
    extra = found.keys() - sent
    if extra:
        raise Wrong(f"never sent: {sorted(extra)[:5]}")


def _once(found: Counter[bytes]) -> None:
    twice = [body for body, count in found.items() if count > 1]
    if twice:
        raise Wrong(f"{len(twice)} messages are there twice: {sorted(twice)[:5]}")


async def _until(is_so: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while not await is_so():
        if time.monotonic() > deadline:
            raise Wrong(otherwise)
        await asyncio.sleep(0.1)


async def _no_transaction(admin: aio.Admin) -> bool:
    return not await admin.transactions()


async def _stored(admin: aio.Admin, topic: str) -> dict[tuple[int, int], StoredMessage]:
    """Every message of a topic by queue and offset; offsets have no gaps."""
    found: dict[tuple[int, int], StoredMessage] = {}
    for queue_id in range(QUEUES):
        part = await admin.messages(MessageQueue(topic, BROKER, queue_id), 0, count=1 << 20)
        offsets = [message.queue_offset for message in part.messages]
        if offsets != list(range(len(offsets))):
            raise Wrong(f"queue {queue_id} of {topic} has gaps: {offsets}")
        found.update({(queue_id, message.queue_offset): message for message in part.messages})
    return found


def _channel(cluster: Cluster) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{cluster.grpc_port}")


async def _grpc_call(channel: grpc.aio.Channel, name: str, request: object) -> Any:
    unary = UNARY[name]
    method = channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=unary.request.SerializeToString,
        response_deserializer=unary.response.FromString,
    )
    return await method(request, metadata=ID, timeout=10)


async def _grpc_send(channel: grpc.aio.Channel, body: bytes) -> None:
    request = wire.SendMessageRequest(messages=[grpc_message(body, topic=CALLED)])
    answer = await _grpc_call(channel, "SendMessage", request)
    if answer.status.code != Code.OK:
        raise OSError(f"not stored: {answer.status}")
