"""Consuming by pop: messages to handlers in parallel, each one acknowledged by itself.

    popped ─▶ batches ─▶ executor ─▶ handler ─▶ finished
                                                 │ ok: acknowledged, again and again until its time
                                                 │ failed: visible again after a delay
                                                 ▼ retries used up, DeadLetter: dead letter, then ok
    while a handler runs or messages wait for one, their invisible time is renewed

Nothing is committed: the broker knows what is finished. Runs on the session's loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.executors import Executor
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.message_batches import MessageBatch, batches_of
from penstock.client.consuming.outcomes import Outcome, acknowledged
from penstock.client.consuming.pop_receipts import GIVE_BACK_SECONDS, PopRequests, handle_of
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.retry_rules import is_last, level_of
from penstock.client.consuming.send_back import FailedMessages
from penstock.client.session.namespaces import wrap
from penstock.errors import PenstockError
from penstock.model import StoredMessage
from penstock.protocol.delays import DELAY_LEVELS
from penstock.protocol.headers.receipts import ReceiptHandle

log = logging.getLogger(__name__)

SETTLING: Final = "send back"
"""The name of tasks that a stop waits for."""
RENEW_AT: Final = 2 / 3
RENEW_CHECK: Final = 1.0
BUSY_SECONDS: Final = 5.0
RETRY_SECONDS: Final = (10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The delay before the next attempt, by the number of failures before."""


class _Unfinished:
    """A popped message between its arrival and its end."""

    __slots__ = ("deadline", "handle", "is_ending", "message", "renewal", "since", "topic")

    def __init__(self, message: StoredMessage, topic: str, now: float, deadline: float) -> None:
        self.message = message
        self.topic = topic
        # Kept here: the handler may be reading the message in its thread.
        self.handle = handle_of(message)
        self.since = now
        self.deadline = deadline
        self.renewal: asyncio.Future[None] | None = None
        self.is_ending = False

    async def end(self) -> ReceiptHandle:
        """Renew no more; the handle that is good now."""
        self.is_ending = True
        if self.renewal is not None:
            await asyncio.wait([self.renewal])
        return self.handle


