"""Consuming without order: batches to handlers in parallel, failures sent back one by one.

    pulled ─▶ chunks of batch_size ─▶ executor ─▶ handler ─▶ finished
                                                              │ ok: leaves the process queue
                                                              │ failed: send-back, then leaves
                                                              ▼ send-back failed: again in 5 s
              committed offset = lowest offset still in the process queue

Everything here runs on the session's loop but the handler itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.consuming.handler_runner import HandlerRunner
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.message_batches import MessageBatch, batches_of
from penstock.client.consuming.outcomes import ConsumeContext, Outcome, acknowledged
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.retry_rules import is_last, level_of
from penstock.model import StoredMessage

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
CLEAN_SECONDS = 60.0
EXPIRED_LEVEL = 3


class _Done:
    """The successful calls of a burst for one queue."""

    __slots__ = ("batches", "count", "seconds")

    def __init__(self) -> None:
        self.batches: list[MessageBatch] = []
        self.count = 0
        self.seconds = 0.0


class ConcurrentRunner(HandlerRunner):
    """Runs the handlers of a concurrent consumer."""

    def start(self) -> None:
        """Look for stuck handlers by the clock."""
        self._state.tasks.spawn(self._clean_by_the_clock(), "clean expired")

    # ---------------------------------------------------------------------------- handing out

    @property
    def batch_size(self) -> int:
        return self._state.settings.batch_size

    def submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], *, announced: bool = False
    ) -> None:
        """Have batches handled, each by one call of the handler of its topic."""
        if self._state.subscriptions.is_as_handled(queue.queue.topic):
            self._submit(queue, batches, self._listener(queue.queue.topic))
            return
        by_topic: dict[str, list[MessageBatch]] = {}
        for batch in batches:
            by_topic.setdefault(batch.messages[0].topic, []).append(batch)
        for topic, of_topic in by_topic.items():
            self._submit(queue, of_topic, self._listener(topic))

    def _submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], listener: Listener
    ) -> None:
        group = self._state.group
        taken = self._executor(listener).submit(
            [Job(queue, batch, listener, group) for batch in batches]
        )
        left = batches[taken:]
        if left:
            log.warning(
                "handlers are busy, trying again queue=%s batches=%d", queue.queue, len(left)
            )
            self._state.clock.call_later(RETRY_SECONDS, self._resubmit, queue, left)

    def _resubmit(self, queue: ProcessQueue, batches: Sequence[MessageBatch]) -> None:
        """Submit what found no room; to a handler of batches it goes as a single one."""
        if queue.is_dropped or self._state.is_stopping:
            return
        messages = [message for batch in batches for message in batch.messages]
        listener = self._listener(messages[0].topic)
        size = len(messages) if listener.takes_batch else 1
        self._submit(queue, batches_of(messages, size), listener)

    # ------------------------------------------------------------------------------- results

    def finished(self, jobs: Sequence[Job]) -> None:
        """Listener calls have ended; called on the session's loop."""
        state = self._state
        # The usual results of a burst are settled together, queue by queue.
        done: dict[ProcessQueue, _Done] = {}
        now = state.clock.monotonic()
        for job in jobs:
            queue = job.process_queue
            if job.is_plain_success and not queue.is_dropped:
                settled = done.get(queue)
                if settled is None:
                    settled = done[queue] = _Done()
                settled.batches.append(job.batch)
                settled.count += job.batch.count
                settled.seconds += job.elapsed
            elif job.outcome is not None:
                self._settle(job, job.outcome, now)
        for queue, settled in done.items():
            queue.last_consume_at = now
            state.statistics.succeeded(
                queue.queue.topic, settled.count, len(settled.batches), settled.seconds
            )
            self._remove(queue, settled.batches)

    def _settle(self, job: Job, outcome: Outcome, now: float) -> None:
        """Deal with a call that was not a plain success."""
        state = self._state
        queue = job.process_queue
        messages = job.messages
        size = len(messages)
        ok = acknowledged(outcome.result, job.context.ack_index, size) if size else 0
        state.statistics.returns[outcome.return_type] += 1
        queue.last_consume_at = now
        if queue.is_dropped:
            # The next owner gets these messages; the result does not count here.
            state.statistics.consumed(queue.queue.topic, 0, 0, job.elapsed)
            state.statistics.results_ignored += 1
            log.info("result ignored, the queue was given up queue=%s", queue.queue)
            return
        state.statistics.consumed(queue.queue.topic, ok, size - ok + len(job.refused), job.elapsed)
        for message, refusal in job.refused:
            state.statistics.failed(queue.queue, message, refusal)
            giving_up = self._return(queue, [message], job.context, refusal)
            state.tasks.spawn(giving_up, "send back")
        if ok == size:
            self._remove(queue, batches_of(messages, 1) if job.refused else [job.batch])
            return
        self._remove(queue, batches_of(messages[:ok], 1))
        state.statistics.failed(queue.queue, messages[ok], outcome)
        returning = self._return(queue, messages[ok:], job.context, outcome)
        state.tasks.spawn(returning, "send back")

    def _remove(self, queue: ProcessQueue, batches: Sequence[MessageBatch]) -> None:
        offset = queue.remove(batches)
        if offset >= 0 and not queue.is_dropped:
            self._state.offsets.update(queue.queue, offset, increase_only=True)

    async def _return(
        self,
        queue: ProcessQueue,
        messages: Sequence[StoredMessage],
        context: ConsumeContext,
        outcome: Outcome,
    ) -> None:
        """Deal with messages that failed, one after the other."""
        state = self._state
        if not state.settings.is_clustering:
            for message in messages:
                log.warning(
                    "broadcast message dropped msg_id=%s queue=%s", message.msg_id, queue.queue
                )
            self._remove(queue, batches_of(messages, 1))
            return
        gone: list[StoredMessage] = []
        kept: list[StoredMessage] = []
        for message in messages:
            if message.queue_offset not in queue and state.profile.skip_second_send_back:
                # It ran into the consume timeout and was already sent back.
                continue
            if await self._send_back(message, context, outcome):
                gone.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        self._remove(queue, batches_of(gone, 1))
        if kept:
            state.statistics.local_retries += len(kept)
            state.clock.call_later(RETRY_SECONDS, self._retry_here, queue, kept)

    async def _send_back(
        self, message: StoredMessage, context: ConsumeContext, outcome: Outcome
    ) -> bool:
        level = level_of(outcome, context.delay_level)
        sent = await self._failed.send_back(message, level, outcome)
        if sent:
            self._count_sent_back(message, level)
        return sent

    def _count_sent_back(self, message: StoredMessage, level: int) -> None:
        self._state.statistics.sent_back += 1
        if is_last(message, level, self._state.settings.max_reconsume_times):
            self._state.statistics.dead_letters += 1

    def _retry_here(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        if not queue.is_dropped and not self._state.is_stopping:
            self.submit(queue, batches_of(messages, self.batch_size))

    # -------------------------------------------------------------------------- stuck handlers

    async def _clean_by_the_clock(self) -> None:
        timeout = self._state.settings.consume_timeout
        while True:
            await self._state.clock.sleep(min(timeout, CLEAN_SECONDS))
            for queue in list(self._state.queues.values()):
                await self._clean(queue)

    async def _clean(self, queue: ProcessQueue) -> None:
        """Send back messages whose handler has been running for too long."""
        state = self._state
        if queue.is_dropped:
            return
        timeout_ms = round(state.settings.consume_timeout * 1000)
        for message in queue.expired(state.clock.time_ms(), timeout_ms, scan_all=True):
            if queue.is_dropped or message.queue_offset not in queue:
                continue  # It ended while the one before was sent back.
            log.error(
                "handler exceeds the consume timeout msg_id=%s queue=%s offset=%d timeout=%g",
                message.msg_id,
                queue.queue,
                message.queue_offset,
                state.settings.consume_timeout,
            )
            if not state.settings.is_clustering:
                # Broadcasting groups have no retry topic; keep waiting for the handler.
                continue
            if not await self._failed.send_back(message, EXPIRED_LEVEL, None):
                continue
            self._count_sent_back(message, EXPIRED_LEVEL)
            # The result of the handler no longer counts.
            queue.remove(batches_of([message], 1))
