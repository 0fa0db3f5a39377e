"""Consuming in order: one handler call a queue at a time, and a failure stops the queue.

Three locks make it so. The broker's lock on a queue (a minute, renewed every 20 s) keeps other
members away. Brokers of Penstock bind it to the connection (`extensions.LOCK_LEASE`): it ends ten
seconds after its last renewal if the connection is lost, and is renewed every 2.5 s. A task for
each queue keeps calls of this consumer apart, also when the queue is given up and taken again in
between. And a queue is not given up while its handler runs.

A task takes batches from the low end and hands several at once to a thread, because a trip to
another thread costs more than a call: the thread goes on as long as every batch succeeds, the queue
is still ours, and not much time has passed. What it did not get to is put back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from penstock.client import requests
from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.executors import Executor
from penstock.client.consuming.handler_runner import HandlerRunner
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.outcomes import (
    USE_SETTING,
    ConsumeContext,
    ConsumeResult,
    DeadLetter,
    Outcome,
    RetryLater,
    ReturnType,
)
from penstock.client.consuming.process_queue import LOCK_LIFE_SECONDS, ProcessQueue
from penstock.client.consuming.send_back import FailedMessages
from penstock.client.settings import SUSPEND_RANGE
from penstock.errors import PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.delays import delay_ms
from penstock.runtime.repeated_logs import level_of_repeat

log = logging.getLogger(__name__)

FIRST_LOCK = 1.0
LOCK_INTERVAL = 20.0
LEASE = 10.0
"""Seconds; how long a lock outlives its last renewal if the connection is lost. A dead member is
replaced after it; no handler call begins later than half of it after a renewal."""
LEASE_RENEWALS = 4
"""Renewals in one lease, so that a late or lost one does not end it."""
CONTINUOUS_SECONDS = 60.0
NEXT_ROUND = 0.01
NOT_LOCKED_AT_START = 0.1
LOCK_REFUSED = 3.0
BURST_BATCHES = 32
TIMER_SECONDS = 0.1
_NOT_FAILED = (ConsumeResult.SUCCESS, ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)


class _Renewal:
    """When the locks at one broker are due."""

    __slots__ = ("failures", "interval", "last_at")

    def __init__(self) -> None:
        self.last_at = -math.inf
        self.interval = LOCK_INTERVAL
        self.failures = 0


class OrderlyRunner(HandlerRunner):
    """Runs the handlers of an orderly consumer."""

    def __init__(
        self,
        state: ConsumerState,
        failed: FailedMessages,
        *,
        listener: Callable[[str], Listener],
        executor: Callable[[Listener], Executor],
    ) -> None:
        super().__init__(state, failed, listener=listener, executor=executor)
        self._renewals: dict[str, _Renewal] = {}
        self._local_locks: dict[MessageQueue, asyncio.Lock] = {}
        self._calls: dict[Job, asyncio.Future[None]] = {}

    def start(self) -> None:
        """Renew the locks by the clock."""
        if self._state.settings.is_clustering:
            self._state.tasks.spawn(self._lock_by_the_clock(), "locks")

    @property
    def batch_size(self) -> int:
        """Single messages: `_take` makes the batches, across pulls."""
        return 1

    def submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], *, announced: bool
    ) -> None:
        """A queue has something to consume; the messages are taken from it in order."""
        if announced:
            self._begin(queue, 0.0)

    def finished(self, jobs: Sequence[Job]) -> None:
        """Listener calls have ended; called on the session's loop."""
        for job in jobs:
            called = self._calls.get(job)
            if called is not None and not called.done():
                called.set_result(None)

    @property
    def is_busy(self) -> bool:
        """Whether a call or what it led to is under way on any queue."""
        return any(lock.locked() for lock in self._local_locks.values())

    def is_calling(self, queue: ProcessQueue) -> bool:
        """Whether a handler runs on messages of this queue, or its result is not in yet."""
        return any(job.process_queue is queue for job in self._calls)

    # ------------------------------------------------------------------------------- the task

    def _begin(self, queue: ProcessQueue, delay: float) -> None:
        self._state.tasks.spawn(self._consume(queue, delay), f"consume {queue.queue}")

    def _again(self, queue: ProcessQueue, seconds: float) -> None:
        """The same queue once more, after the suspend time if ``seconds`` is negative."""
        low, high = SUSPEND_RANGE
        if seconds < 0:
            seconds = self._state.settings.suspend_time
        self._begin(queue, min(max(seconds, low), high))

    async def _consume(self, queue: ProcessQueue, delay: float) -> None:
        if delay > 0:
            await self._state.clock.sleep(delay)
        if queue.is_dropped:
            return
        async with self._local_locks.setdefault(queue.queue, asyncio.Lock()):
            if not self._is_ours(queue):
                await self._lock_then_consume(queue, NOT_LOCKED_AT_START)
                return
            begun = self._state.clock.monotonic()
            while not queue.is_dropped and not self._state.is_stopping:
                if not self._is_ours(queue):
                    await self._lock_then_consume(queue, NEXT_ROUND)
                    return
                if self._state.clock.monotonic() - begun > CONTINUOUS_SECONDS:
                    self._again(queue, NEXT_ROUND)
                    return
                if not await self._consume_burst(queue):
                    return

    def _is_ours(self, queue: ProcessQueue) -> bool:
        if not self._state.settings.is_clustering:
            return True
        return queue.is_locked and not queue.is_lock_expired(self._state.clock.monotonic())

    async def _lock_then_consume(self, queue: ProcessQueue, delay: float) -> None:
        """Ask for the lock a little later, and go on when it is granted."""
        await self._state.clock.sleep(delay)
        if queue.is_dropped:
            return
        granted = await self.lock(queue)
        self._again(queue, NEXT_ROUND if granted else LOCK_REFUSED)

    async def _consume_burst(self, queue: ProcessQueue) -> bool:
        """Call the handler for the next batches; whether to go on with more."""
        jobs = self._take(queue)
        if not jobs:
            return False
        try:
            return await self._run_burst(queue, jobs)
        finally:
            self._calls.pop(jobs[0], None)

    async def _run_burst(self, queue: ProcessQueue, jobs: Sequence[Job]) -> bool:
        taken = await self._call(jobs[0])
        called = [job for job in jobs if job.outcome is not None]
        if queue.is_dropped:
            self._settle_leaving(queue, called)
            return False
        for job in jobs[len(called) :]:
            queue.consume_again(job.messages)
        if called:
            queue.last_consume_at = self._state.clock.monotonic()
            if not await self._settle_all(called):
                return False
        if not taken:
            # No thread would have it; the queue must not be forgotten over that.
            self._again(queue, NOT_LOCKED_AT_START)
        return taken

    def _take(self, queue: ProcessQueue) -> list[Job]:
        """The lowest messages as a chain of calls, each batch for one handler."""
        batch_size = self._state.settings.batch_size
        jobs: list[Job] = []
        while len(jobs) < BURST_BATCHES and (batch := queue.take(batch_size)):
            topic = batch[0].topic
            cut = next((i for i, m in enumerate(batch) if m.topic != topic), len(batch))
            queue.consume_again(batch[cut:])
            listener = self._listener(topic)
            if jobs and listener.is_async != jobs[0].listener.is_async:
                queue.consume_again(batch[:cut])
                break
            job = Job(queue, MessageBatch.of(batch[:cut]), listener, self._state.group)
            if jobs:
                jobs[-1].follower = job
            jobs.append(job)
        if jobs:
            # The last take may have found nothing, yet this queue is not idle: a put must not
            # announce it a second time.
            queue.is_consuming = True
        return jobs

    async def _call(self, job: Job) -> bool:
        """Run a chain of calls elsewhere; false when there was no room for it."""
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls[job] = called
        if self._executor(job.listener).submit([job]) == 0:
            return False
        await called
        return True

    # ------------------------------------------------------------------------------- results

    async def _settle_all(self, called: Sequence[Job]) -> bool:
        """Commit a run of successes, then see what the last call was."""
        *before, last = called
        queue = last.process_queue
        for job in before:
            self._state.statistics.consumed(queue.queue.topic, len(job.messages), 0, job.elapsed)
            self._state.statistics.returns[ReturnType.SUCCESS] += 1
        if before:
            self._commit(queue, before[-1].messages[-1].queue_offset)
        assert last.outcome is not None
        self._state.statistics.returns[last.outcome.return_type] += 1
        return await self._settle(last, last.outcome)

    def _settle_leaving(self, queue: ProcessQueue, called: Sequence[Job]) -> None:
        """The queue was given up under its handler.

        As long as its lock is still ours, what was handled counts: the rebalance
        waits for this and commits, and the next owner begins behind it. What failed is left to the
        next owner. Without the lock another member may have begun already, and nothing counts.
        """
        statistics = self._state.statistics
        handled: Job | None = None
        if queue.is_leaving and self._is_ours(queue):
            for job in called:
                result = None if job.outcome is None else job.outcome.result
                if result not in _NOT_FAILED or job.refused:
                    break
                if job.context.auto_commit or result is ConsumeResult.COMMIT:
                    handled = job
                elif result is ConsumeResult.ROLLBACK:
                    break
        if handled is None:
            statistics.results_ignored += len(called)
            return
        count = called.index(handled) + 1
        for job in called[:count]:
            statistics.consumed(queue.queue.topic, len(job.messages), 0, job.elapsed)
            statistics.returns[ReturnType.SUCCESS] += 1
        statistics.results_ignored += len(called) - count
        offset = queue.commit(handled.messages[-1].queue_offset)
        if offset >= 0:
            self._state.offsets.update(queue.queue, offset, increase_only=False)

    async def _settle(self, job: Job, outcome: Outcome) -> bool:
        queue, context = job.process_queue, job.context
        result = outcome.result
        size = len(job.messages)
        given_up = await self._give_up_refused(job) if job.refused else []
        if len(given_up) < len(job.refused):
            queue.consume_again(job.batch.messages)
            self._again(queue, USE_SETTING)
            return False
        topic = queue.queue.topic
        statistics = self._state.statistics
        if context.auto_commit and result in (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK):
            log.warning(
                "%s is for auto_commit off, taken as SUCCESS queue=%s", result.value, queue.queue
            )
            result = ConsumeResult.SUCCESS
        if result is ConsumeResult.SUCCESS:
            statistics.consumed(topic, size, 0, job.elapsed)
            if context.auto_commit:
                self._commit(queue)
            return True
        if result is ConsumeResult.COMMIT:
            statistics.consumed(topic, size, 0, job.elapsed)
            self._commit(queue)
            return True
        suspend = self._suspend_seconds(context, outcome)
        if result is ConsumeResult.ROLLBACK:
            statistics.consumed(topic, 0, 0, job.elapsed)
            queue.finish(given_up)
            queue.roll_back()
            self._again(queue, suspend)
            return False
        statistics.consumed(topic, 0, size, job.elapsed)
        statistics.failed(queue.queue, job.messages[0], outcome)
        buried = await self._bury(job.messages, outcome)
        if len(buried) < size:
            if context.auto_commit:
                # Given up for good: with the others it would fail, and be buried, once more.
                queue.finish([*buried, *given_up])
            queue.consume_again(job.messages)
            self._again(queue, suspend)
            return False
        if context.auto_commit:
            self._commit(queue)
        return True

    async def _give_up_refused(self, job: Job) -> list[StoredMessage]:
        """Make dead letters of the messages the handler was not given; return which are."""
        queue = job.process_queue
        self._state.statistics.consumed(queue.queue.topic, 0, len(job.refused), 0.0)
        given_up: list[StoredMessage] = []
        for message, refusal in job.refused:
            self._state.statistics.failed(queue.queue, message, refusal)
            given_up += await self._bury([message], refusal)
        return given_up

    def _commit(self, queue: ProcessQueue, up_to: int | None = None) -> None:
        offset = queue.commit(up_to)
        if offset >= 0 and not queue.is_dropped:
            self._state.offsets.update(queue.queue, offset, increase_only=False)

    def _suspend_seconds(self, context: ConsumeContext, outcome: Outcome) -> float:
        if isinstance(outcome.error, RetryLater) and outcome.error.level:
            return delay_ms(outcome.error.level) / 1000
        return USE_SETTING if context.suspend_time < 0 else context.suspend_time

    async def _bury(
        self, messages: Sequence[StoredMessage], outcome: Outcome
    ) -> list[StoredMessage]:
        """Give up what failed too often; the others hold the queue up."""
        buried: list[StoredMessage] = []
        give_up = isinstance(outcome.error, DeadLetter)
        for message in messages:
            failed_too_often = message.reconsume_times >= self._state.settings.max_reconsume_times
            if (give_up or failed_too_often) and await self._failed.bury(message, outcome):
                self._state.statistics.dead_letters += 1
                buried.append(message)
            else:
                message.reconsume_times += 1
        return buried

    # --------------------------------------------------------------------------------- locks

    async def _lock_by_the_clock(self) -> None:
        await self._state.clock.sleep(FIRST_LOCK)
        while True:
            await self._renew_due()
            await self._state.clock.sleep(LEASE / LEASE_RENEWALS)

    async def _renew_due(self) -> None:
        """Renew the locks of all held queues that are due, one request for each broker."""
        by_broker: dict[str, list[ProcessQueue]] = {}
        for queue in self._state.queues.values():
            if not queue.is_dropped:
                by_broker.setdefault(queue.queue.broker_name, []).append(queue)
        for name in self._renewals.keys() - by_broker.keys():
            del self._renewals[name]
        now = self._state.clock.monotonic()
        due: list[list[ProcessQueue]] = []
        for name, queues in by_broker.items():
            renewal = self._renewals.setdefault(name, _Renewal())
            # The timer of the loop may be a little early.
            if now - renewal.last_at >= renewal.interval - TIMER_SECONDS:
                renewal.last_at = now
                due.append(queues)
        await asyncio.gather(*map(self._lock, due))

    async def lock(self, queue: ProcessQueue) -> bool:
        """Ask for one lock."""
        await self._lock([queue])
        return queue.is_locked and not queue.is_lock_expired(self._state.clock.monotonic())

    async def _lock(self, queues: Sequence[ProcessQueue]) -> None:
        state = self._state
        renewal = self._renewals.setdefault(queues[0].queue.broker_name, _Renewal())
        try:
            replica = await state.session.find_broker(queues[0].queue, only_this=True)
            sent_at = state.clock.monotonic()
            locks = await state.session.calls.call(
                replica.address,
                requests.lock(
                    state.group,
                    state.session.client_id,
                    sorted(queue.queue for queue in queues),
                    LEASE,
                ),
            )
        except PenstockError as error:
            # Nothing changes; if it goes on, the locks expire by themselves.
            renewal.failures += 1
            log.log(
                level_of_repeat(renewal.failures),
                "locks not renewed group=%s broker=%s failures=%d error=%s",
                state.group,
                queues[0].queue.broker_name,
                renewal.failures,
                error,
            )
            return
        renewal.failures = 0
        if locks.lease is None:
            # RocketMQ's times, from the answer on.
            life, since = LOCK_LIFE_SECONDS, state.clock.monotonic()
            renewal.interval = LOCK_INTERVAL
        else:
            life, since = locks.lease / 2, sent_at
            renewal.interval = locks.lease / LEASE_RENEWALS
        for queue in queues:
            granted = queue.queue in locks.held
            if granted:
                queue.last_lock_at = since
                queue.lock_life = life
                state.refused_locks.pop(queue.queue, None)
            else:
                state.refused_locks[queue.queue] = locks.owners.get(str(queue.queue), "")
            if queue.is_locked and not granted:
                log.warning("lock lost group=%s queue=%s", state.group, queue.queue)
            queue.is_locked = granted
