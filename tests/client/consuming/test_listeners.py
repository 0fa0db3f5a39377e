"""One call of a handler: how it is called, judged, watched and chained."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.fake_clock import FakeClock

from penstock.client.consuming.listeners import Caller, Job, Listener
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.outcomes import (
    PLAIN_SUCCESS,
    ConsumeContext,
    ConsumeResult,
    DeadLetter,
    ReturnType,
)
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.middleware import Middleware
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("T", "broker-a", 0)


def job(function: object, count: int = 1, *, takes_batch: bool = False) -> Job:
    queue = ProcessQueue(QUEUE, 0.0)
    messages = [StoredMessage("T", b"%d" % n, b"", QUEUE, n) for n in range(count)]
    listener = Listener("T", function, takes_batch=takes_batch)  # type: ignore[arg-type]
    return Job(queue, MessageBatch.of(messages), listener, "billing")


def caller(
    clock: FakeClock | None = None, *, orderly: bool = False, needs_lock: bool = False
) -> Caller:
    return Caller(
        "billing", clock or FakeClock(), timeout=900.0, orderly=orderly, needs_lock=needs_lock
    )


def test_a_handler_gets_one_message_or_always_a_list() -> None:
    seen: list[object] = []
    one = job(seen.append)
    caller().call(one)
    assert seen == [one.messages[0]]
    seen.clear()
    batch = job(seen.append, takes_batch=True)
    caller().call(batch)
    assert seen == [list(batch.messages)]


def yields(message: StoredMessage) -> Iterator[None]:
    yield


async def yields_async(message: StoredMessage) -> AsyncIterator[None]:
    yield


class Yields:
    def __call__(self, message: StoredMessage) -> Iterator[None]:
        yield


@pytest.mark.parametrize("function", [yields, yields_async, functools.partial(yields), Yields()])
def test_a_generator_is_refused_for_it_would_do_nothing(function: object) -> None:
    with pytest.raises(InvalidArgument, match=r"generator function.*take the yield out"):
        job(function)


def test_a_handler_that_takes_two_gets_a_context() -> None:
    contexts: list[ConsumeContext] = []

    def handler(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
        contexts.append(context)
        return ConsumeResult.SUCCESS

    called = job(handler)
    caller().call(called)
    assert contexts == [called.context]
    assert (contexts[0].group, contexts[0].queue) == ("billing", QUEUE)
    assert not called.is_plain_success


@pytest.mark.parametrize(
    ("function", "is_async", "wants_context"),
    [
        (lambda message: None, False, False),
        (lambda message, context: None, False, True),
        (lambda message, *, colour="blue": None, False, False),
        (lambda message, colour="blue": None, False, False),
        (print, False, False),
        (functools.partial(lambda colour, message: None, "blue"), False, False),
    ],
)
def test_the_shape_of_a_handler_is_seen(
    function: object, is_async: bool, wants_context: bool
) -> None:
    listener = Listener("T", function, takes_batch=False)  # type: ignore[arg-type]
    assert (listener.is_async, listener.wants_context) == (is_async, wants_context)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda message, context, more: None,
        lambda message, *, colour: None,
        functools.partial(lambda message: None, "bound"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused_where_it_is_given(function: object) -> None:
    with pytest.raises(InvalidArgument, match=r"topic 'T' is .*\(.*\); expected a function of a"):
        Listener("T", function, takes_batch=False)  # type: ignore[arg-type]


def test_coroutine_functions_methods_and_objects_are_seen_as_such() -> None:
    class Handler:
        async def __call__(self, message: StoredMessage) -> None: ...

        async def method(self, message: StoredMessage, context: ConsumeContext) -> None: ...

    async def plain(message: StoredMessage) -> None: ...

    assert Listener("T", plain, takes_batch=False).is_async
    assert Listener("T", Handler(), takes_batch=False).is_async
    method = Listener("T", Handler().method, takes_batch=False)
    assert method.is_async
    assert method.wants_context


def test_what_cannot_be_called_is_no_handler() -> None:
    with pytest.raises(InvalidArgument, match="'T' is 42"):
        Listener("T", 42, takes_batch=False)  # type: ignore[arg-type]


def test_a_plain_success_costs_no_context() -> None:
    called = job(lambda message: None)
    caller().call(called)
    assert called.outcome is PLAIN_SUCCESS
    assert called.is_plain_success
    assert called.auto_commit


@pytest.mark.spec("S69")
def test_a_handler_is_not_called_for_a_queue_that_was_given_up() -> None:
    seen: list[object] = []
    called = job(seen.append)
    called.process_queue.is_dropped = True
    caller().call(called)
    assert (seen, called.outcome, called.started) == ([], None, False)


@pytest.mark.spec("S73")
def test_messages_know_when_the_call_began() -> None:
    clock = FakeClock(start=1_700_000_000.5)
    called = job(lambda messages: None, 3, takes_batch=True)
    caller(clock).call(called)
    assert {m.peek("CONSUME_START_TIME") for m in called.messages} == {"1700000000500"}


@pytest.mark.spec("S75")
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), KeyboardInterrupt()])
def test_anything_a_handler_raises_ends_the_call_and_not_the_thread(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: StoredMessage) -> None:
        raise error

    called = job(handler)
    caller().call(called)
    assert called.outcome is not None
    assert called.outcome.return_type is ReturnType.EXCEPTION
    assert called.outcome.error is error
    assert "handler failed group=billing queue=T@broker-a:0 offset=0" in caplog.text


def test_a_refused_handler_is_named_with_its_owner() -> None:
    with pytest.raises(InvalidArgument, match="the handler of topic 'T' is 7; expected a function"):
        Listener("T", 7, takes_batch=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"the handler of group 'billing' is <lambda>\(\)"):
        Listener("", lambda: None, takes_batch=False, owner="group 'billing'")


def test_why_a_handler_gave_a_message_up_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def handler(message: StoredMessage) -> None:
        raise DeadLetter("card expired")

    caller().call(job(handler))
    assert "reason='DeadLetter: card expired'" in caplog.text
    assert "Traceback" not in caplog.text


def test_nonsense_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    called = job(lambda message: "done")
    caller().call(called)
    assert called.outcome is not None
    assert called.outcome.return_type is ReturnType.RETURNNULL
    assert "how=RETURNNULL returned='done'" in caplog.text


async def test_only_the_end_of_the_consumer_cancels_a_coroutine() -> None:
    async def cancels_itself(message: StoredMessage) -> None:
        raise asyncio.CancelledError

    called = job(cancels_itself)
    await caller().call_async(called)
    assert called.outcome is not None
    assert called.outcome.return_type is ReturnType.EXCEPTION

    async def waits(message: StoredMessage) -> None:
        await asyncio.sleep(1000)

    waiting = job(waits)
    task = asyncio.ensure_future(caller().call_async(waiting))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiting.outcome is None


def chain(functions: list[object]) -> list[Job]:
    """Jobs of one locked queue, each followed by the next."""
    jobs = [job(function) for function in functions]
    queue = jobs[0].process_queue
    queue.is_locked = True
    for first, second in itertools.pairwise(jobs):
        second.process_queue = queue
        first.follower = second
    return jobs


@pytest.mark.spec("S134", "S137")
def test_a_chain_goes_on_while_all_is_well_and_stops_at_the_first_trouble() -> None:
    def fails(message: StoredMessage) -> None:
        raise ValueError("no")

    jobs = chain([lambda m: None, lambda m: None, fails, lambda m: None])
    caller(orderly=True, needs_lock=True).call(jobs[0])
    assert [j.outcome is not None for j in jobs] == [True, True, True, False]


@pytest.mark.spec("S137")
@pytest.mark.parametrize("trouble", ["dropped", "unlocked", "expired", "slow", "no auto commit"])
def test_a_chain_stops_before_the_next_call(trouble: str) -> None:
    clock = FakeClock()

    def cause(message: StoredMessage, context: ConsumeContext) -> ConsumeResult:
        queue = jobs[0].process_queue
        if trouble == "dropped":
            queue.is_dropped = True
        elif trouble == "unlocked":
            queue.is_locked = False
        elif trouble == "expired":
            queue.last_lock_at = clock.monotonic() - 31.0
        elif trouble == "slow":
            clock._now += 1.0
        else:
            context.auto_commit = False
        return ConsumeResult.SUCCESS

    jobs = chain([cause, lambda m: None])
    caller(clock, orderly=True, needs_lock=True).call(jobs[0])
    assert jobs[0].outcome is not None
    assert jobs[1].outcome is None


async def test_coroutines_are_chained_too() -> None:
    seen: list[bytes] = []

    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0)
        seen.append(message.body)

    jobs = chain([handler, handler, handler])
    await caller(orderly=True, needs_lock=True).call_async(jobs[0])
    assert len(seen) == 3


def test_failures_are_logged_once_with_what_an_operator_needs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    called = job(lambda message: ConsumeResult.RECONSUME_LATER)
    called.messages[0].reconsume_times = 4
    caller().call(called)
    (record,) = caplog.records
    assert "attempt=5" in record.getMessage()
    assert "how=FAILED" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize("with_middleware", [False, True])
async def test_a_call_that_waited_until_its_lock_expired_is_not_made(with_middleware: bool) -> None:
    """The process was frozen, or no thread was free: another member may have the queue by now."""
    clock = FakeClock()
    seen: list[StoredMessage] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message)

    middleware = (Middleware(),) if with_middleware else ()
    for handler in (seen.append, handle):
        late = job(handler)
        late.process_queue.lock_life = 5.0
        late.process_queue.last_lock_at = clock.monotonic() - 5.1
        calls = Caller(
            "billing", clock, timeout=900, orderly=True, needs_lock=True, middleware=middleware
        )
        if handler is handle:
            await calls.call_async(late)
        else:
            calls.call(late)
        assert late.outcome is None
    assert seen == []
