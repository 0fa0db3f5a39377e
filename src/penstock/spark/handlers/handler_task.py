"""Handlers in a Spark task: call the handler for each message, then decide about the message.

    concurrent   a failed message is sent back, and the next one follows at once
    ordered      a failed message is handled again after a pause, up to its last retry; then it
                 becomes a dead letter, and the queue continues

A handler cannot fail its task: every exception is an outcome of the message. What fails a task is a
broker that does not store a failed message again, because then an offset would be committed while
its message is neither handled nor stored.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, cast

from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.handler_middleware import HandlerMiddleware
from penstock.client.consuming.listeners import HandlerFunction, Listener
from penstock.client.consuming.outcomes import (
    ConsumeContext,
    ConsumeResult,
    DeadLetter,
    Outcome,
    RetryLater,
    acknowledged,
    judge,
)
from penstock.client.consuming.retry_rules import level_of
from penstock.client.middleware import Middleware
from penstock.client.session.client_ids import client_id, local_ip
from penstock.client.settings import SUSPEND_RANGE
from penstock.model import StoredMessage
from penstock.protocol.delays import delay_ms
from penstock.spark.handlers.send_back import Failed, SendBack

log = logging.getLogger(__name__)

NO_TIMEOUT: Final = float("inf")
"""A call has no time limit of its own; Spark's task may have one."""
SUSPEND_SECONDS: Final = 1.0
"""suspendCurrentQueueTimeMillis: the pause before an ordered message is handled again."""
_DONE: Final = (ConsumeResult.SUCCESS, ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)


class Disposition(IntEnum):
    """The decision about a message."""

    DONE = 0
    RETRY = 1
    DEAD = 2


class Pause(NamedTuple):
    """The time before the same message is handled again."""

    seconds: float


DISPOSITION_NAMES: Final = tuple(disposition.name.lower() for disposition in Disposition)


@dataclass(frozen=True)
class HandlerJob:
    """A handler and its contract; sent to the executors."""

    handler: HandlerFunction
    group: str
    access: ClusterAccess
    ordered: bool = False
    max_retries: int = 16
    middleware: tuple[Middleware, ...] = ()
    suspend_seconds: float = SUSPEND_SECONDS


Original = Callable[[StoredMessage], StoredMessage]
"""Finds the stored message of one that was made from a row."""


