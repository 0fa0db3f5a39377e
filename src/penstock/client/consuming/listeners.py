"""A user's handler, and one call of it with everything around the call.

The part of consuming that runs a user's code: handler and middleware. It runs on a thread of the
pool or on the handlers' event loop, never on the session's. The result is written into the `Job`,
which then goes back to the session's loop.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from penstock.client.consuming.handler_middleware import HandlerMiddleware, is_being_cancelled
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.outcomes import (
    PLAIN_SUCCESS,
    ConsumeContext,
    ConsumeResult,
    DeadLetter,
    Outcome,
    ReturnType,
    cause_of,
    judge,
)
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.middleware import Middleware
from penstock.errors import InvalidArgument
from penstock.model import StoredMessage, TypedMessage
from penstock.model.json_bodies import BodyParser, body_parser, name_of, why_unfit
from penstock.model.names import Property
from penstock.runtime.clock import Clock

log = logging.getLogger(__name__)

BURST_SECONDS = 0.05
"""How long one trip to a thread may go on with further batches of an orderly queue."""
_START_TIME = Property.CONSUME_START_TIME.encode()

_NONE_REFUSED: list[tuple[StoredMessage, Outcome]] = []
"""Shared by all jobs without one; never changed."""
_GIVEN_UP = Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.FAILED)
"""What middleware sees when the queue was given up before its handler was called."""

HandlerFunction: TypeAlias = Callable[..., object]
"""``handler(message)``, ``handler(messages)`` with a batch size above one, either also with a
context as second argument; plain or a coroutine function."""


class Listener:
    """A handler with the shape of its calls."""

    __slots__ = (
        "body_name",
        "function",
        "is_async",
        "parse",
        "takes_batch",
        "topic",
        "wants_context",
    )

    def __init__(
        self,
        topic: str,
        function: HandlerFunction,
        *,
        takes_batch: bool,
        body: object = None,
        owner: str | None = None,
    ) -> None:
        # Named in the error when the handler is refused.
        owner = owner or f"topic {topic!r}"
        if not callable(function):
            raise InvalidArgument(f"the handler of {owner} is {function!r}", expected="a function")
        if _is_generator_function(function):
            raise InvalidArgument(
                f"the handler of {owner} is {function!r}, a generator function",
                expected="a function that returns: calling this one would do nothing",
                hint="take the yield out of it",
            )
        self.topic: str = topic
        self.function: HandlerFunction = function
        self.takes_batch: bool = takes_batch
        self.is_async: bool = is_coroutine_function(function)
        self.wants_context: bool = _positional_parameters(function) >= 2
        _check_call(owner, function, 2 if self.wants_context else 1)
        self.body_name: str = "" if body is None else name_of(body)
        self.parse: BodyParser | None = None if body is None else body_parser(body)
        """What makes the value of a body, if the handler wants one."""

    def arguments(self, job: Job) -> tuple[object, ...] | None:
        """What the handler is called with; None: it is not called, as all messages are refused."""
        messages = job.batch.messages
        if self.parse is not None or job.process_queue.damaged:
            messages = refuse_damaged(job)
            if self.parse is not None:
                messages = parse_bodies(job, messages, self.parse)
            if not messages:
                return None
        given: object = list(messages) if self.takes_batch else messages[0]
        return (given, job.context) if self.wants_context else (given,)


def refuse_damaged(job: Job) -> list[StoredMessage]:
    """The messages of a call without those whose body is damaged, which are dead letters.

    Not retried: the broker would store the damaged body again, with a checksum that fits it.
    """
    damaged = job.process_queue.damaged
    kept: list[StoredMessage] = []
    for message in job.batch.messages:
        error = damaged.get(message.queue_offset)
        if error is None:
            kept.append(message)
        else:
            job.refuse(message, DeadLetter(f"the body is damaged: {error}"))
    return kept


def parse_bodies(
    job: Job, messages: Sequence[StoredMessage], parse: BodyParser
) -> list[StoredMessage]:
    """The messages with their values; a body that is no such value is a dead letter.

    Not retried: it would not parse the next time, either.
    """
    typed: list[StoredMessage] = []
    for message in messages:
        try:
            typed.append(TypedMessage.of(message, parse(message.body)))
        except Exception as error:
            why = DeadLetter(f"the body is no {job.listener.body_name}: {why_unfit(error)}")
            job.refuse(message, why)
    return typed


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Whether what a call returns has to be awaited."""
    # An object may be called through a coroutine method of its class.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def _is_generator_function(function: Callable[..., object]) -> bool:
    called = (function, type(function).__call__)
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called)


def _positional_parameters(function: HandlerFunction) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return 1
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        for parameter in parameters
    )


