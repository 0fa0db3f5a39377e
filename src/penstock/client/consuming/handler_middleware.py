"""Runs middleware around handler calls: where the handler runs, with no session needed.

Spark's handlers use it on executors, too. All ``before_handle`` run, then the handler unless one of
them set ``skip`` or raised `RetryLater` or `DeadLetter`, then all ``after_handle`` in reverse.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.client.consuming.outcomes import (
    PLAIN_SUCCESS,
    DeadLetter,
    Outcome,
    RetryLater,
    judge,
)
from penstock.client.middleware import HandlerCall, Middleware
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage

log = logging.getLogger(__name__)

_Method = Callable[[HandlerCall], Awaitable[None] | None]


class HandlerMiddleware:
    """The middleware of one consumer group."""

    __slots__ = ("_afters", "_befores", "_group", "_namespace", "_orderly")

    def __init__(
        self,
        middleware: Sequence[Middleware],
        group: str,
        *,
        orderly: bool = False,
        namespace: str | None = None,
    ) -> None:
        self._befores: list[_Method] = [one.before_handle for one in middleware]
        self._afters: list[_Method] = [one.after_handle for one in reversed(middleware)]
        self._group = group
        self._namespace = namespace
        self._orderly = orderly

    def run(
        self,
        queue: MessageQueue,
        messages: Sequence[StoredMessage],
        handle: Callable[[], Outcome],
    ) -> Outcome:
        """Call a plain handler through ``handle``, with the middleware around it."""
        call = self._begin(queue, messages)
        decided: BaseException | None = None
        for before in self._befores:
            try:
                _refuse_coroutine(before(call))
            except BaseException as error:
                decided = decided or self._decision(before, error)
        outcome = self._without_handler(call, decided) or handle()
        _finish(call, outcome)
        for after in self._afters:
            try:
                _refuse_coroutine(after(call))
            except BaseException as error:
                self._log(after, error)
        return outcome

    async def run_async(
        self,
        queue: MessageQueue,
        messages: Sequence[StoredMessage],
        handle: Callable[[], Awaitable[Outcome]],
    ) -> Outcome:
        """The same around a coroutine handler; middleware may have coroutine methods."""
        call = self._begin(queue, messages)
        decided: BaseException | None = None
        for before in self._befores:
            try:
                await _awaited(before(call))
            except BaseException as error:
                if is_being_cancelled(error):
                    raise
                decided = decided or self._decision(before, error)
        outcome = self._without_handler(call, decided) or await handle()
        _finish(call, outcome)
        for after in self._afters:
            try:
                await _awaited(after(call))
            except BaseException as error:
                if is_being_cancelled(error):
                    raise
                self._log(after, error)
        return outcome

    def _begin(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> HandlerCall:
        attempt = messages[0].reconsume_times + 1
        return HandlerCall(self._group, queue, messages, attempt, namespace=self._namespace)

    def _decision(self, method: _Method, error: BaseException) -> BaseException | None:
        """What a ``before_handle`` raised, if it decides about the messages; else it is logged."""
        if isinstance(error, RetryLater | DeadLetter):
            return error
        # SystemExit, too: without a result the messages of the call would stay here.
        self._log(method, error)
        return None

    def _without_handler(self, call: HandlerCall, decided: BaseException | None) -> Outcome | None:
        """The outcome of a call that does not reach its handler."""
        if decided is not None:
            return judge(None, decided, 0.0, 1.0, orderly=self._orderly, strict=False)
        return PLAIN_SUCCESS if call.skip else None

    def _log(self, method: _Method, error: BaseException) -> None:
        log.error("middleware failed method=%r group=%s", method, self._group, exc_info=error)


def check_handler_middleware(middleware: Sequence[Middleware], *, is_async: bool) -> None:
    """Refuse middleware that a handler cannot run: coroutine methods around a plain function."""
    for one in middleware:
        if not isinstance(one, Middleware):
            raise InvalidArgument(
                f"{one!r} as middleware", expected="an object of a Middleware class"
            )
        for method in (one.before_handle, one.after_handle):
            if not is_async and inspect.iscoroutinefunction(method):
                raise InvalidArgument(
                    f"{type(one).__name__}.{method.__name__} is a coroutine function",
                    expected="a plain method around a plain handler",
                    hint="make the handler a coroutine function, or the method a plain one",
                )


def is_being_cancelled(error: BaseException) -> bool:
    """Whether ``error`` cancels this task, and is not just an error of that type."""
    task = asyncio.current_task()
    return (
        isinstance(error, asyncio.CancelledError) and task is not None and bool(task.cancelling())
    )


def _finish(call: HandlerCall, outcome: Outcome) -> None:
    call.outcome = outcome.result.value
    call.return_type = outcome.return_type.value
    call.error = outcome.error


async def _awaited(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def _refuse_coroutine(result: Awaitable[None] | None) -> None:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("a coroutine method around a plain handler")
