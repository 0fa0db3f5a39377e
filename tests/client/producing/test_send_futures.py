"""Futures of sends: light at first, ordinary futures once that is needed."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    as_completed,
    wait,
)

import pytest

from penstock.client.producing.async_send_futures import settle_all
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.client.producing.send_futures import SendFuture, Window
from penstock.errors import PenstockError, RequestTimeout
from penstock.model import MessageQueue
from penstock.testing.eventually import eventually

RECEIPT = Receipt(SendStatus.OK, "1", "A", MessageQueue("T", "b", 0), 0)
LATE = RequestTimeout("late")
SECONDS = 10


def is_ordinary(future: SendFuture) -> bool:
    return "_condition" in vars(future)


@pytest.mark.parametrize("look", [Future.running, Future.cancelled, repr])
@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_the_result_does_not_depend_on_when_it_was_asked_for(
    look: Callable[[Future[Receipt]], object], when: str
) -> None:
    future = Window(10).expect()
    assert not future.done()
    if when == "before":
        look(future)
    future(RECEIPT)
    if when == "after":
        look(future)
    assert is_ordinary(future) == (when != "never")
    assert future.done()
    assert future.result() is RECEIPT
    assert future.result(0) is RECEIPT
    assert future.exception() is None
    assert not future.running()
    assert not future.cancel()
    with pytest.raises(InvalidStateError):
        future.set_result(RECEIPT)


@pytest.mark.parametrize("is_watched", [False, True])
def test_an_error_is_raised_each_time(is_watched: bool) -> None:
    future = Window(10).expect()
    if is_watched:
        assert future.running()
    future(LATE)
    for _ in range(2):
        with pytest.raises(RequestTimeout, match="late"):
            future.result()
    assert future.exception() is LATE
    assert future.done()


def test_a_send_that_is_under_way_cannot_be_cancelled() -> None:
    future = Window(10).expect()
    assert not future.cancel()
    assert future.running()
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0)
    future(RECEIPT)
    assert future.result() is RECEIPT
    assert not future.cancelled()


def test_callbacks_are_called_once_whether_early_or_late() -> None:
    window = Window(10)
    early, late = window.expect(), window.expect()
    called: list[Future[Receipt]] = []
    early.add_done_callback(called.append)
    window.settle([early, late], [RECEIPT, LATE])
    late.add_done_callback(called.append)
    assert called == [early, late]


def test_what_waits_for_many_futures_takes_them_in_any_state() -> None:
    window = Window(10)
    settled, watched, light = (window.expect() for _ in range(3))
    watched.running()
    settled(RECEIPT)
    done, waiting = wait([settled, watched, light], return_when=FIRST_COMPLETED)
    assert (done, waiting) == ({settled}, {watched, light})
    later = threading.Timer(0, window.settle, ([watched, light], [RECEIPT, LATE]))
    later.start()
    assert set(as_completed([settled, watched, light], SECONDS)) == {settled, watched, light}
    later.join()


async def test_asyncio_takes_it_for_what_it_is() -> None:
    future = Window(10).expect()
    wrapped = asyncio.wrap_future(future)
    threading.Timer(0, future, (RECEIPT,)).start()
    assert await asyncio.wait_for(wrapped, SECONDS) is RECEIPT


def test_a_waiter_gets_a_result_that_comes_meanwhile() -> None:
    """Many times, since it is a race: results are written while futures become whole."""
    window = Window(100_000)
    results = [RECEIPT._replace(queue_offset=number) for number in range(3000)]
    futures = [window.expect() for _ in results]

    def settle() -> None:
        for start in range(0, len(futures), 7):
            settle_all(futures[start : start + 7], results[start : start + 7])

    def offsets(chosen: list[SendFuture]) -> list[int]:
        return [future.result(SECONDS).queue_offset for future in chosen]

    with ThreadPoolExecutor(4) as threads:
        forwards = [threads.submit(offsets, futures) for _ in range(2)]
        backwards = threads.submit(offsets, futures[::-1])
        threads.submit(settle).result(SECONDS)
        for found in forwards:
            assert found.result(SECONDS) == list(range(3000))
        assert backwards.result(SECONDS) == list(range(3000))[::-1]
    assert window.answered == 3000


async def test_a_full_window_waits_for_an_answer() -> None:
    window = Window(2)
    first, _second = window.expect(), window.expect()
    third: list[SendFuture] = []
    waiting = threading.Thread(target=lambda: third.append(window.expect()))
    waiting.start()
    await eventually(lambda: window._is_wanted)
    assert not third
    first(RECEIPT)
    waiting.join(SECONDS)
    assert third


def test_a_batch_of_two_windows_gives_each_its_own_results() -> None:
    windows = [Window(10), Window(10)]
    futures = [windows[0].expect(), windows[1].expect(), windows[0].expect()]
    called: list[Receipt | PenstockError] = []
    results = [RECEIPT._replace(msg_id=str(number)) for number in range(4)]
    settle_all([*futures, called.append], results)
    settle_all([], [])
    assert [future.result().msg_id for future in futures] == ["0", "1", "2"]
    assert called == results[3:]
    assert [window.answered for window in windows] == [2, 1]


def test_what_no_future_has_is_missing() -> None:
    future = Window(10).expect()
    with pytest.raises(AttributeError, match="no_such"):
        _ = future.no_such
    assert not is_ordinary(future)
    # Not an endless search for what an empty copy does not have yet.
    assert copy.copy(future).window is future.window
