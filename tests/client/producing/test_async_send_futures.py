"""Results of one thread for the futures of another."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.client.producing.async_send_futures import AsyncSendFutures, settle_all
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.client.producing.sending import SendDone
from penstock.errors import PenstockError, RequestTimeout
from penstock.model import MessageQueue
from penstock.testing.eventually import eventually

RECEIPT = Receipt(SendStatus.OK, "1", "A", MessageQueue("T", "b", 0), 0)


async def test_results_of_another_thread_settle_futures_in_bursts() -> None:
    futures = AsyncSendFutures(asyncio.get_running_loop())
    answers = [futures.expect() for _ in range(200)]
    assert futures.unanswered == 200
    error = RequestTimeout("late")

    def settle() -> None:
        for index, answer in enumerate(answers):
            answer(error if index == 7 else RECEIPT)

    waiting = asyncio.ensure_future(futures.room())
    await asyncio.sleep(0)
    threading.Thread(target=settle).start()
    await asyncio.wait_for(waiting, 5)
    await eventually(lambda: futures.unanswered == 0)
    for index, answer in enumerate(answers):
        if index == 7:
            with pytest.raises(RequestTimeout):
                await answer.future
        else:
            assert await answer.future == RECEIPT


async def test_a_future_that_was_cancelled_meanwhile_is_left_alone() -> None:
    futures = AsyncSendFutures(asyncio.get_running_loop())
    answer = futures.expect()
    answer.future.cancel()
    answer(RECEIPT)
    await eventually(lambda: futures.unanswered == 0)
    assert answer.future.cancelled()


@pytest.mark.parametrize("kind", ["one loop", "two loops", "a loop and a function"])
async def test_each_waiting_send_of_a_batch_gets_its_own_result(kind: str) -> None:
    loop = asyncio.get_running_loop()
    first = AsyncSendFutures(loop)
    second = first if kind == "one loop" else AsyncSendFutures(loop)
    answers = [first.expect(), second.expect(), first.expect()]
    called: list[Receipt | PenstockError] = []
    results = [RECEIPT._replace(msg_id=str(number)) for number in range(4)]
    dones: list[SendDone] = [*answers]  # type: ignore[list-item]  # mypy calls no tuple
    if kind.endswith("function"):
        dones.append(called.append)
    settle_all(dones, results[: len(dones)])
    assert [(await answer.future).msg_id for answer in answers] == ["0", "1", "2"]
    assert called == results[3 : len(dones)]
    assert (first.unanswered, second.unanswered) == (0, 0)
