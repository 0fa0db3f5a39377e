"""Handlers that work in steps, so that the loop serves others in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType

import pytest
from tests.support.wire import Wire

from penstock.errors import TopicNotFound
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Server
from penstock.remoting.dispatch import Call, Dispatcher, Reply, handles
from penstock.remoting.long_answers import LongAnswers, Steps

COUNT, FAIL, BREAK, THREAD, PING = range(9001, 9006)
LONG = 1000


def module_of(*functions: object) -> ModuleType:
    module = ModuleType("handlers_of_a_test")
    for function in functions:
        function.__module__ = module.__name__
        setattr(module, function.__name__, function)  # type: ignore[attr-defined]
    return module


@handles(COUNT)
def count(state: object, call: Call) -> Steps:
    for _ in range(int(call.body)):
        yield None
    return Reply(body=b"counted " + call.body)


@handles(FAIL)
def fail(state: object, call: Call) -> Steps:
    for _ in range(int(call.body)):
        yield None
    raise TopicNotFound("gone in the meantime")


@handles(BREAK)
def break_down(state: object, call: Call) -> Steps:
    for _ in range(int(call.body)):
        yield None
    raise ZeroDivisionError("a defect")


@handles(THREAD)
def ask_a_thread(state: object, call: Call) -> Steps:
    def work() -> str:
        if call.body == b"fail":
            raise TopicNotFound("not found by the thread")
        return threading.current_thread().name

    try:
        name = yield work
    except TopicNotFound as error:
        return Reply(body=f"caught: {error}".encode())
    assert threading.current_thread() is threading.main_thread()
    return Reply(body=name.encode())


@handles(PING)
def ping(state: object) -> None:
    return None


@asynccontextmanager
async def clients(number: int = 2, *, started: bool = True) -> AsyncIterator[list[Wire]]:
    dispatcher = Dispatcher()
    dispatcher.add_module(module_of(count, fail, break_down, ask_a_thread, ping), None)
    async with AsyncExitStack() as stack:
        if started:
            await stack.enter_async_context(dispatcher.long_answers)
        server = Server(dispatcher.serve, "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        yield [
            await stack.enter_async_context(await Wire.connect(server.port)) for _ in range(number)
        ]


@pytest.mark.parametrize("steps", [0, 1, 8, LONG])
@pytest.mark.parametrize("started", [True, False])
async def test_the_answer_is_what_the_generator_returns(steps: int, started: bool) -> None:
    async with clients(1, started=started) as [wire]:
        answer = await wire.ok(COUNT, body=b"%d" % steps)
        assert answer.body == b"counted %d" % steps


async def test_other_requests_are_served_between_the_steps() -> None:
    async with clients() as [one, other]:
        long = one.start(COUNT, body=b"100000")
        await other.ok(PING)
        for _ in range(20):
            await other.ok(PING)
            await one.ok(PING)
        assert not long.done()


async def test_a_short_answer_does_not_wait_for_a_long_one() -> None:
    async with clients() as [one, other]:
        long = one.start(COUNT, body=b"100000")
        middle = other.start(COUNT, body=b"20")
        assert (await other.ok(COUNT, body=b"3")).body == b"counted 3"
        assert (await middle).body == b"counted 20"
        assert not long.done()


@pytest.mark.parametrize("steps", [0, LONG])
async def test_an_error_is_answered_wherever_it_comes(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with clients(1) as [wire]:
        answer = await wire.request(FAIL, body=b"%d" % steps)
        assert (answer.code, answer.remark) == (
            ResponseCode.TOPIC_NOT_EXIST,
            "gone in the meantime",
        )
        assert caplog.text == ""
        answer = await wire.request(BREAK, body=b"%d" % steps)
        assert (answer.code, answer.remark) == (1, "ZeroDivisionError: a defect")
        assert "Traceback" in caplog.text
        # And the next one is served.
        await wire.ok(COUNT, body=b"%d" % LONG)


@pytest.mark.parametrize("started", [True, False])
async def test_a_function_that_is_yielded_runs_in_a_thread(started: bool) -> None:
    async with clients(1, started=started) as [wire]:
        answer = await wire.ok(THREAD)
        assert (answer.body != threading.main_thread().name.encode()) == started
        answer = await wire.ok(THREAD, body=b"fail")
        assert answer.body == b"caught: not found by the thread"


async def test_too_many_long_answers_are_refused() -> None:
    async with clients(1) as [wire]:
        waiting = [wire.start(COUNT, body=b"50000") for _ in range(70)]
        refusal = await asyncio.wait_for(waiting[-1], 10)
        assert refusal.code == ResponseCode.SYSTEM_BUSY
        assert "64 long answers" in (refusal.remark or "")


async def test_answers_under_way_end_with_their_server() -> None:
    answers = LongAnswers(lambda value: Command(0))

    def endless() -> Steps:
        while True:
            yield None

    async with answers:
        answers.start_answer(endless())
        await asyncio.sleep(0)
    assert not answers.is_running
