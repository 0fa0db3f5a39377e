"""Consuming without order: batches to handlers in parallel, failures sent back one by one.

    pulled ─▶ chunks of batch_size ─▶ executor ─▶ handler ─▶ finished
                                                              │ ok: leaves the process queue
                                                              │ failed: send-back, then leaves
                                                              ▼ nobody took it: again in 5 s
              committed offset = lowest offset still in the process queue

Everything here runs on the session's loop but the handler itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.executors import Executor
from penstock.client.consuming.lazy_batches import Run
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.outcomes import ConsumeContext, Outcome, acknowledged
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.retry_rules import is_last, level_of
from penstock.client.consuming.send_back import FailedMessages
from penstock.model import StoredMessage

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
CLEAN_SECONDS = 60.0
EXPIRED_LEVEL = 3

PickExecutor = Callable[[Listener], Executor]
FindListener = Callable[[str], Listener]


class _Done:
    """What a burst finished of one queue."""

    __slots__ = ("calls", "count", "messages", "runs", "seconds")

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.runs: list[Run] = []
        self.count = 0
        self.calls = 0
        self.seconds = 0.0


class ConcurrentRunner:
    """Runs the handlers of a concurrent consumer."""

    def __init__(
        self,
        state: ConsumerState,
        failed: FailedMessages,
        *,
        listener: FindListener,
        executor: PickExecutor,
    ) -> None:
        self._state = state
        self._failed = failed
        self._listener = listener
        self._executor = executor

    def start(self) -> None:
        """Look for stuck handlers by the clock."""
        self._state.tasks.spawn(self._clean_by_the_clock(), "clean expired")

    # ---------------------------------------------------------------------------- handing out

    def submit(
        self, queue: ProcessQueue, messages: Sequence[StoredMessage], *, announced: bool = False
    ) -> None:
        """Have pulled messages handled, each batch by one handler."""
        by_topic: dict[str, Sequence[StoredMessage]]
        if self._state.subscriptions.is_as_handled(queue.queue.topic):
            by_topic = {queue.queue.topic: messages}
        else:
            by_topic = self._restored(messages)
        size = self._state.settings.batch_size
        for topic, of_topic in by_topic.items():
            listener = self._listener(topic)
            jobs = [
                self._job(queue, of_topic[start : start + size], listener)
                for start in range(0, len(of_topic), size)
            ]
            taken = self._executor(listener).submit(jobs)
            if taken < len(jobs):
                self._refused(queue, of_topic[taken * size :])

    @property
    def run_size(self) -> int:
        return self._state.settings.batch_size

    def submit_runs(self, queue: ProcessQueue, runs: Sequence[Run]) -> None:
        """Have a pull handled whose messages are not made yet, each run by one handler."""
        listener = self._listener(queue.queue.topic)
        taken = self._executor(listener).submit([self._job(queue, run, listener) for run in runs])
        if taken < len(runs):
            self._refused(queue, [message for run in runs[taken:] for message in run])

    def _restored(self, messages: Sequence[StoredMessage]) -> dict[str, Sequence[StoredMessage]]:
        """Messages by the topic their handlers know."""
        by_topic: dict[str, list[StoredMessage]] = {}
        for message in messages:
            self._state.subscriptions.restore_topic(message)
            by_topic.setdefault(message.topic, []).append(message)
        return dict(by_topic)

    def _job(
        self, queue: ProcessQueue, messages: Sequence[StoredMessage], listener: Listener
    ) -> Job:
        return Job(queue, messages, listener, self._state.group)

    def _refused(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        """There is no room for more tasks: what is left goes as one batch, a little later."""
        log.warning(
            "handlers are busy, trying again queue=%s messages=%d", queue.queue, len(messages)
        )
        self._state.clock.call_later(RETRY_SECONDS, self._resubmit, queue, messages)

    def _resubmit(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        if queue.is_dropped or self._state.is_stopping:
            return
        listener = self._listener(messages[0].topic)
        if listener.takes_batch:
            jobs = [self._job(queue, messages, listener)]
        else:
            # A handler of single messages never gets two.
            jobs = [self._job(queue, [message], listener) for message in messages]
        taken = self._executor(listener).submit(jobs)
        if taken < len(jobs):
            self._refused(queue, messages if listener.takes_batch else messages[taken:])

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
                if type(job.messages) is Run:
                    settled.runs.append(job.messages)
                else:
                    settled.messages += job.messages
                settled.count += len(job.messages)
                settled.calls += 1
                settled.seconds += job.elapsed
            elif job.outcome is not None:
                self._settle(job, job.outcome, now)
        for queue, settled in done.items():
            queue.last_consume_at = now
            state.statistics.succeeded(
                queue.queue.topic, settled.count, settled.calls, settled.seconds
            )
            if settled.messages:
                self._remove(queue, settled.messages)
            if settled.runs:
                self._commit(queue, queue.remove_runs(settled.runs))

    def _settle(self, job: Job, outcome: Outcome, now: float) -> None:
        """Deal with a call that was not a plain success."""
        state = self._state
        queue = job.process_queue
        size = len(job.messages)
        ok = acknowledged(outcome.result, job.context.ack_index, size)
        state.statistics.returns[outcome.return_type] += 1
        queue.last_consume_at = now
        if queue.is_dropped:
            # The next owner gets these messages; whatever became of them here is forgotten.
            state.statistics.consumed(queue.queue.topic, 0, 0, job.elapsed)
            state.statistics.results_ignored += 1
            log.info("result ignored, the queue was given up queue=%s", queue.queue)
            return
        state.statistics.consumed(queue.queue.topic, ok, size - ok, job.elapsed)
        if ok:
            self._remove(queue, job.messages[:ok])
        if ok < size:
            state.statistics.failed(queue.queue, job.messages[ok], outcome)
            returning = self._return(queue, job.messages[ok:], job.context, outcome)
            state.tasks.spawn(returning, "send back")

    def _remove(self, queue: ProcessQueue, messages: Sequence[StoredMessage]) -> None:
        self._commit(queue, queue.remove(messages))

    def _commit(self, queue: ProcessQueue, offset: int) -> None:
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
            self._remove(queue, messages)
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
        self._remove(queue, gone)
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
            self.submit(queue, messages)

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
                # Nobody of a broadcasting group reads the retry topic; keep waiting for it.
                continue
            if not await self._failed.send_back(message, EXPIRED_LEVEL, None):
                continue
            self._count_sent_back(message, EXPIRED_LEVEL)
            # Whatever the handler still says about it no longer counts.
            queue.remove([message])
