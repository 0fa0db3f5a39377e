"""A consumer that is asked for messages instead of calling handlers.

Pulling and sharing queues are those of the push consumer; in place of handlers there is a buffer,
and `poll` takes from it. Messages count as consumed at the next poll or commit: a program that asks
for more has finished what it got before. Until then they hold the committed offset back. Stopping
commits nothing further, because the program may stop on account of a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from penstock.client import requests
from penstock.client.consuming.consumer_core import ConsumerCore
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.offset_stores import BrokerOffsetStore
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.pulling import PullCursor, Puller
from penstock.client.consuming.rebalance import Rebalancer
from penstock.client.observing.running_info import polled_info
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import ConsumerSettings
from penstock.errors import (
    BodyDamaged,
    InvalidArgument,
    LifecycleError,
    PenstockError,
    RequestCodeNotSupported,
)
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.bodies.common import (
    ConsumeType,
)
from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo
from penstock.runtime.clock import TimerHandle

log = logging.getLogger(__name__)

SUSPEND_MS = 20_000
TOTAL_LIMIT = 10_000
BATCH_SIZE = 10


class PullConsumerCore(ConsumerCore):
    """A consumer group of one session that is polled."""

    consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self, session: ClientSession, settings: ConsumerSettings, *, auto_commit: bool = True
    ) -> None:
        super().__init__(
            session, settings, BrokerOffsetStore(session, settings.group), with_retry=False
        )
        state = self.state
        self._auto_commit = auto_commit
        self._rebalancer = Rebalancer(
            state, pull=lambda cursor, delay: self._puller.begin(cursor, delay), locks=None
        )
        self._puller = Puller(
            state,
            self,
            start_offset=self._rebalancer.start_offset,
            on_illegal_offset=self._continue_where_broker_says,
            may_correct=lambda queue: queue.count == 0 and queue not in self._uncommitted,
            suspend_ms=SUSPEND_MS,
        )
        self._assigned: frozenset[MessageQueue] | None = None
        self._buffer: deque[tuple[ProcessQueue, MessageBatch]] = deque()
        self._buffered = 0
        self._polled: list[tuple[ProcessQueue, MessageBatch]] = []
        # By what is held, not by name: of a queue that went and came back nothing is left over.
        self._uncommitted: dict[ProcessQueue, int] = {}
        self._arrived = asyncio.Event()
        self._applying = asyncio.Lock()
        self._phase = "new"

    # --------------------------------------------------------------------------- what to read

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Share the queues of a topic with the other members of the group."""
        if self._assigned is not None:
            raise self._either_or()
        self.state.subscriptions.want(topic, tags=tags, sql=sql)
        if self._phase == "running":
            await self.session.refresh_route(topic)
            await self.session.heartbeat_all()
            self.session.wake_rebalance()

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues, without regard to other members."""
        if self._assigned is None and self.state.subscriptions.topics:
            raise self._either_or()
        self._assigned = frozenset(queues)
        for topic in {queue.topic for queue in self._assigned}:
            if self.state.subscriptions[topic] is None:
                self.state.subscriptions.want(topic)
        if self._phase == "running":
            await self._apply_assignment()

    def _either_or(self) -> InvalidArgument:
        return InvalidArgument(
            f"pull consumer {self.group!r} both subscribes and is assigned queues",
            expected="one of them",
        )

    async def _apply_assignment(self) -> bool:
        """Hold exactly the queues that were assigned; false: one of them could not be had yet."""
        async with self._applying:
            assigned = self._assigned or frozenset()
            for queue, held in list(self.state.queues.items()):
                if queue not in assigned:
                    await self._rebalancer.give_up(held)
            for queue in sorted(assigned - self.state.queues.keys()):
                try:
                    self._read(queue, await self._rebalancer.start_offset(queue))
                except PenstockError as error:
                    log.warning("queue not read yet queue=%s error=%s", queue, error)
            return assigned == self.state.queues.keys()

    def _read(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        held = ProcessQueue(queue, self.session.clock.monotonic())
        self.state.queues[queue] = held
        self._puller.begin(PullCursor(held, offset), 0.0)
        return held

    def _continue_where_broker_says(self, cursor: PullCursor) -> None:
        """The broker has nothing at the offset asked for, and has said where to go on.

        The group stands there, also if that is further down: the queue was created again or lost
        its end, and an offset above would hide what is stored from now on.
        """
        held, offset = cursor.process_queue, cursor.next_offset
        self._uncommitted.pop(held, None)
        self.state.offsets.update(held.queue, offset, increase_only=False)
        if held.highest >= offset:
            # Offsets will come a second time; what is cached must not be taken for the new ones.
            held.is_dropped = True
            self._read(held.queue, offset)

    # ------------------------------------------------------------------------------ lifecycle

    async def start(self) -> None:
        """Join the group and begin to read ahead."""
        if self._phase != "new":
            raise LifecycleError(f"pull consumer {self.group!r} was started twice")
        self.session.add_consumer(self)
        self._phase = "running"
        self.started_ms = self.session.clock.time_ms()
        try:
            await self._join_group()
            if self._assigned is not None:
                await self._apply_assignment()
            self.session.wake_rebalance()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Commit what was consumed and leave; what the last poll brought comes again."""
        if self._phase != "running":
            return
        self._phase = "stopped"
        state = self.state
        state.is_stopping = True
        await state.tasks.close()
        state.is_running = False
        if state.queues:
            await state.offsets.persist_all(set(state.queues), wait=True)
        await self.session.remove_consumer(self.group)
        for held in state.queues.values():
            held.is_dropped = True
        state.queues.clear()
        self._buffer.clear()
        self._arrived.set()
        await state.statistics.stop()

    # -------------------------------------------------------------------------------- polling

    @property
    def batch_size(self) -> int:
        return self.settings.pull_batch_size

    def submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], *, announced: bool
    ) -> None:
        """Keep what was pulled for the next polls; called by the puller."""
        self._buffer.extend((queue, batch) for batch in batches)
        self._buffered += sum(batch.count for batch in batches)
        self._arrived.set()
        self.state.is_full = self._buffered > TOTAL_LIMIT

    async def poll(self, seconds: float) -> list[StoredMessage]:
        """The next messages; none when ``seconds`` pass without any."""
        if self._phase != "running":
            raise LifecycleError(
                f"pull consumer {self.group!r} is not running",
                hint="start() it, or use it in a with block",
            )
        if self._assigned is None and not self.state.subscriptions.topics:
            raise LifecycleError(
                f"pull consumer {self.group!r} reads no topic",
                hint='subscribe("topic") to share its queues, or assign(queues) to read them alone',
            )
        self._settle()
        timer: TimerHandle | None = None
        timed_out = False

        def time_is_up() -> None:
            nonlocal timed_out
            timed_out = True
            self._arrived.set()

        try:
            while True:
                messages = self._take()
                if messages or timed_out or seconds <= 0 or self._phase != "running":
                    return messages
                if timer is None:
                    timer = self.session.clock.call_later(seconds, time_is_up)
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _take(self) -> list[StoredMessage]:
        """The oldest batches of queues that are not paused, as many as one poll may bring.

        What is paused keeps its place.
        """
        kept: list[tuple[ProcessQueue, MessageBatch]] = []
        found: list[StoredMessage] = []
        while self._buffer:
            queue, batch = self._buffer[0]
            is_paused = queue.queue in self.state.paused_queues
            if not is_paused and found and len(found) + batch.count > self.batch_size:
                break
            if queue.damaged and not is_paused and not queue.is_dropped:
                if found:
                    break
                if self._refuse_damaged(queue, batch):
                    continue
            self._buffer.popleft()
            if is_paused and not queue.is_dropped:
                kept.append((queue, batch))
                continue
            self._buffered -= batch.count
            if not queue.is_dropped:
                self._polled.append((queue, batch))
                found += batch.messages
        self._buffer.extendleft(reversed(kept))
        self.state.is_full = self._buffered > TOTAL_LIMIT
        return found

    def _refuse_damaged(self, queue: ProcessQueue, batch: MessageBatch) -> bool:
        """Raise for a damaged message that is the next one, once; the next poll goes on behind it.

        True: it is not the first of its batch, and what precedes it is a batch of its own now.
        """
        messages = batch.messages
        position = next(
            (i for i, one in enumerate(messages) if one.queue_offset in queue.damaged), None
        )
        if position is None:
            return False
        self._buffer.popleft()
        parts = messages[:position], messages[position : position + 1], messages[position + 1 :]
        before, damaged, after = (MessageBatch.of(part) if part else None for part in parts)
        if after is not None:
            self._buffer.appendleft((queue, after))
        assert damaged is not None
        if before is not None:
            self._buffer.extendleft([(queue, damaged), (queue, before)])
            return True
        self._polled.append((queue, damaged))
        self._buffered -= 1
        error = queue.damaged.pop(damaged.first_offset)
        raise BodyDamaged(
            f"{error.what}; in {queue.queue} at offset {damaged.first_offset}",
            expected=error.expected,
            hint="poll again to go on behind it; penstock store verify on the broker's directory",
        )

    def take_back(self) -> None:
        """The last poll was interrupted: the next one begins with what it had found."""
        self._buffer.extendleft(reversed(self._polled))
        self._buffered += sum(batch.count for _, batch in self._polled)
        self._polled.clear()
        self._arrived.set()

    def _settle(self, unread: Iterable[StoredMessage] = ()) -> None:
        """What was polled is consumed but for ``unread``; only auto commit has it committed."""
        later = {(message.queue, message.queue_offset) for message in unread}
        polled, self._polled = self._polled, []
        for queue, batch in polled:
            if queue.is_dropped:
                continue
            if later:
                # What was not handed out yet is the end of what was polled.
                messages = batch.messages
                done = [one for one in messages if (one.queue, one.queue_offset) not in later]
                if len(done) < len(messages):
                    self._polled.append((queue, MessageBatch.of(messages[len(done) :])))
                if not done:
                    continue
                batch = MessageBatch.of(done)
            offset = queue.remove([batch])
            self.state.statistics.consumed(queue.queue.topic, batch.count, 0, 0.0)
            if offset < 0:
                continue
            if self._auto_commit:
                self.state.offsets.update(queue.queue, offset, increase_only=True)
            else:
                self._uncommitted[queue] = offset

    async def commit(self, unread: Iterable[StoredMessage] = ()) -> None:
        """Commit what was polled but for ``unread``, and return when the brokers have it."""
        self._settle(unread)
        for held, offset in self._uncommitted.items():
            if not held.is_dropped:
                # Lower than before, too: after a seek back.
                self.state.offsets.update(held.queue, offset, increase_only=False)
        self._uncommitted.clear()
        await self.state.offsets.persist_all(set(self.state.queues), wait=True)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of an assigned queue; it is committed as what is polled is."""
        self._holding(queue)
        address = (await self.session.find_broker(queue)).address
        low = await self.session.calls.call(address, requests.min_offset(queue))
        high = await self.session.calls.call(address, requests.max_offset(queue))
        if not low <= offset <= high:
            raise InvalidArgument(f"offset {offset} of {queue}", expected=f"{low} to {high}")
        # Meanwhile it may have gone to another member.
        held = self._holding(queue)
        held.is_dropped = True
        self._uncommitted.pop(held, None)
        held = self._read(queue, offset)
        if self._auto_commit:
            self.state.offsets.update(queue, offset, increase_only=False)
        else:
            self._uncommitted[held] = offset

    def pause(self, queues: frozenset[MessageQueue] | None = None) -> None:
        """Hand out nothing of these queues, and read no further ahead; None: of all read now."""
        self.state.paused_queues |= self._read_now(queues)

    def resume(self, queues: frozenset[MessageQueue] | None = None) -> None:
        """Go on with these queues where they stopped; None: with all."""
        paused = self.state.paused_queues
        paused -= paused.copy() if queues is None else self._read_now(queues)
        # What was read ahead before the pause can be had at once.
        self._arrived.set()

    def paused(self) -> set[MessageQueue]:
        """The queues that are paused."""
        return set(self.state.paused_queues)

    def _read_now(self, queues: frozenset[MessageQueue] | None) -> set[MessageQueue]:
        held = self.assignment()
        if queues is None:
            return held
        for queue in queues - held:
            raise self._not_read(queue)
        return set(queues)

    def _holding(self, queue: MessageQueue) -> ProcessQueue:
        held = self.state.queues.get(queue)
        if held is None:
            raise self._not_read(queue)
        return held

    def _not_read(self, queue: object) -> InvalidArgument:
        held_now = ", ".join(map(str, sorted(self.state.queues))) or "none yet"
        return InvalidArgument(
            f"pull consumer {self.group!r} does not read {queue}", expected=f"one of {held_now}"
        )

    def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return {queue for queue, held in self.state.queues.items() if not held.is_dropped}

    # -------------------------------------------------------------------- as its session sees it

    async def rebalance(self) -> bool:
        if self._assigned is not None:
            return await self._apply_assignment()
        return await self._rebalancer.run()

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return polled_info(
            self.state, self.started_ms, self.state.paused_queues, with_stacks=with_stacks
        )

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            if queue.topic == topic and queue in self.state.queues:
                await self.seek(queue, offset)
                # A reset moves the group even if the program commits by itself.
                self.state.offsets.update(queue, offset, increase_only=False)

    async def consume_directly(self, message: StoredMessage) -> ConsumeDirectlyResult:
        raise RequestCodeNotSupported(f"group {self.group!r} polls; it has no handler to call")
