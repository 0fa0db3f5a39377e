"""The thread of a virtual loop: time passes while a caller waits, and only then."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from penstock.errors import LifecycleError
from penstock.testing.eventually import eventually
from penstock.testing.hosts.local_host import LocalHost
from penstock.testing.hosts.virtual_host import VirtualHost
from penstock.testing.virtual_time.loop import VirtualDeadlock, VirtualLoop, run_virtual


@pytest.fixture
def host() -> Iterator[VirtualHost]:
    host = VirtualHost(VirtualLoop(), "a test")
    yield host
    host.shut_down()


async def double(number: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return 2 * number


async def fail(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    raise ZeroDivisionError("in the loop")


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_blocking_call_takes_as_much_virtual_time_as_it_needs(host: VirtualHost) -> None:
    assert host.run(double(21, 3600)) == 42
    assert host.loop.time() == 3600
    with pytest.raises(ZeroDivisionError, match="in the loop"):
        host.run(fail(3600))
    assert host.loop.time() == 7200


def test_time_stands_still_while_nothing_waits(host: VirtualHost) -> None:
    fired: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            fired.append(host.loop.time())

    host.start(tick())
    started = host.start(double(1, 10))
    host.run(double(1))
    assert (fired, started.done()) == ([], False)
    assert host.wait(started) == 2
    assert fired[-1] in (9, 10)
    before = len(fired)
    host.run(double(1, 5))
    assert len(fired) == before + 5


def test_results_come_when_the_moment_is_over(host: VirtualHost) -> None:
    steps: list[int] = []

    async def first() -> None:
        host.loop.call_soon(lambda: host.loop.call_soon(steps.append, 1))

    host.run(first())
    assert steps == [1]


def test_time_passes_until_the_expected_state_is_reached(host: VirtualHost) -> None:
    finished: concurrent.futures.Future[float] = concurrent.futures.Future()

    def tell(at: float) -> None:
        finished.set_result(at)

    done = host.expect(tell)
    host.call_soon(lambda: host.loop.call_later(60, lambda: done(host.loop.time())))
    assert finished.result(timeout=30) == 60
    host.run(double(1))
    assert host.loop.time() == 60


def test_what_will_never_happen_is_an_error_and_the_loop_goes_on(host: VirtualHost) -> None:
    with pytest.raises(VirtualDeadlock, match="nothing will happen any more"):
        host.run(for_ever())
    assert host.run(double(21)) == 42


def test_a_plain_function_on_the_loop_may_call_back(host: VirtualHost) -> None:
    async def outer() -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: host.run(double(4, 100)))

    assert host.run(outer()) == 8
    assert host.loop.time() == 100


def test_a_blocking_call_on_the_loop_itself_is_refused(host: VirtualHost) -> None:
    async def wrong() -> int:
        return host.run(double(1))

    with pytest.raises(LifecycleError, match="on the loop's own thread"):
        host.run(wrong())


async def test_a_coroutine_elsewhere_waits_without_blocking(host: VirtualHost) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    assert await host.await_(double(3, 3600)) == 6
    with pytest.raises(ZeroDivisionError):
        await host.await_(fail())
    beating.cancel()
    assert beats > 1

    async def inside() -> int:
        return await host.await_(double(5))

    assert await host.await_(inside()) == 10


async def test_a_wait_that_is_cancelled_ends_its_work(host: VirtualHost) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            for _ in itertools.count():
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    waiting = asyncio.ensure_future(host.await_(work()))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await eventually(lambda: ended)
    stopped_at = host.loop.time()
    assert await host.await_(double(1)) == 2
    assert host.loop.time() == stopped_at


def test_several_threads_wait_at_once(host: VirtualHost) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: host.run(double(n, n)), range(50)))
    assert results == [2 * number for number in range(50)]


def test_after_its_end_nothing_runs_and_no_caller_waits_for_ever() -> None:
    host = VirtualHost(VirtualLoop(), "a test")
    waiting = host.start(for_ever())
    host.run(double(1))
    host.shut_down()
    host.shut_down()
    with pytest.raises((LifecycleError, concurrent.futures.CancelledError)):
        waiting.result(timeout=30)
    for call in (
        lambda: host.run(double(1)),
        lambda: host.start(double(1)),
        lambda: host.call_soon(print),
    ):
        with pytest.raises(LifecycleError, match="a test has ended"):
            call()
    assert host.loop.is_closed()
    assert "a test" not in {thread.name for thread in threading.enumerate()}


def test_a_forked_process_gets_an_error_because_the_loop_is_not_in_it(
    host: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LifecycleError, match="used in its fork"):
        host.run(double(1))
    monkeypatch.undo()
    assert host.run(double(1)) == 2


def test_on_the_virtual_loop_itself_everything_is_direct() -> None:
    async def main(loop: VirtualLoop) -> None:
        host = LocalHost(loop, "a test")
        assert await host.await_(double(2, 60)) == 4
        assert loop.time() == 60
        started = host.start(double(3, 5))
        assert await loop.run_in_executor(None, lambda: host.wait(started)) == 6
        assert await loop.run_in_executor(None, lambda: host.run(double(4))) == 8
        with pytest.raises(LifecycleError, match="await it instead"):
            host.run(double(5))
        failing = host.start(fail())
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: host.wait(failing))
        assert host.handler_host("x") is host
        one, other = host.chance, host.chance
        assert one is not None
        assert other is not None
        assert one.random() != other.random()
        seen: list[int] = []
        host.call_soon(seen.append, 1)
        host.expect(seen.append)(2)
        await asyncio.sleep(0)
        assert sorted(seen) == [1, 2]
        host.close()

    run_virtual(main)
