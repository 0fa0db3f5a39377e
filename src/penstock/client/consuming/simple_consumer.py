"""A consumer that receives messages and acknowledges them one by one: no queues, no handlers.

Any number of consumers share a topic, however few queues it has. A message that was received is
invisible to the others until its time is up; acknowledged in time it never comes again, else it
comes again, to any member of the group.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.consuming.consumer_core import ConsumerCore
from penstock.client.consuming.offset_stores import BrokerOffsetStore
from penstock.client.consuming.pop_receipts import (
    GIVE_BACK_SECONDS,
    Popped,
    PopRequests,
    Source,
    handle_of,
    set_handle,
    topic_of,
)
from penstock.client.consuming.subscriptions import passes
from penstock.client.observing.running_info import polled_info
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import ConsumerSettings
from penstock.errors import (
    LifecycleError,
    PenstockError,
    ReceiptExpired,
    RemotingError,
    RequestCodeNotSupported,
)
from penstock.model import MessageQueue, StoredMessage, Subscription
from penstock.model.names import retry_topic
from penstock.model.subscription import TAG
from penstock.protocol.bodies.common import ConsumeType
from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo
from penstock.protocol.filters.tags import subscription
from penstock.protocol.headers.receipts import ReceiptHandle

log = logging.getLogger(__name__)

SHORT_WAIT: Final = 1.0
"""How long one broker is asked to wait while others may have messages."""
SHORTEST_WAIT: Final = 0.06
"""A broker ends a poll 50 ms before its time; for the rest it is not asked again."""
PAUSE: Final = 1.0
"""Between two tries at a broker that is busy or cannot be reached."""
LOOK_SECONDS: Final = 5.0
"""Between two looks for messages that failed before the group popped."""
MAX_RECEIVED: Final = 32
SWEEP_AT: Final = 1024
"""So many open receipts are kept before those whose time is up are dropped."""


class _Open(NamedTuple):
    """A message that was received and is not finished."""

    topic: str
    handle: ReceiptHandle
    deadline: float
    """On the monotonic clock."""


class SimpleConsumerCore(ConsumerCore):
    """A consumer group of one session that receives and acknowledges."""

    consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self, session: ClientSession, settings: ConsumerSettings, *, invisible: float
    ) -> None:
        super().__init__(
            session, settings, BrokerOffsetStore(session, settings.group), with_retry=False
        )
        self.requests = PopRequests(session, settings.group, settings.namespace)
        self._invisible = invisible
        self._open: dict[str, _Open] = {}
        """By receipt handle."""
        self._most_open = SWEEP_AT
        self._changes: dict[str, asyncio.Future[None]] = {}
        """Changes under way, by the handle that they replace."""
        self._turn = 0
        self._next_look = -math.inf
        self._phase = "new"

    # Lifecycle

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Receive messages of a topic, too; the same topic again replaces the filter."""
        self.state.subscriptions.want(topic, tags=tags, sql=sql)
        if self._phase == "running":
            await self.session.refresh_route(topic)
            await self.session.heartbeat_all()

    async def start(self) -> None:
        """Join the group."""
        if self._phase != "new":
            raise LifecycleError(f"simple consumer {self.group!r} was started twice")
        self.session.add_consumer(self)
        self._phase = "running"
        self.started_ms = self.session.clock.time_ms()
        try:
            await self._join_group()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Leave the group; what was not acknowledged comes again in a second, not at its time."""
        if self._phase != "running":
            return
        self._phase = "stopped"
        self.state.is_stopping = True
        await self._give_back(list(self._open.values()))
        await self.state.tasks.close()
        self.state.is_running = False
        await self.session.remove_consumer(self.group)
        await self.state.statistics.stop()

    async def _give_back(self, unfinished: Sequence[_Open]) -> None:
        now = self.session.clock.monotonic()

        async def give_back(one: _Open) -> None:
            self._open.pop(str(one.handle), None)
            if one.deadline - now <= GIVE_BACK_SECONDS:
                return
            try:
                await self.requests.change(
                    one.topic, one.handle, GIVE_BACK_SECONDS, is_suspended=True
                )
            except PenstockError as error:
                # It comes again at its time.
                log.info("message not given back topic=%s error=%s", one.topic, error)

        await asyncio.gather(*map(give_back, unfinished))

    # Receiving

    async def receive(
        self, count: int, invisible: float | None, wait: float
    ) -> list[StoredMessage]:
        """The next messages; none when ``wait`` seconds pass without any."""
        if self._phase != "running":
            raise LifecycleError(
                f"simple consumer {self.group!r} is not running",
                hint="start() it, or use it in a with block",
            )
        if not self.state.subscriptions.topics:
            raise LifecycleError(
                f"simple consumer {self.group!r} has no subscription", hint='subscribe("topic")'
            )
        clock = self.session.clock
        until = clock.monotonic() + wait
        length = self._invisible if invisible is None else invisible
        failed: PenstockError | None = None
        is_first_round = True
        if left_over := await self._left_by_pulls(count, length):
            return left_over
        while True:
            sources = await self._sources()
            for source in sources:
                left = max(0.0, until - clock.monotonic())
                poll = 0.0 if is_first_round and len(sources) > 1 else left
                wanted = self.state.subscriptions[source.topic]
                if wanted is None:
                    continue
                poll = _slice(poll, len(sources))
                try:
                    found = await self._pop(source, wanted, count, length, poll)
                except RequestCodeNotSupported:
                    raise
                except PenstockError as error:
                    log.warning("pop failed source=%s error=%s", source, error)
                    failed = error
                    await clock.sleep(min(PAUSE, left))
                    continue
                if found.messages:
                    return found.messages
                failed = None
                if found.is_busy:
                    await clock.sleep(min(PAUSE, left))
            is_first_round = False
            if until - clock.monotonic() < SHORTEST_WAIT or self._phase != "running":
                break
            if not sources:
                await clock.sleep(min(PAUSE, until - clock.monotonic()))
        if failed is not None and not isinstance(failed, RemotingError):
            raise failed
        return []

    async def _left_by_pulls(self, count: int, invisible: float) -> list[StoredMessage]:
        """Messages of the group's retry topic: they failed when the group pulled."""
        clock, topic = self.session.clock, retry_topic(self.group)
        if clock.monotonic() < self._next_look:
            return []
        self._next_look = clock.monotonic() + LOOK_SECONDS
        wanted = subscription(topic, "*", TAG, 0)
        try:
            for source in await self._sources_of(topic):
                found = await self._pop(source, wanted, count, invisible, 0.0)
                if found.messages:
                    # There may be more.
                    self._next_look = clock.monotonic()
                    return found.messages
        except RequestCodeNotSupported:
            raise
        except PenstockError as error:
            log.warning("retry topic not checked topic=%s error=%s", topic, error)
        return []

    async def _sources(self) -> list[Source]:
        """Every broker of every subscribed topic, beginning with another one each time."""
        sources: list[Source] = []
        for topic in self.state.subscriptions.topics:
            sources += await self._sources_of(topic)
        if not sources:
            return []
        self._turn = (self._turn + 1) % len(sources)
        return sources[self._turn :] + sources[: self._turn]

    async def _sources_of(self, topic: str) -> list[Source]:
        routes = self.session.routes
        if topic not in routes:
            await self.session.refresh_route(topic)
        names = dict.fromkeys(queue.broker_name for queue in routes.subscribe_queues(topic))
        return [Source(topic, name) for name in names]

    async def _pop(
        self, source: Source, wanted: Subscription, count: int, invisible: float, wait: float
    ) -> Popped:
        """One pop; messages that come after the caller has gone are given back."""
        popped = await self.requests.take(
            source,
            wanted,
            count=count,
            invisible=invisible,
            wait=wait,
            starts_first=self.settings.start_from.where == "first",
        )
        kept = passes(wanted, popped.messages)
        unwanted = [one for one in popped.messages if all(one is not other for other in kept)]
        self._note(popped, invisible)
        if unwanted:
            self.state.tasks.spawn(self._acknowledge_unwanted(unwanted), "unwanted")
        self.state.statistics.consumed(source.topic, len(kept), 0, 0.0)
        return popped._replace(messages=kept)

    def _note(self, popped: Popped, invisible: float) -> None:
        deadline = popped.arrived + invisible
        for message in popped.messages:
            handle = handle_of(message)
            topic = topic_of(message, self.group, self.settings.namespace)
            self._open[str(handle)] = _Open(topic, handle, deadline)
        if len(self._open) > self._most_open:
            # Those whose time is up without an acknowledgement.
            now = self.session.clock.monotonic()
            self._open = {key: one for key, one in self._open.items() if one.deadline > now}
            self._most_open = max(SWEEP_AT, 2 * len(self._open))

    async def _acknowledge_unwanted(self, messages: Sequence[StoredMessage]) -> None:
        """End messages with another tag of the same hash: the group does not want them."""
        try:
            await self.acknowledge(messages)
        except PenstockError as error:
            log.info("unwanted messages not acknowledged error=%s", error)

    # Finishing

    def _receipt(self, message: StoredMessage) -> _Open:
        """The receipt of a message; `ReceiptExpired` when its time is up."""
        handle = handle_of(message)
        topic = topic_of(message, self.group, self.settings.namespace)
        found = self._open.get(str(handle))
        clock = self.session.clock
        if found is None:
            # Received elsewhere, or finished; only the broker's clock tells its time.
            left = (handle.pop_time + handle.invisible_time - clock.time_ms()) / 1000
            found = _Open(topic, handle, clock.monotonic() + left)
        if found.deadline <= clock.monotonic():
            self._open.pop(str(handle), None)
            raise ReceiptExpired(
                f"the invisible time of message {message.msg_id} of topic {message.topic!r} is up; "
                "it is delivered again",
                hint="receive with a longer invisible time, or extend() it while you work",
            )
        return found

    async def _settled_receipt(self, message: StoredMessage) -> _Open:
        """The receipt of a message when no change of it is under way: that makes a new handle."""
        while (change := self._changes.get(str(handle_of(message)))) is not None:
            await asyncio.wait([change])
        return self._receipt(message)

    async def acknowledge(self, messages: Iterable[StoredMessage]) -> None:
        """End messages: they do not come again. One broker's failure does not keep others'."""
        by_broker: dict[str, list[_Open]] = {}
        expired: list[ReceiptExpired] = []
        for message in messages:
            try:
                receipt = await self._settled_receipt(message)
            except ReceiptExpired as error:
                expired.append(error)
                continue
            by_broker.setdefault(receipt.handle.broker_name, []).append(receipt)
        results = await asyncio.gather(
            *(self._acknowledge(name, receipts) for name, receipts in by_broker.items()),
            return_exceptions=True,
        )
        for failure in (*expired, *results):
            if failure is not None:
                # The others are acknowledged.
                raise failure

    async def _acknowledge(self, broker_name: str, receipts: Sequence[_Open]) -> None:
        deadline = min(receipt.deadline for receipt in receipts)
        handles = [(one.topic, one.handle) for one in receipts]
        await self.requests.acknowledge_until(broker_name, handles, deadline)
        for receipt in receipts:
            self._open.pop(str(receipt.handle), None)

    async def extend(
        self, message: StoredMessage, invisible: float, *, is_suspended: bool = False
    ) -> None:
        """Let a message become visible after ``invisible`` seconds from now."""
        receipt = await self._settled_receipt(message)
        key = str(receipt.handle)
        under_way = self._changes[key] = asyncio.get_running_loop().create_future()
        try:
            changed = await self.requests.change(
                receipt.topic, receipt.handle, invisible, is_suspended=is_suspended
            )
            set_handle(message, changed)
        finally:
            del self._changes[key]
            under_way.set_result(None)
        self._open.pop(key, None)
        if invisible > 0:
            deadline = self.session.clock.monotonic() + invisible
            self._open[str(changed)] = _Open(receipt.topic, changed, deadline)

    # As its session sees it

    async def rebalance(self) -> bool:
        return True

    async def persist_offsets(self) -> None:
        """The brokers keep the offsets of pop consumers."""

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return polled_info(self.state, self.started_ms, set(), mode="pop", with_stacks=with_stacks)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """The brokers start over; what was received before can still be acknowledged."""

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        raise RequestCodeNotSupported(
            f"simple consumer {self.group!r} has no queues", hint="reset the group's offsets"
        )

    async def consume_directly(self, message: StoredMessage) -> ConsumeDirectlyResult:
        raise RequestCodeNotSupported(f"group {self.group!r} receives; it has no handler to call")


def _slice(poll: float, sources: int) -> float:
    """How long one of several sources is asked to wait."""
    return poll if sources == 1 else min(poll, SHORT_WAIT)
