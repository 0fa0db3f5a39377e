"""Handlers on executors: one message after the other, and what became of each.

    concurrent   a message that fails is sent back, the next one follows at once
    ordered      a message that fails comes again after a pause, up to its last retry; then it is
                 a dead letter, and the queue goes on

A handler cannot fail its task: whatever it raises is the message's outcome. What fails a task is a
broker that takes no failed message back, because then an offset would be passed with the message
neither handled nor stored again.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.client.cluster_access import ClusterAccess
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
from penstock.client.session.client_ids import client_id, local_ip
from penstock.client.settings import SUSPEND_RANGE
from penstock.model import StoredMessage
from penstock.protocol.delays import delay_ms
from penstock.spark.handlers.send_back import Failed, SendBack

log = logging.getLogger(__name__)

NO_TIMEOUT: Final = float("inf")
"""A call has no time limit of its own: Spark's task has one, if any."""
SUSPEND_SECONDS: Final = 1.0
"""suspendCurrentQueueTimeMillis: the pause before an ordered message comes again."""
_DONE: Final = (ConsumeResult.SUCCESS, ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)


class Disposition(IntEnum):
    """What became of a message."""

    DONE = 0
    RETRY = 1
    DEAD = 2


class Pause(NamedTuple):
    """How long a queue waits before its message comes again."""

    seconds: float


DISPOSITION_NAMES: Final = tuple(disposition.name.lower() for disposition in Disposition)


@dataclass(frozen=True)
class HandlerJob:
    """A handler and the contract it runs under; travels to executors."""

    handler: HandlerFunction
    group: str
    access: ClusterAccess
    ordered: bool = False
    max_retries: int = 16
    suspend_seconds: float = SUSPEND_SECONDS


Original = Callable[[StoredMessage], StoredMessage]
"""The message as its broker has it, for one that was made of a row."""


class HandlerTask:
    """Runs the handler over the messages of one task."""

    def __init__(self, job: HandlerJob, original: Original | None = None) -> None:
        self._job = job
        self._original = original
        listener = Listener("any", job.handler, takes_batch=False)
        self._wants_context = listener.wants_context
        self._function = _plain(job.handler, _loop()) if listener.is_async else job.handler
        self._send_back = SendBack(job.access, job.group, job.max_retries, _host())

    def run(self, messages: Sequence[StoredMessage]) -> list[int]:
        """The disposition of each message; failed ones are settled when this returns."""
        return self._in_order(messages) if self._job.ordered else self._concurrent(messages)

    def _concurrent(self, messages: Sequence[StoredMessage]) -> list[int]:
        dispositions = [0] * len(messages)
        failed: list[Failed] = []
        send_back = self._send_back
        if self._wants_context:
            failures = self._call_with_context(messages)
        else:
            failures = self._call(messages)
        for index, outcome, level in failures:
            one = Failed(self._as_stored(messages[index]), outcome, level)
            failed.append(one)
            dispositions[index] = Disposition.DEAD if send_back.is_last(one) else Disposition.RETRY
        if failed:
            send_back.send(failed)
        return dispositions

    def _call(self, messages: Sequence[StoredMessage]) -> list[tuple[int, Outcome, int]]:
        """Call the handler for each message; the loop that everything else waits for."""
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

    def _call_with_context(
        self, messages: Sequence[StoredMessage]
    ) -> list[tuple[int, Outcome, int]]:
        failures: list[tuple[int, Outcome, int]] = []
        for index, message in enumerate(messages):
            outcome, context = self._call_one(message)
            if not acknowledged(outcome.result, context.ack_index, 1):
                failures.append((index, outcome, level_of(outcome, context.delay_level)))
        return failures

    def _call_one(self, message: StoredMessage) -> tuple[Outcome, ConsumeContext]:
        context = ConsumeContext(self._job.group, message.queue)
        arguments = (message, context) if self._wants_context else (message,)
        error: BaseException | None = None
        returned: object = None
        try:
            returned = self._function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = raised
        return self._judged(message, returned, error), context

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
                # Whatever else than nothing a handler returns is no result: say what it was.
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
        """Call the handler once for a message that nothing of its queue may overtake.

        A pause means: the same message again, when it is over.
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
    """The loop of this process, which runs the coroutines of all its tasks.

    Spark keeps its workers, and handlers keep their clients in a module: those live on one loop.
    A fork has a loop of its own.
    """
    runner = _loops.get(os.getpid())
    if runner is None:
        runner = _loops[os.getpid()] = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    return runner.get_loop()


@atexit.register
def _close_loop() -> None:
    # Not a parent's: what it watches is watched by the same file of the system.
    runner = _loops.pop(os.getpid(), None)
    if runner is not None:
        runner.close()


def _plain(handler: HandlerFunction, loop: asyncio.AbstractEventLoop) -> HandlerFunction:
    """A coroutine function as one that returns when it is done."""

    @functools.wraps(handler)
    def call(*arguments: object) -> object:
        return loop.run_until_complete(handler(*arguments))  # type: ignore[arg-type]

    return call


def _host() -> str:
    """Who says that a message failed, as reasons name it."""
    return client_id(local_ip(), f"spark-{os.getpid()}")