class HandlerTask:
    """Runs the handler over the messages of one task."""

    def __init__(self, job: HandlerJob, original: Original | None = None) -> None:
        self._job = job
        self._original = original
        listener = Listener("any", job.handler, takes_batch=False)
        self._is_async = listener.is_async
        self._wants_context = listener.wants_context
        self._function = _blocking(job.handler) if listener.is_async else job.handler
        self._middleware: HandlerMiddleware | None = None
        if job.middleware:
            self._middleware = HandlerMiddleware(
                job.middleware, job.group, orderly=job.ordered, namespace=job.access.namespace
            )
        self._send_back = SendBack(job.access, job.group, job.max_retries, _host())

    def run(self, messages: Sequence[StoredMessage]) -> list[int]:
        """The disposition of each message; on return, failed ones are stored again."""
        return self._in_order(messages) if self._job.ordered else self._concurrent(messages)

    def _concurrent(self, messages: Sequence[StoredMessage]) -> list[int]:
        dispositions = [0] * len(messages)
        failed: list[Failed] = []
        is_plain = not self._wants_context and self._middleware is None
        for index, outcome, level in (self._call if is_plain else self._call_around)(messages):
            one = Failed(self._as_stored(messages[index]), outcome, level)
            failed.append(one)
            is_last = self._send_back.is_last(one)
            dispositions[index] = Disposition.DEAD if is_last else Disposition.RETRY
        if failed:
            self._send_back.send(failed)
        return dispositions

    def _call(self, messages: Sequence[StoredMessage]) -> list[tuple[int, Outcome, int]]:
        """Call the handler for each message, and return the failures. This is the hot loop."""
        function = self._function
        failures: list[tuple[int, Outcome, int]] = []
        for index, message in enumerate(messages):
            try:
                returned = function(message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                outcome = self._judged(message, None, error)
            else:
                if returned is None:
                    continue
                outcome = self._judged(message, returned, None)
            if outcome.result not in _DONE:
                failures.append((index, outcome, level_of(outcome)))
        return failures

    def _call_around(self, messages: Sequence[StoredMessage]) -> list[tuple[int, Outcome, int]]:
        """The same for handlers with a context, or with middleware around them."""
        failures: list[tuple[int, Outcome, int]] = []
        for index, message in enumerate(messages):
            outcome, context = self._call_one(message)
            if not acknowledged(outcome.result, context.ack_index, 1):
                failures.append((index, outcome, level_of(outcome, context.delay_level)))
        return failures

    def _call_one(self, message: StoredMessage) -> tuple[Outcome, ConsumeContext]:
        context = ConsumeContext(self._job.group, message.queue)
        middleware, queue, messages = self._middleware, message.queue, (message,)
        if middleware is None:
            outcome = self._handle(message, context)
        elif self._is_async:
            handle_async = functools.partial(self._handle_async, message, context)
            outcome = _loop().run_until_complete(
                middleware.run_async(queue, messages, handle_async)
            )
        else:
            outcome = middleware.run(
                queue, messages, functools.partial(self._handle, message, context)
            )
        return outcome, context

    def _handle(self, message: StoredMessage, context: ConsumeContext) -> Outcome:
        try:
            returned = self._function(*self._arguments(message, context))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._judged(message, None, error)
        return self._judged(message, returned, None)

    async def _handle_async(self, message: StoredMessage, context: ConsumeContext) -> Outcome:
        called = self._job.handler(*self._arguments(message, context))
        try:
            returned = await cast(Awaitable[object], called)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._judged(message, None, error)
        return self._judged(message, returned, None)

    def _arguments(self, message: StoredMessage, context: ConsumeContext) -> tuple[object, ...]:
        return (message, context) if self._wants_context else (message,)

    def _judged(
        self, message: StoredMessage, returned: object, error: BaseException | None
    ) -> Outcome:
        outcome = judge(
            returned,
            error,
            0.0,
            NO_TIMEOUT,
            orderly=self._job.ordered,
            strict=self._wants_context,
        )
        if outcome.result not in _DONE:
            log.warning(
                "handler failed group=%s queue=%s offset=%d attempt=%d how=%s %s=%.500r",
                self._job.group,
                message.queue,
                message.queue_offset,
                message.reconsume_times + 1,
                outcome.return_type.value,
                # A returned value that is no result counts as a failure, so it is logged.
                *(("returned", returned) if error is None else ("error", error)),
            )
        return outcome

    # ---------------------------------------------------------------------------------- ordered

    def _in_order(self, messages: Sequence[StoredMessage]) -> list[int]:
        dispositions: list[int] = []
        for message in messages:
            while isinstance(disposition := self.attempt(message), Pause):
                time.sleep(disposition.seconds)
            dispositions.append(disposition)
        return dispositions

    def attempt(self, message: StoredMessage) -> Disposition | Pause:
        """Call the handler once for a message that no other of its queue may overtake.

        A pause means: handle the same message again after it.
        """
        outcome, context = self._call_one(message)
        if outcome.result in _DONE:
            return Disposition.DONE
        one = Failed(self._as_stored(message), outcome)
        if isinstance(outcome.error, DeadLetter) or self._send_back.is_last(one):
            self._send_back.dead_letter(one)
            return Disposition.DEAD
        message.reconsume_times += 1
        return Pause(self._pause(outcome, context))

    def _pause(self, outcome: Outcome, context: ConsumeContext) -> float:
        seconds = context.suspend_time
        if isinstance(outcome.error, RetryLater) and outcome.error.level:
            seconds = delay_ms(outcome.error.level) / 1000
        elif seconds < 0:
            seconds = self._job.suspend_seconds
        low, high = SUSPEND_RANGE
        return min(max(seconds, low), high)

    def _as_stored(self, message: StoredMessage) -> StoredMessage:
        if self._original is None:
            return message
        stored = self._original(message)
        stored.reconsume_times = max(stored.reconsume_times, message.reconsume_times)
        return stored


_loops: dict[int, asyncio.Runner] = {}


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, for the coroutines of all its tasks.

    Spark keeps its workers, and handlers keep their clients in a module: those belong to one loop.
    A forked process has its own.
    """
    runner = _loops.get(os.getpid())
    if runner is None:
        runner = _loops[os.getpid()] = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    return runner.get_loop()


@atexit.register
def _close_loop() -> None:
    # Only this process's loop: a parent's has file descriptors that the parent still uses.
    runner = _loops.pop(os.getpid(), None)
    if runner is not None:
        runner.close()


def _blocking(handler: HandlerFunction) -> HandlerFunction:
    """A coroutine function as one that returns when the coroutine has finished."""
    loop = _loop()

    @functools.wraps(handler)
    def call(*arguments: object) -> object:
        return loop.run_until_complete(handler(*arguments))  # type: ignore[arg-type]

    return call


def _host() -> str:
    """The client id that the reasons of failures name."""
    return client_id(local_ip(), f"spark-{os.getpid()}")
