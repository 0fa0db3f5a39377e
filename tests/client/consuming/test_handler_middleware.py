"""Middleware around handlers: what it sees, what it may decide, what its failures do."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_clock import FakeClock

from penstock.client.consuming.handler_middleware import (
    HandlerMiddleware,
    check_handler_middleware,
)
from penstock.client.consuming.listeners import Caller, Job, Listener
from penstock.client.consuming.message_batches import batches_of
from penstock.client.consuming.outcomes import (
    PLAIN_SUCCESS,
    ConsumeResult,
    DeadLetter,
    Outcome,
    RetryLater,
)
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.middleware import HandlerCall, Middleware
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("T", "broker-a", 0)
GROUP = "billing"


def message(attempt: int = 1) -> StoredMessage:
    return StoredMessage("T", b"x", b"", QUEUE, 7, reconsume_times=attempt - 1)


def call(function: object, *middleware: Middleware, attempt: int = 1, orderly: bool = False) -> Job:
    """A call of a plain or a coroutine handler as a consumer makes it."""
    caller = Caller(
        GROUP, FakeClock(), timeout=900.0, orderly=orderly, middleware=middleware, namespace="eu"
    )
    listener = Listener("T", function, takes_batch=False)  # type: ignore[arg-type]
    (batch,) = batches_of([message(attempt)], 1)
    job = Job(ProcessQueue(QUEUE, 0.0), batch, listener, GROUP)
    if not listener.is_async:
        caller.call(job)
        return job

    async def main() -> None:
        await caller.call_async(job)

    asyncio.run(main())
    return job


class Noting(Middleware):
    def __init__(self, notes: list[tuple[object, ...]], name: str = "one") -> None:
        self.notes = notes
        self.name = name

    def before_handle(self, call: HandlerCall) -> None:
        self.notes.append((self.name, "before", call.success, call.outcome, call.return_type))

    def after_handle(self, call: HandlerCall) -> None:
        self.notes.append((self.name, "after", call.success, call.outcome, call.return_type))


class AsyncNoting(Noting):
    async def before_handle(self, call: HandlerCall) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().before_handle(call)

    async def after_handle(self, call: HandlerCall) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().after_handle(call)


@pytest.mark.spec("S71", "S72", "S74", "S75", "S76")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, (True, "SUCCESS", "SUCCESS")),
        (ConsumeResult.RECONSUME_LATER, (False, "RECONSUME_LATER", "FAILED")),
        (5, (False, "RECONSUME_LATER", "RETURNNULL")),
        (ValueError("no"), (False, "RECONSUME_LATER", "EXCEPTION")),
        (RetryLater("10s"), (False, "RECONSUME_LATER", "FAILED")),
    ],
)
def test_middleware_sees_a_call_from_both_sides(
    is_async: bool, returned: object, expected: tuple[object, ...]
) -> None:
    notes: list[tuple[object, ...]] = []

    def handler(message: StoredMessage) -> object:
        notes.append(("handler",))
        if isinstance(returned, Exception):
            raise returned
        return returned

    async def async_handler(message: StoredMessage) -> object:
        return handler(message)

    kind = AsyncNoting if is_async else Noting
    call(async_handler if is_async else handler, kind(notes, "one"), Noting(notes, "two"))
    assert notes == [
        ("one", "before", False, "", ""),
        ("two", "before", False, "", ""),
        ("handler",),
        ("two", "after", *expected),
        ("one", "after", *expected),
    ]


@pytest.mark.spec("S72")
def test_a_call_says_whose_messages_it_has_and_keeps_notes() -> None:
    class Looking(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            assert (call.group, call.queue, call.namespace) == (GROUP, QUEUE, "eu")
            assert call.attempt == 3
            assert [m.queue_offset for m in call.messages] == [7]
            call.notes["seen"] = 1

        def after_handle(self, call: HandlerCall) -> None:
            assert call.notes.pop("seen") == 1
            assert isinstance(call.error, ValueError)
            seen.append(call)

    def fails(message: StoredMessage) -> None:
        raise ValueError("no")

    seen: list[HandlerCall] = []
    call(fails, Looking(), attempt=3)
    assert len(seen) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_skipped_call_is_acknowledged_without_its_handler(is_async: bool) -> None:
    class Skipping(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            call.skip = True

    notes: list[tuple[object, ...]] = []

    def handler(message: StoredMessage) -> None:
        notes.append(("handler",))

    async def async_handler(message: StoredMessage) -> None:
        notes.append(("handler",))

    job = call(async_handler if is_async else handler, Skipping(), Noting(notes))
    assert job.outcome is PLAIN_SUCCESS
    assert job.is_plain_success
    assert notes == [
        ("one", "before", False, "", ""),
        ("one", "after", True, "SUCCESS", "SUCCESS"),
    ]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("decision", [RetryLater("10s"), DeadLetter("not for us")])
@pytest.mark.parametrize("orderly", [False, True])
def test_before_handle_may_decide_to_retry_or_to_give_up(
    is_async: bool, decision: Exception, orderly: bool
) -> None:
    class Deciding(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            raise decision

    def handler(message: StoredMessage) -> None:
        pytest.fail("the handler must not be called")

    async def async_handler(message: StoredMessage) -> None:
        pytest.fail("the handler must not be called")

    notes: list[tuple[object, ...]] = []
    job = call(async_handler if is_async else handler, Deciding(), Noting(notes), orderly=orderly)
    assert job.outcome is not None
    assert job.outcome.error is decision
    assert job.outcome.result is (
        ConsumeResult.SUSPEND if orderly else ConsumeResult.RECONSUME_LATER
    )
    assert notes[-1][:3] == ("one", "after", False)


@pytest.mark.spec("S71")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_middleware_that_fails_is_only_logged(
    error: type[BaseException], is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            raise error("before")

        def after_handle(self, call: HandlerCall) -> None:
            raise error("after")

    seen: list[StoredMessage] = []

    async def async_handler(message: StoredMessage) -> None:
        seen.append(message)

    job = call(async_handler if is_async else seen.append, Broken())
    assert job.outcome is PLAIN_SUCCESS
    assert len(seen) == 1
    assert caplog.text.count("middleware failed") == 2


def test_cancelling_the_worker_reaches_through_the_middleware() -> None:
    async def main() -> None:
        entered = asyncio.Event()

        class Slow(Middleware):
            async def before_handle(self, call: HandlerCall) -> None:
                entered.set()
                await asyncio.sleep(60)

        async def handle() -> Outcome:
            pytest.fail("the handler must not be called")

        around = HandlerMiddleware([Slow()], GROUP)
        task = asyncio.create_task(around.run_async(QUEUE, [message()], handle))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_coroutine_methods_are_refused_around_plain_handlers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_handler_middleware([AsyncNoting([])], is_async=True)
    with pytest.raises(
        InvalidArgument, match=r"AsyncNoting\.before_handle is a coroutine function"
    ):
        check_handler_middleware([AsyncNoting([])], is_async=False)
    with pytest.raises(InvalidArgument, match="as middleware"):
        check_handler_middleware([object()], is_async=True)  # type: ignore[list-item]
    # A method that only returns a coroutine is found when it is called.
    notes: list[tuple[object, ...]] = []
    assert call(lambda message: None, AsyncNoting(notes)).outcome is PLAIN_SUCCESS
    assert caplog.text.count("TypeError: a coroutine method around a plain handler") == 2
    assert notes == []