def _check_call(owner: str, function: HandlerFunction, count: int) -> None:
    """Refuse a handler that cannot be called: each message would become a dead letter instead."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise InvalidArgument(
            f"the handler of {owner} is {name}{signature}",
            expected="a function of a message, or of a message and a context",
        ) from error


class Job:
    """One call of a listener: messages of one queue for one handler.

    ``outcome`` stays None when the call was skipped because the queue was given up before.
    ``follower`` is the next call of an orderly queue, to be made by the same thread at once.
    ``refused`` are messages the handler was not given; they become dead letters.
    """

    __slots__ = (
        "_context",
        "batch",
        "elapsed",
        "follower",
        "group",
        "listener",
        "outcome",
        "process_queue",
        "refused",
        "started",
    )

    def __init__(
        self,
        process_queue: ProcessQueue,
        batch: MessageBatch,
        listener: Listener,
        group: str,
    ) -> None:
        self.process_queue: ProcessQueue = process_queue
        self.batch: MessageBatch = batch
        self.listener: Listener = listener
        self.group: str = group
        self.outcome: Outcome | None = None
        self.elapsed: float = 0.0
        self.started: bool = False
        self.follower: Job | None = None
        self.refused: list[tuple[StoredMessage, Outcome]] = _NONE_REFUSED
        self._context: ConsumeContext | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages the outcome is about: all but those that were refused."""
        messages = self.batch.messages
        if self.refused:
            refused = {message.queue_offset for message, _ in self.refused}
            return [message for message in messages if message.queue_offset not in refused]
        return messages

    def refuse(self, message: StoredMessage, why: DeadLetter) -> None:
        """Give a message up instead of calling the handler with it."""
        if not self.refused:
            self.refused = []
        self.refused.append(
            (message, Outcome(ConsumeResult.RECONSUME_LATER, ReturnType.FAILED, why))
        )

    @property
    def seen_outcome(self) -> Outcome:
        """The outcome as middleware sees it: a failure if the handler got no message."""
        if self.refused and not self.messages:
            return self.refused[0][1]
        return self.outcome or _GIVEN_UP

    def conclude(self, outcome: Outcome) -> None:
        """Take the outcome that middleware returned."""
        self.outcome = PLAIN_SUCCESS if self.refused and not self.messages else outcome

    @property
    def context(self) -> ConsumeContext:
        """What the handler may set; created on first use, because most handlers do not use it."""
        if self._context is None:
            self._context = ConsumeContext(self.group, self.process_queue.queue)
        return self._context

    @property
    def auto_commit(self) -> bool:
        return self._context is None or self._context.auto_commit

    @property
    def is_plain_success(self) -> bool:
        """Whether all messages are done, by a handler that set nothing."""
        return self.outcome is PLAIN_SUCCESS and self._context is None and not self.refused


