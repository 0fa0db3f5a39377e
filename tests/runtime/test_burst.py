"""Items handed to another thread: none is lost, none taken twice, one wake-up a burst."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from penstock.runtime.burst import Burst, WakeUp
from penstock.testing.eventually import eventually


def test_only_the_first_item_of_a_burst_requests_a_wake_up() -> None:
    scheduled: list[Callable[[], None]] = []
    taken: list[list[int]] = []
    burst = Burst(scheduled.append, taken.append)
    for number in range(3):
        burst.put(number)
    assert (len(scheduled), len(burst), taken) == (1, 3, [])
    scheduled.pop()()
    assert (len(burst), taken) == (0, [[0, 1, 2]])
    burst.put(3)
    assert len(scheduled) == 1


def test_an_item_put_while_others_are_taken_is_taken_by_a_wake_up_of_its_own() -> None:
    scheduled: list[Callable[[], None]] = []
    taken: list[list[int]] = []

    def take(items: list[int]) -> None:
        taken.append(items)
        if items == [0]:
            burst.put(1)

    burst: Burst[int] = Burst(scheduled.append, take)
    burst.put(0)
    while scheduled:
        scheduled.pop()()
    assert taken == [[0], [1]]


def test_a_limit_spreads_a_burst_over_several_calls() -> None:
    scheduled: list[Callable[[], None]] = []
    again: list[Callable[[], None]] = []
    taken: list[list[int]] = []
    burst = Burst(scheduled.append, taken.append, limit=2, reschedule=again.append)
    for number in range(5):
        burst.put(number)
    scheduled.pop()()
    burst.put(5)  # the call that was rescheduled takes it
    assert not scheduled
    while again:
        again.pop()()
    assert taken == [[0, 1], [2, 3], [4, 5]]
    assert not scheduled


def test_an_item_that_cannot_be_announced_is_not_kept() -> None:
    taken: list[list[int]] = []
    is_closed = True

    def schedule(drain: Callable[[], None]) -> None:
        if is_closed:
            raise RuntimeError("closed")
        drain()

    burst = Burst(schedule, taken.append)
    with pytest.raises(RuntimeError, match="closed"):
        burst.put(0)
    is_closed = False
    burst.put(1)
    assert taken == [[1]]


def test_a_wake_up_is_requested_once_until_it_has_come() -> None:
    scheduled: list[Callable[[], None]] = []
    calls: list[int] = []

    def work() -> None:
        calls.append(len(scheduled))
        wake_up.request()

    wake_up = WakeUp(scheduled.append, work)
    wake_up.request()
    wake_up.request()
    assert len(scheduled) == 1
    scheduled.pop()()
    assert (calls, len(scheduled)) == ([0], 1)


def test_a_wake_up_that_failed_can_be_requested_again() -> None:
    def schedule(work: Callable[[], None]) -> None:
        raise RuntimeError("closed")

    wake_up = WakeUp(schedule, lambda: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            wake_up.request()


@pytest.mark.parametrize("limit", [None, 7])
async def test_items_of_many_threads_arrive_once_and_in_the_order_of_each(
    limit: int | None,
) -> None:
    loop = asyncio.get_running_loop()
    taken: list[tuple[int, int]] = []
    wake_ups = 0

    def schedule(drain: Callable[[], None]) -> None:
        nonlocal wake_ups
        wake_ups += 1
        loop.call_soon_threadsafe(drain)

    burst: Burst[tuple[int, int]] = Burst(
        schedule, taken.extend, limit=limit, reschedule=loop.call_soon
    )
    each, threads = 2000, 8

    def put(sender: int) -> None:
        for number in range(each):
            burst.put((sender, number))

    senders = [threading.Thread(target=put, args=(sender,)) for sender in range(threads)]
    for thread in senders:
        thread.start()
    await eventually(lambda: len(taken) == each * threads)
    for thread in senders:
        thread.join()
    assert len(burst) == 0
    for sender in range(threads):
        assert [number for who, number in taken if who == sender] == list(range(each))
    assert 0 < wake_ups < each * threads
