"""The store's asyncio side: one write a loop turn, group commit, fsync off the loop.

What an acknowledgement means:

* async flush: the message is in the page cache. It survives the death of this process; a power
  failure may take what was not flushed yet, half a second of it under load.
* sync flush: the message is on the disk. Appends that wait share one fdatasync, and no
  message is read before it is there.

    append … append ─▶ end of the loop turn: write(), one writev ─▶ async: answered ─▶ visible
                                            │
                                            └▶ sync: flush() in a thread ─▶ visible, answered

With async flush the work for readers (queue and index entries) comes right after the answers, so
that answers do not wait for it. If more requests came meanwhile, it waits for their answers, too,
and is done for all of them together. A read that comes earlier does it first, and so does a write
that a held pull waits for: the pull is answered together with the send.

The connections call `write` before they send their answers (`remoting.write_batch`). It is also
called once a turn by itself, for appends without an answer. A failure is remembered until it has
reached every answer of the turn, because any of them may acknowledge a lost message.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.errors import PenstockError, StoreError, StoreLost
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end
from penstock.store import MessageStore
from penstock.store.disk_steps import DiskStep, DiskSteps

log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0
"""So long nothing is written, then queues, index and the note of the store go to the disk, too."""

_MAX_REST_BYTES = 32 << 10
"""So much of the log may be without the work for readers while requests keep coming."""

_Result = TypeVar("_Result")


class Answered(Protocol):
    """A `Promise` or a wrapper around one."""

    def resolve(self, answer: Command) -> bool:
        """Give the answer."""

    def fail(self, error: PenstockError) -> bool:
        """Give an error instead."""


class _Waiting(NamedTuple):
    """An answer that is given when the log is on the disk up to ``end``."""

    end: int
    deadline: float
    promise: Answered
    answer: Command


class _Probe(NamedTuple):
    """One message whose way to its acknowledgement is timed."""

    topic: str
    queue_id: int
    begun: float


class Storage(Service):
    """The one user of a broker's store."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        *,
        flush_interval: float = 0.5,
        sync_timeout: float = 5.0,
        put_took: Callable[[str, int, float], None] = lambda topic, queue_id, seconds: None,
    ) -> None:
        """``put_took`` gets topic, queue and seconds of one message per write, as a sample."""
        self.store = store
        store.on_staged(self._schedule_write)
        store.on_failed_write(self._note_loss)
        self._clock = clock
        self._flush_interval = flush_interval
        self._sync_timeout = sync_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_write_scheduled = False
        self._is_rest_scheduled = False
        self._after_answers: list[Callable[[], object]] = []
        self._loss: Exception | None = None
        self._on_loss: list[Callable[[int], object]] = []
        self._before_write: list[Callable[[], object]] = []
        self._written = asyncio.Event()
        self._unwritten: list[tuple[Answered, Command]] = []
        self._waiting: deque[_Waiting] = deque()
        self._removal: Executor | None = None
        """Removes files. Not the thread that flushes: answers wait for that one."""
        self._deletions: set[asyncio.Task[object]] = set()
        self._death: BaseException | None = None
        self._is_idle = False
        self._put_took = put_took
        self._probe: _Probe | None = None
        self.is_sync_flush = store.config.is_sync_flush
        self.max_message_size = store.config.max_message_size
        self.corrects_in_slave = store.config.offset_check_in_slave
        # Appending schedules the write through `on_staged`, reading needs no loop: both are the
        # store's own. What is staged is written before any answer of this loop turn leaves.
        self.append = store.append
        self.append_batch = store.append_batch
        self.append_batch_body = store.append_batch_body
        self.append_rows = store.append_rows
        self.read = store.read
        self.record_at = store.record_at
        self.min_offset = store.min_offset
        self.max_offset = store.max_offset

    # Appending

    def write(self) -> None:
        """Write what is staged; raises if that, or an earlier write of this turn, was in vain."""
        if self._is_write_scheduled:
            refused = self._append_last() if self._before_write else None
            self._is_write_scheduled = False
            try:
                is_left = self.store.write_log()
            except Exception as error:
                if self._loss is not error:
                    self._note_loss(error)
            else:
                if is_left:
                    self._schedule_rest()
                self._written.set()
                if not self.is_sync_flush:
                    self._end_probe()
                if refused is not None:
                    self._note_loss(refused)
                self._answer_written()
        if self._loss is not None:
            raise self._loss

    def _note_loss(self, error: Exception) -> None:
        """Messages are lost, and answers that say the opposite may be on their way."""
        assert self._loop is not None, "the storage was started"
        # Answers of this turn leave in the next one; later turns are not affected.
        self._loop.call_soon(self._loop.call_soon, self._forget_loss, error)
        self._loss = error
        failure = error if isinstance(error, StoreError) else StoreError(f"write failed: {error}")
        waiting, written = self._waiting, self.store.max_position
        while waiting and waiting[-1].end > written:
            waiting.pop().promise.fail(failure)
        unwritten, self._unwritten = self._unwritten, []
        for promise, _ in unwritten:
            promise.fail(failure)
        for listener in self._on_loss:
            listener(written)

    def on_loss(self, listener: Callable[[int], object]) -> None:
        """Call ``listener`` with the end of the log when what was staged behind it is lost."""
        self._on_loss.append(listener)

    def _forget_loss(self, error: Exception) -> None:
        if self._loss is error:
            self._loss = None

    def before_write(self, append: Callable[[], object]) -> None:
        """Call ``append`` at the end of this turn: what it appends is written with the rest.

        If the store refuses that, no answer of the turn leaves.
        """
        self._before_write.append(append)
        self._schedule_write("", 0)

    def _append_last(self) -> StoreError | None:
        works, self._before_write = self._before_write, []
        refused: StoreError | None = None
        for append in works:
            try:
                append()
            except StoreError as error:
                refused = error
        return refused

    def when_written(self, promise: Answered, answer: Command) -> None:
        """Give ``answer`` when what was appended last is written; the error if it cannot be."""
        self._unwritten.append((promise, answer))

    def when_on_disk(self, end: int, promise: Answered, answer: Command) -> None:
        """Give ``answer`` when the log is flushed up to ``end``, or say that it took too long."""
        deadline = self._clock.monotonic() + self._sync_timeout
        if self._waiting:
            # The answer to a repeated request relies on an older record; the order stays.
            end = max(end, self._waiting[-1].end)
        self._waiting.append(_Waiting(end, deadline, promise, answer))

    def _schedule_write(self, topic: str, queue_id: int) -> None:
        if self._is_write_scheduled:
            return
        self._is_write_scheduled = True
        if self._probe is None:
            self._probe = _Probe(topic, queue_id, self._clock.monotonic())
        assert self._loop is not None, "the storage was started"
        self._loop.call_soon(self._write_unasked)

    def after_answers(self, append: Callable[[], object]) -> None:
        """Call ``append`` after the answers of this turn: none of them waits for what it appends.

        While further requests keep coming, their answers leave first, too.
        """
        self._after_answers.append(append)
        if not self._is_rest_scheduled:
            self._is_rest_scheduled = True
            assert self._loop is not None, "the storage was started"
            # What is called next runs before the answers leave, what that calls runs after it.
            self._loop.call_soon(self._loop.call_soon, self._do_rest)

    def _schedule_rest(self) -> None:
        """Do the work for readers after the answers: these leave when this turn ends."""
        if not self._is_rest_scheduled:
            self._is_rest_scheduled = True
            assert self._loop is not None, "the storage was started"
            self._loop.call_soon(self._do_rest)

    def _do_rest(self) -> None:
        self._is_rest_scheduled = False
        if self._is_write_scheduled and self.store.unpublished_bytes < _MAX_REST_BYTES:
            # Requests came meanwhile, whose answers are not to wait for this.
            self._schedule_rest()
        else:
            self.finish_turn()

    def finish_turn(self) -> None:
        """Do all that was left for after the answers."""
        works, self._after_answers = self._after_answers, []
        for append in works:
            append()
        if works:
            self._write_unasked()
        self._publish()

    def _publish(self) -> None:
        try:
            self.store.publish()
        except Exception:
            # The store handles full disks and the like, so this is a defect. The sends were
            # acknowledged; recovery at the next start finds their records in the commit log.
            log.exception("messages are stored, but not visible until the broker is restarted")

    def _end_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            self._put_took(probe.topic, probe.queue_id, self._clock.monotonic() - probe.begun)

    def _write_unasked(self) -> None:
        try:
            self.write()
        except StoreError as error:
            log.error("nothing stored, appends of this turn are lost error=%s", error)

    # Flushing

    async def _run(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        with (
            ThreadPoolExecutor(1, thread_name_prefix="penstock-flush") as flushing,
            ThreadPoolExecutor(1, thread_name_prefix="penstock-removal") as self._removal,
        ):
            ready()
            try:
                await self._flush_forever(flushing)
            finally:
                # The store is closed next: no file may be removed any more, and nothing appended
                # may be left in memory.
                if self._deletions:
                    await asyncio.wait(self._deletions)
                self._write_unasked()
                self.finish_turn()

    async def _flush_forever(self, thread: ThreadPoolExecutor) -> None:
        is_saved = True
        while True:
            is_idle = await self._wait_for_writes(is_saved=is_saved)
            if not self.is_sync_flush and not is_idle:
                await self._clock.sleep(self._flush_interval)
                self._written.clear()
            overdue = self._clock.call_later(self._sync_timeout, self._answer_overdue)
            flush = functools.partial(self.store.flush, thorough=is_idle)
            try:
                flushed = await run_to_end(thread, flush)
                is_saved = is_idle
            except StoreLost as error:
                self._fail_waiting(error)
                raise
            except StoreError as error:
                is_saved = True
                log.error("flush failed, the store takes no more writes error=%s", error)
                self._fail_waiting(error)
                continue
            finally:
                overdue.cancel()
            self.store.mark_flushed(flushed)
            if self.is_sync_flush:
                self._end_probe()
            self._answer_flushed(flushed)

    async def _wait_for_writes(self, *, is_saved: bool) -> bool:
        """Wait until something was written; True if nothing was for a while and is to be saved."""
        timer = None if is_saved else self._clock.call_later(_IDLE_SECONDS, self._note_idle)
        try:
            await self._written.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._written.clear()
        if self._death is not None:
            raise self._death
        is_idle, self._is_idle = self._is_idle, False
        return is_idle and self.store.max_position == self.store.flushed_position

    def _note_idle(self) -> None:
        self._is_idle = True
        self._written.set()

    async def check_held(self) -> None:
        """End the broker if the store's directory is not the one that it opened."""
        try:
            await run_to_end(self._removal, self.store.check_held)
        except StoreLost as error:
            self._death = error
            self._written.set()

    async def unblock(self) -> bool:
        """Try again what could not be written; True if messages are accepted now."""
        steps = self.store.unblocking()
        return await self._finish(steps, next(steps))

    # Removing

    def delete_topic(
        self, topic: str, done: Callable[[], object], failed: Callable[[PenstockError], object]
    ) -> None:
        """Delete a topic: its messages are gone now, its files when ``done`` is called.

        A topic of the same name can be created and used at once.
        """
        self.finish_turn()
        self.write()
        steps = self.store.topic_deletion(topic)
        step = next(steps)
        self._start(self._finish(steps, step), done, failed)

    def delete_topics(
        self,
        is_unused: Callable[[str], bool],
        done: Callable[[], object],
        failed: Callable[[PenstockError], object],
    ) -> None:
        """Delete every topic of the store that ``is_unused``."""
        names = self.store.queues()

        async def delete() -> None:
            topics = await run_to_end(self._removal, lambda: {topic for topic, _ in names})
            for topic in sorted(topics):
                if is_unused(topic):
                    self.write()
                    steps = self.store.topic_deletion(topic)
                    await self._finish(steps, next(steps))

        self._start(delete(), done, failed)

    async def clean(self) -> list[str]:
        """One round of retention; returns the files that were deleted."""
        steps = self.store.cleaning()
        return await self._finish(steps, next(steps))

    async def _finish(self, steps: DiskSteps[_Result], step: DiskStep) -> _Result:
        """Run ``step`` and all that follow it: what waits for the disk off the loop."""
        while True:
            try:
                result = await run_to_end(self._removal, step)
            except BaseException as error:
                proceed = functools.partial(steps.throw, error)
            else:
                proceed = functools.partial(steps.send, result)
            try:
                step = proceed()
            except StopIteration as end:
                finished: _Result = end.value
                return finished

    def _start(
        self,
        deletion: Coroutine[Any, Any, object],
        done: Callable[[], object],
        failed: Callable[[PenstockError], object],
    ) -> None:
        assert self._loop is not None, "the storage was started"
        task = self._loop.create_task(deletion)
        self._deletions.add(task)

        def ended(task: asyncio.Task[object]) -> None:
            self._deletions.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is None:
                done()
            elif isinstance(error, PenstockError):
                failed(error)
            else:
                # An error of ours: the service ends with it, as with one of its own.
                self._death = error
                self._written.set()

        task.add_done_callback(ended)

    # Answering

    def _answer_written(self) -> None:
        if self._unwritten:
            unwritten, self._unwritten = self._unwritten, []
            for promise, answer in unwritten:
                promise.resolve(answer)

    def _answer_flushed(self, flushed: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0].end <= flushed:
            done = waiting.popleft()
            done.promise.resolve(done.answer)

    def _answer_overdue(self) -> None:
        """Stored, but the disk is slow: RocketMQ says so and lets the producer decide."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0].deadline <= now:
            late = self._waiting.popleft()
            late.answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
            late.promise.resolve(late.answer)
        if self._waiting:
            self._clock.call_later(self._waiting[0].deadline - now, self._answer_overdue)

    def _fail_waiting(self, error: PenstockError) -> None:
        while self._waiting:
            self._waiting.popleft().promise.fail(error)