class PopRunner:
    """Runs the handlers of a consumer that pops."""

    def __init__(
        self,
        state: ConsumerState,
        requests: PopRequests,
        failed: FailedMessages,
        *,
        listener: Callable[[str], Listener],
        executor: Callable[[Listener], Executor],
    ) -> None:
        self._state = state
        self._requests = requests
        self._failed = failed
        self._listener = listener
        self._executor = executor
        self._unfinished: dict[int, _Unfinished] = {}
        """By the identity of the message."""
        self.counts: dict[ProcessQueue, int] = {}
        """Unfinished messages of each source."""

    def start(self) -> None:
        """Renew by the clock."""
        self._state.tasks.spawn(self._renew_by_the_clock(), "renew")

    # Handing out

    def submit(
        self, queue: ProcessQueue, messages: Sequence[StoredMessage], arrived: float
    ) -> None:
        """Have messages handled, as many in one call as the settings say."""
        state = self._state
        self._take(queue, messages, arrived)
        if state.is_stopping or queue.is_dropped:
            self._return(queue, messages)
            return
        self._submit(queue, batches_of(sorted(messages, key=_offset), state.settings.batch_size))

    def acknowledge_unwanted(
        self, queue: ProcessQueue, messages: Sequence[StoredMessage], arrived: float
    ) -> None:
        """End messages with another tag of the same hash: the group does not want them."""
        self._take(queue, messages, arrived)
        self._settle(queue, messages, self._acknowledge(messages))

    def _take(self, queue: ProcessQueue, messages: Sequence[StoredMessage], arrived: float) -> None:
        settings = self._state.settings
        deadline = arrived + settings.invisible
        for message in messages:
            topic = wrap(settings.namespace, message.topic)
            self._unfinished[id(message)] = _Unfinished(message, topic, arrived, deadline)
        self.counts[queue] = self.counts.get(queue, 0) + len(messages)

    def _submit(self, queue: ProcessQueue, batches: Sequence[MessageBatch]) -> None:
        state = self._state
        listener = self._listener(batches[0].messages[0].topic)
        jobs = [Job(queue, batch, listener, state.group) for batch in batches]
        taken = self._executor(listener).submit(jobs)
        left = batches[taken:]
        if left:
            state.clock.call_later(BUSY_SECONDS, self._resubmit, queue, left)

    def _resubmit(self, queue: ProcessQueue, batches: Sequence[MessageBatch]) -> None:
        if self._state.is_stopping:
            self._return(queue, [message for batch in batches for message in batch.messages])
        else:
            self._submit(queue, batches)

    # Results

    def finished(self, jobs: Sequence[Job]) -> None:
        """Handler calls have ended."""
        state = self._state
        done: dict[ProcessQueue, list[StoredMessage]] = {}
        for job in jobs:
            queue, messages, outcome = job.process_queue, job.messages, job.outcome
            queue.last_consume_at = state.clock.monotonic()
            if outcome is None:
                self._return(queue, messages)
                continue
            ok = acknowledged(outcome.result, job.context.ack_index, len(messages))
            topic = queue.queue.topic
            if job.is_plain_success:
                state.statistics.succeeded(topic, len(messages), 1, job.elapsed)
            else:
                state.statistics.returns[outcome.return_type] += 1
                state.statistics.consumed(topic, ok, len(messages) - ok, job.elapsed)
            done.setdefault(queue, []).extend(messages[:ok])
            if ok < len(messages):
                state.statistics.failed(queue.queue, messages[ok], outcome)
                level = level_of(outcome, job.context.delay_level)
                for message in messages[ok:]:
                    self._settle(queue, [message], self._fail(message, level, outcome))
        for queue, messages in done.items():
            if messages:
                self._settle(queue, messages, self._acknowledge(messages))

    def _settle(
        self,
        queue: ProcessQueue,
        messages: Sequence[StoredMessage],
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Run what ends messages; then they are no longer unfinished."""

        async def settle() -> None:
            try:
                await work
            except PenstockError as error:
                log.warning(
                    "popped messages not finished, redelivered later group=%s messages=%d error=%s",
                    self._state.group,
                    len(messages),
                    error,
                )
            finally:
                self._forget(queue, messages)

        self._state.tasks.spawn(settle(), SETTLING)

    def _forget(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            self._unfinished.pop(id(message), None)
        left = self.counts[queue] - len(messages)
        if left:
            self.counts[queue] = left
        else:
            # Sources come and go; only those with unfinished messages are kept.
            del self.counts[queue]

    def _return(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        """Let others have messages that no handler saw."""

        async def give_back() -> None:
            await asyncio.gather(
                *(self._change(one, GIVE_BACK_SECONDS, is_suspended=True) for one in messages)
            )

        self._settle(queue, messages, give_back())

    # Ends

    async def _acknowledge(self, messages: Sequence[StoredMessage]) -> None:
        by_broker: dict[str, list[tuple[str, ReceiptHandle]]] = {}
        deadline = math.inf
        for message in messages:
            known = self._unfinished[id(message)]
            handle = await known.end()
            by_broker.setdefault(handle.broker_name, []).append((known.topic, handle))
            deadline = min(deadline, known.deadline)
        for broker_name, handles in by_broker.items():
            await self._requests.acknowledge_until(broker_name, handles, deadline)

    async def _fail(self, message: StoredMessage, level: int, outcome: Outcome) -> None:
        """Have a message come again after a delay, or make it a dead letter."""
        state = self._state
        if is_last(message, level, state.settings.max_reconsume_times):
            if await self._failed.bury(message, outcome):
                state.statistics.dead_letters += 1
                await self._acknowledge([message])
                return
            level = 0
        if level > 0:
            seconds = DELAY_LEVELS.delay_ms(level) / 1000
        else:
            seconds = RETRY_SECONDS[min(message.reconsume_times, len(RETRY_SECONDS) - 1)]
        await self._change(message, seconds)
        state.statistics.sent_back += 1

    async def _change(
        self, message: StoredMessage, seconds: float, *, is_suspended: bool = False
    ) -> None:
        known = self._unfinished[id(message)]
        await self._requests.change(
            known.topic, await known.end(), seconds, is_suspended=is_suspended
        )

    # Renewing

    async def _renew_by_the_clock(self) -> None:
        state = self._state
        invisible = state.settings.invisible
        check = min(RENEW_CHECK, invisible / 6)
        while True:
            await state.clock.sleep(check)
            now = state.clock.monotonic()
            due = [
                one
                for one in self._unfinished.values()
                if not one.is_ending
                and one.renewal is None
                and one.deadline - now <= invisible * (1 - RENEW_AT)
                # A handler that never ends must not keep its message for ever.
                and now - one.since < state.settings.consume_timeout
            ]
            for one in due:
                one.renewal = asyncio.ensure_future(self._renew(one))

    async def _renew(self, one: _Unfinished) -> None:
        state = self._state
        invisible = state.settings.invisible
        try:
            one.handle = await self._requests.change(one.topic, one.handle, invisible)
            one.deadline = state.clock.monotonic() + invisible
        except PenstockError as error:
            log.warning("invisible time not renewed topic=%s error=%s", one.topic, error)
        finally:
            one.renewal = None


def _offset(message: StoredMessage) -> int:
    return message.queue_offset
