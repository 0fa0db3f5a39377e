"""A clock that moves only when it is advanced, on a real loop."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_clock import FakeClock

from penstock.runtime.clock import Clock
from penstock.testing.clock import DEFAULT_START


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_it_is_a_clock(clock: FakeClock) -> None:
    as_clock: Clock = clock
    assert as_clock.time() == DEFAULT_START
    assert as_clock.time_ms() == int(DEFAULT_START * 1000)
    assert as_clock.monotonic() == 0.0


async def test_a_sleep_ends_when_its_time_has_come(clock: FakeClock) -> None:
    async def sleep() -> float:
        await clock.sleep(15)
        return clock.monotonic()

    task = asyncio.create_task(sleep())
    await clock.advance(14.9)
    assert not task.done()
    await clock.advance("200ms")
    assert await task == 15.0
    assert clock.monotonic() == pytest.approx(15.1)


async def test_what_is_due_fires_in_order_each_at_its_own_time(clock: FakeClock) -> None:
    fired: list[tuple[str, float]] = []

    def fire(name: str) -> None:
        fired.append((name, clock.monotonic()))

    for name, delay in (("late", 30), ("early", 10), ("also early", 10), ("never", 100)):
        clock.call_later(delay, fire, name)
    await clock.advance(60)
    assert fired == [("early", 10.0), ("also early", 10.0), ("late", 30.0)]
    assert clock.waiting == 1


async def test_woken_tasks_set_timers_that_fire_in_the_same_advance(clock: FakeClock) -> None:
    beats: list[float] = []

    async def beat() -> None:
        while True:
            await clock.sleep(30)
            beats.append(clock.monotonic())

    task = asyncio.create_task(beat())
    await clock.advance("1h")
    assert len(beats) == 120
    task.cancel()


async def test_a_cancelled_timer_does_not_fire(clock: FakeClock) -> None:
    fired: list[str] = []
    timer = clock.call_later(5, fired.append, "no")
    timer.cancel()
    assert timer.cancelled()
    assert clock.waiting == 0
    await clock.advance(10)
    assert fired == []


async def test_a_cancelled_sleep_leaves_no_timer(clock: FakeClock) -> None:
    task = asyncio.create_task(clock.sleep(5))
    await clock.advance(1)
    assert clock.waiting == 1
    task.cancel()
    await clock.advance(1)
    assert task.cancelled()
    assert clock.waiting == 0


async def test_a_sleep_of_nothing_gives_others_a_turn(clock: FakeClock) -> None:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    task = asyncio.create_task(other())
    await clock.sleep(0)
    order.append("back")
    assert order == ["other", "back"]
    await task


async def test_the_wall_clock_may_jump(clock: FakeClock) -> None:
    clock.jump("-10m")
    assert clock.time() == DEFAULT_START - 600
    await clock.advance(0.25)
    assert clock.time_ms() == int(DEFAULT_START * 1000) - 600_000 + 250
    assert clock.monotonic() == 0.25
