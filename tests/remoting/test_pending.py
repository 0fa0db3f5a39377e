"""Deadlines of requests, on a loop with virtual time: exact, and without a timer each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import ConnectionLost, RemotingError, RequestTimeout
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.remoting.pending import MAX_ABANDONED, TICK_SECONDS, Done, PendingRequests
from penstock.testing.virtual_time.loop import run_virtual

PULL = RequestCode.PULL_MESSAGE


class Results:
    """The results of the callbacks, and when they came."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pending = PendingRequests(self.loop, "10.0.0.5:10911")
        self.seen: dict[int, Command | RemotingError] = {}
        self.at: dict[int, float] = {}

    def expect(self, request_id: int, timeout: float) -> None:
        def done(answer: Command | RemotingError) -> None:
            self.seen[request_id] = answer
            self.at[request_id] = self.loop.time()

        self.pending.add(request_id, PULL, timeout, done)


def virtually(test: Callable[[Results], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Results())

    run_virtual(main())


def test_an_answer_in_time_goes_to_who_asked_and_the_timer_finds_nothing() -> None:
    async def test(results: Results) -> None:
        results.expect(1, 3)
        done = results.pending.take(1)
        assert done is not None
        answer = Command(0, 1)
        done(answer)
        assert results.pending.take(1) is None
        await asyncio.sleep(10)
        assert results.seen == {1: answer}

    virtually(test)


def test_a_request_fails_at_its_deadline_and_the_error_names_it() -> None:
    async def test(results: Results) -> None:
        results.expect(7, 3)
        await asyncio.sleep(2.999)
        assert results.seen == {}
        await asyncio.sleep(0.002)
        error = results.seen[7]
        assert isinstance(error, RequestTimeout)
        assert str(error) == "no answer to PULL_MESSAGE (request 7) from 10.0.0.5:10911 within 3 s"
        assert len(results.pending) == 0

    virtually(test)


def test_mixed_timeouts_each_fail_within_a_tick_of_their_deadline() -> None:
    async def test(results: Results) -> None:
        timeouts = {number: (number * 7919 % 1000) / 100 + 0.01 for number in range(1, 500)}
        for number, timeout in timeouts.items():
            results.expect(number, timeout)
        await asyncio.sleep(11)
        assert set(results.at) == set(timeouts)
        for number, at in results.at.items():
            assert 0 <= at - timeouts[number] <= TICK_SECONDS + 1e-9

    virtually(test)


def test_a_shorter_timeout_after_a_longer_one_is_not_overslept() -> None:
    async def test(results: Results) -> None:
        results.expect(1, 30)
        await asyncio.sleep(1)
        results.expect(2, 3)
        await asyncio.sleep(40)
        assert results.at == {1: pytest.approx(30), 2: pytest.approx(4)}

    virtually(test)


def test_thousands_of_answered_requests_share_a_few_timers() -> None:
    async def test(results: Results) -> None:
        loop = results.loop
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *args: object, **options: object) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *args, **options)  # type: ignore[arg-type]  # handed on as it came

        loop.call_at = counted  # type: ignore[method-assign]  # the test counts timers
        for number in range(1, 10_001):
            results.expect(number, 3)
            results.pending.take(number)
        assert len(timers) == 1

    virtually(test)


def test_a_lost_connection_fails_all_with_an_error_each() -> None:
    async def test(results: Results) -> None:
        results.expect(1, 3)
        results.expect(2, 3)
        results.pending.fail_all("closed by the peer")
        first, second = results.seen[1], results.seen[2]
        assert isinstance(first, ConnectionLost)
        assert "10.0.0.5:10911" in str(first)
        assert "PULL_MESSAGE (request 1)" in str(first)
        assert "closed by the peer" in str(first)
        assert first is not second
        await asyncio.sleep(10)
        assert len(results.seen) == 2

    virtually(test)


def test_a_callback_that_closes_the_connection_during_a_sweep_fails_each_request_once() -> None:
    async def test(results: Results) -> None:
        calls: list[int] = []

        def close_all(_answer: Command | RemotingError) -> None:
            calls.append(1)
            results.pending.fail_all("given up")

        results.pending.add(1, PULL, 1, close_all)
        results.pending.add(2, PULL, 1, lambda _answer: calls.append(2))
        await asyncio.sleep(5)
        assert calls == [1, 2]

    virtually(test)


def test_a_late_answer_is_distinguished_from_an_unrequested_one() -> None:
    async def test(results: Results) -> None:
        results.expect(1, 1)
        results.expect(2, 9)
        results.pending.forget(2)
        await asyncio.sleep(2)
        assert results.pending.was_abandoned(1)
        assert results.pending.was_abandoned(2)
        assert not results.pending.was_abandoned(1)
        assert not results.pending.was_abandoned(3)
        assert 2 not in results.seen

    virtually(test)


def test_the_memory_of_abandoned_requests_is_bounded() -> None:
    async def test(results: Results) -> None:
        for number in range(1, MAX_ABANDONED + 11):
            results.expect(number, 1)
            results.pending.forget(number)
        assert not results.pending.was_abandoned(10)
        assert results.pending.was_abandoned(11)

    virtually(test)


def test_a_callback_that_fails_is_logged_and_the_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_answer: Command | RemotingError) -> None:
        raise ZeroDivisionError

    done: Done = fail

    async def test(results: Results) -> None:
        results.pending.add(1, PULL, 1, done)
        results.expect(2, 1)
        await asyncio.sleep(2)
        assert isinstance(results.seen[2], RequestTimeout)

    with caplog.at_level(logging.ERROR):
        virtually(test)
    assert "callback of an answer failed" in caplog.text
