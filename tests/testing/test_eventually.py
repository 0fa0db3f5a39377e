"""Waiting for a state."""

from __future__ import annotations

import asyncio

import pytest

from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual


async def test_a_condition_is_asked_until_it_is_true_and_its_answer_returned() -> None:
    answers = iter([0, "", None, "there"])
    assert await eventually(lambda: next(answers)) == "there"


async def test_a_condition_may_be_a_coroutine() -> None:
    answers = iter([False, True])

    async def condition() -> bool:
        await asyncio.sleep(0)
        return next(answers)

    assert await eventually(condition) is True


async def test_a_failed_assert_means_not_yet() -> None:
    tries: list[int] = []

    def condition() -> bool:
        tries.append(1)
        assert len(tries) == 3
        return True

    assert await eventually(condition)


async def test_another_error_ends_the_wait() -> None:
    def condition() -> bool:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        await eventually(condition)


async def test_the_timeout_tells_what_the_condition_last_said() -> None:
    with pytest.raises(AssertionError, match=r"was \[\] for 0\.01 seconds"):
        await eventually(lambda: [], 0.01)

    def too_few() -> bool:
        raise AssertionError("3 of 5 messages")

    with pytest.raises(AssertionError, match=r"too_few failed with 3 of 5 messages"):
        await eventually(too_few, 0.01)


def test_it_waits_in_virtual_time_on_a_virtual_loop() -> None:
    async def main(loop: VirtualLoop) -> None:
        await eventually(lambda: loop.time() > 5, 10)
        with pytest.raises(AssertionError):
            await eventually(lambda: False, 3600, interval=60)
        assert loop.time() > 3600

    run_virtual(main)