class Caller:
    """Calls listeners for one consumer; knows middleware, timeout and mode."""

    def __init__(
        self,
        group: str,
        clock: Clock,
        *,
        timeout: float,
        orderly: bool,
        needs_lock: bool = False,
        middleware: Sequence[Middleware] = (),
        namespace: str | None = None,
    ) -> None:
        self._group = group
        self._clock = clock
        self._timeout = timeout
        self._orderly = orderly
        self._needs_lock = needs_lock
        self._stamp = (-1, b"")
        self._middleware = HandlerMiddleware(
            middleware, group, orderly=orderly, namespace=namespace
        )
        # Without middleware nothing is wrapped around the handler.
        self._call_one = self._call_inside_middleware if middleware else self._call_handler
        self._call_one_async = (
            self._call_inside_middleware_async if middleware else self._call_handler_async
        )

    def call(self, job: Job) -> None:
        """Call a plain handler, then those that follow; never raises."""
        if job.follower is None:
            self._call_one(job)
            return
        begin = self._clock.monotonic()
        next_job: Job | None = job
        while next_job is not None:
            self._call_one(next_job)
            next_job = self._following(next_job, begin)

    def call_async(self, job: Job) -> Awaitable[None]:
        """Call a coroutine handler, then those that follow; to be awaited."""
        if job.follower is None:
            return self._call_one_async(job)
        return self._call_in_turn(job)

    async def _call_in_turn(self, job: Job) -> None:
        begin = self._clock.monotonic()
        next_job: Job | None = job
        while next_job is not None:
            await self._call_one_async(next_job)
            next_job = self._following(next_job, begin)

    def _following(self, job: Job, begin: float) -> Job | None:
        """The next call, if this one succeeded, was quick, and the queue is still ours."""
        follower, outcome, queue = job.follower, job.outcome, job.process_queue
        if follower is None or outcome is None or outcome.result is not ConsumeResult.SUCCESS:
            return None
        if job.refused:
            return None  # they are given up before the queue goes on
        now = self._clock.monotonic()
        if now - begin > BURST_SECONDS or not job.auto_commit or queue.is_dropped:
            return None
        if self._needs_lock and (not queue.is_locked or queue.is_lock_expired(now)):
            return None
        return follower

    def _call_handler(self, job: Job) -> None:
        begin = self._clock.monotonic()
        queue = job.process_queue
        if queue.is_dropped or (self._needs_lock and queue.is_lock_expired(begin)):
            return
        self._begin(job)
        error: BaseException | None = None
        returned: object = None
        try:
            arguments = job.listener.arguments(job)
            if arguments is not None:
                returned = job.listener.function(*arguments)
        except BaseException as raised:
            # The thread is shared by all calls: SystemExit ends this call and no more.
            error = raised
        self._end(job, returned, error, self._clock.monotonic() - begin)

    async def _call_handler_async(self, job: Job) -> None:
        """Only the end of the consumer cancels a handler."""
        begin = self._clock.monotonic()
        queue = job.process_queue
        # The call may have waited for a thread: is the queue still ours?
        if queue.is_dropped or (self._needs_lock and queue.is_lock_expired(begin)):
            return
        self._begin(job)
        error: BaseException | None = None
        returned: object = None
        try:
            arguments = job.listener.arguments(job)
            if arguments is not None:
                returned = await cast(Awaitable[object], job.listener.function(*arguments))
        except BaseException as raised:
            if is_being_cancelled(raised):
                raise
            error = raised
        self._end(job, returned, error, self._clock.monotonic() - begin)

    def _may_begin(self, job: Job, now: float) -> bool:
        """Whether the queue is still ours: the call may have waited for a thread."""
        queue = job.process_queue
        return not queue.is_dropped and not (self._needs_lock and queue.is_lock_expired(now))

    def _call_inside_middleware(self, job: Job) -> None:
        def handle() -> Outcome:
            self._call_handler(job)
            return job.seen_outcome

        queue = job.process_queue
        if self._may_begin(job, self._clock.monotonic()):
            job.conclude(self._middleware.run(queue.queue, job.messages, handle))

    async def _call_inside_middleware_async(self, job: Job) -> None:
        async def handle() -> Outcome:
            await self._call_handler_async(job)
            return job.seen_outcome

        queue = job.process_queue
        if self._may_begin(job, self._clock.monotonic()):
            job.conclude(await self._middleware.run_async(queue.queue, job.messages, handle))

    def _begin(self, job: Job) -> None:
        job.started = True
        now_ms = self._clock.time_ms()
        stamped_ms, stamp = self._stamp
        if stamped_ms != now_ms:
            # Two threads may do this at once; each then uses a stamp that is right.
            stamp = b"%s\x01%d\x02" % (_START_TIME, now_ms)
            self._stamp = (now_ms, stamp)
        job.batch.append_properties(stamp)

    def _end(self, job: Job, returned: object, error: BaseException | None, elapsed: float) -> None:
        listener = job.listener
        job.elapsed = elapsed
        if job.refused:
            self._report_refused(job)
            if not job.messages:
                job.outcome = PLAIN_SUCCESS
                return
        if (
            returned is None
            and error is None
            and not listener.wants_context
            and elapsed < self._timeout
        ):
            job.outcome = PLAIN_SUCCESS
            if listener.takes_batch:
                job.batch.forget()
            return
        job.outcome = outcome = judge(
            returned,
            error,
            elapsed,
            self._timeout,
            orderly=self._orderly,
            strict=listener.wants_context,
        )
        if outcome.return_type is not ReturnType.SUCCESS:
            self._report(job, outcome, returned)

    def _report_refused(self, job: Job) -> None:
        for message, outcome in job.refused:
            log.error(
                "message given up without a call of its handler group=%s queue=%s offset=%d "
                "msg_id=%s reason=%s",
                self._group,
                job.process_queue.queue,
                message.queue_offset,
                message.msg_id,
                outcome.error,
            )

    def _report(self, job: Job, outcome: Outcome, returned: object) -> None:
        first = job.messages[0]
        how, error = outcome.return_type, outcome.error
        detail = ""
        if how is ReturnType.RETURNNULL:
            detail = f" returned={returned!r:.100}"
        elif error is not None and how is not ReturnType.EXCEPTION:
            # Raised on purpose by the handler: its text says more than a traceback.
            detail = f" reason={f'{type(error).__name__}: {error}'!r:.100}"
            if (cause := cause_of(error)) is not None:
                detail += f" cause={f'{type(cause).__name__}: {cause}'!r:.200}"
        log.warning(
            "handler failed group=%s queue=%s offset=%d messages=%d msg_id=%s attempt=%d how=%s%s",
            self._group,
            job.process_queue.queue,
            first.queue_offset,
            len(job.messages),
            first.msg_id,
            first.reconsume_times + 1,
            how.value,
            detail,
            exc_info=error if how is ReturnType.EXCEPTION else None,
        )
