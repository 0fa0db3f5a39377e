"""Runs the middleware of a producer around its sends."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.client.consuming.listeners import is_coroutine_function
from penstock.client.middleware import Middleware, SendCall
from penstock.client.producing.receipts import Receipt
from penstock.errors import ConfigError, InvalidArgument
from penstock.model import Message, MessageQueue

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class SendMiddleware:
    """The middleware of one producer.

    `begin` runs every ``before_send``, `finish` every ``after_send``; `around` does both around a
    function that sends. The forms that end in ``_async`` await methods that are coroutines.
    """

    __slots__ = ("_chain", "_group")

    def __init__(self, group: str, chain: Sequence[Middleware]) -> None:
        self._group = group
        self._chain = tuple(chain)

    @classmethod
    def of(
        cls, group: str, middleware: Sequence[Middleware], *, may_await: bool
    ) -> SendMiddleware | None:
        """Check the ``middleware=`` of a producer; None when there is none."""
        for one in middleware:
            if not isinstance(one, Middleware):
                raise ConfigError(f"middleware has {one!r}", expected="objects of Middleware")
            if not may_await and (
                is_coroutine_function(one.before_send) or is_coroutine_function(one.after_send)
            ):
                raise InvalidArgument(
                    f"middleware {one!r} has coroutine functions around sends",
                    expected="plain functions",
                    hint="penstock.aio.Producer awaits them",
                )
        return cls(group, middleware) if middleware else None

    # ---------------------------------------------------------------------------- blocking

    def around(
        self,
        messages: Sequence[Message],
        send: Callable[[Sequence[Message]], _T],
        queue: object = None,
    ) -> _T:
        call = self.begin(messages, queue)
        try:
            result = send(call.messages)
        except BaseException as error:
            self.finish(call, error)
            raise
        self.finish(call, result)
        return result

    def begin(self, messages: Sequence[Message], queue: object = None) -> SendCall:
        """An error of a ``before_send`` is raised, after the ``after_send`` of those before it."""
        call = self._call(messages, queue)
        for number, one in enumerate(self._chain):
            try:
                one.before_send(call)
                _check_count(call, messages)
            except BaseException as error:
                call.error = error
                self._after(call, number)
                raise
        return call

    def finish(self, call: SendCall, result: object) -> None:
        _note(call, result)
        self._after(call, len(self._chain))

    def _after(self, call: SendCall, begun: int) -> None:
        for one in reversed(self._chain[:begun]):
            try:
                one.after_send(call)
            except Exception:
                log.exception("after_send failed middleware=%r", one)

    # --------------------------------------------------------------------------- awaiting

    async def around_async(
        self,
        messages: Sequence[Message],
        send: Callable[[Sequence[Message]], Awaitable[_T]],
        queue: object = None,
    ) -> _T:
        call = await self.begin_async(messages, queue)
        try:
            result = await send(call.messages)
        except BaseException as error:
            await self.finish_async(call, error)
            raise
        await self.finish_async(call, result)
        return result

    async def begin_async(self, messages: Sequence[Message], queue: object = None) -> SendCall:
        call = self._call(messages, queue)
        for number, one in enumerate(self._chain):
            try:
                await _if_awaitable(one.before_send(call))
                _check_count(call, messages)
            except BaseException as error:
                call.error = error
                await self._after_async(call, number)
                raise
        return call

    async def finish_async(self, call: SendCall, result: object) -> None:
        _note(call, result)
        await self._after_async(call, len(self._chain))

    async def _after_async(self, call: SendCall, begun: int) -> None:
        for one in reversed(self._chain[:begun]):
            try:
                await _if_awaitable(one.after_send(call))
            except Exception:
                log.exception("after_send failed middleware=%r", one)

    def _call(self, messages: Sequence[Message], queue: object) -> SendCall:
        wanted = queue if isinstance(queue, MessageQueue) else None
        return SendCall(self._group, messages, wanted)


async def _if_awaitable(answer: Awaitable[None] | None) -> None:
    if inspect.isawaitable(answer):
        await answer


def _check_count(call: SendCall, messages: Sequence[Message]) -> None:
    if len(call.messages) != len(messages):
        raise InvalidArgument(
            f"middleware made {len(call.messages)} messages of {len(messages)}",
            expected="as many as there were: it may replace messages, not add or remove any",
        )


def _note(call: SendCall, result: object) -> None:
    if isinstance(result, BaseException):
        call.error = result
        call.attempts = getattr(result, "attempts", 0)
    elif isinstance(result, Receipt):
        call.receipt, call.queue, call.attempts = result, result.queue, result.attempts
    else:
        call.attempts = 1
