"""The lifecycle of a service: ready, stopped, dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from penstock.errors import LifecycleError
from penstock.runtime.service import Service, wait_any


class Probe(Service):
    """Serves until it has to fail, and records what happens to it."""

    def __init__(self, name: str = "probe", events: list[str] | None = None) -> None:
        self.name = name
        self.events = events if events is not None else []
        self.may_be_ready = asyncio.Event()
        self.may_be_ready.set()
        self.fail_with: asyncio.Future[BaseException | None] = (
            asyncio.get_running_loop().create_future()
        )
        self.cleanup = asyncio.Event()
        self.cleanup.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        self.events.append(f"{self.name} starts")
        try:
            await self.may_be_ready.wait()
            ready()
            error = await self.fail_with
            if error is not None:
                raise error
        finally:
            self.events.append(f"{self.name} cleans up")
            await self.cleanup.wait()
            self.events.append(f"{self.name} is gone")


class FailsAtOnce(Service):
    async def _run(self, ready: Callable[[], None]) -> None:
        raise ConnectionRefusedError("no server there")


class ForgetsToBeReady(Service):
    async def _run(self, ready: Callable[[], None]) -> None:
        return


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_start_returns_when_the_service_is_ready_and_not_before() -> None:
    probe = Probe()
    probe.may_be_ready.clear()
    starting = asyncio.create_task(probe.start())
    await settle()
    assert not starting.done()
    assert not probe.is_running
    probe.may_be_ready.set()
    await starting
    assert probe.is_running
    await probe.stop()
    assert not probe.is_running


async def test_start_raises_what_kept_the_service_from_being_ready() -> None:
    service = FailsAtOnce()
    with pytest.raises(ConnectionRefusedError, match="no server there"):
        await service.start()
    await service.stop()


async def test_a_service_that_dies_in_the_turn_it_became_ready_fails_its_start() -> None:
    probe = Probe()
    probe.fail_with.set_result(OSError("gone at once"))
    with pytest.raises(OSError, match="gone at once"):
        await probe.start()


async def test_a_service_that_returns_without_being_ready_fails_its_start() -> None:
    with pytest.raises(LifecycleError, match="ended before it was ready"):
        await ForgetsToBeReady().start()


async def test_a_service_is_started_once() -> None:
    async with Probe() as probe:
        with pytest.raises(LifecycleError, match="Probe was started twice"):
            await probe.start()
    with pytest.raises(LifecycleError, match="make a new one"):
        await probe.start()


async def test_stop_waits_for_the_clean_up() -> None:
    probe = Probe()
    probe.cleanup.clear()
    await probe.start()
    stopping = asyncio.create_task(probe.stop())
    await settle()
    assert probe.events[-1] == "probe cleans up"
    assert not stopping.done()
    probe.cleanup.set()
    await stopping
    assert probe.events[-1] == "probe is gone"


async def test_stop_is_idempotent_and_a_second_one_does_not_interrupt_the_clean_up() -> None:
    probe = Probe()
    probe.cleanup.clear()
    await probe.start()
    first = asyncio.create_task(probe.stop())
    await settle()
    second = asyncio.create_task(probe.stop())
    await settle()
    assert probe.events[-1] == "probe cleans up"
    probe.cleanup.set()
    await asyncio.gather(first, second)
    await probe.stop()
    assert probe.events == ["probe starts", "probe cleans up", "probe is gone"]


async def test_stop_before_start_does_nothing() -> None:
    probe = Probe()
    await probe.stop()
    await probe.start()
    assert probe.is_running
    await probe.stop()


async def test_the_stoppers_own_cancellation_is_not_eaten() -> None:
    probe = Probe()
    probe.cleanup.clear()
    await probe.start()
    stopping = asyncio.create_task(probe.stop())
    await settle()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    # The service continues stopping without a second call.
    assert not probe.is_running
    probe.cleanup.set()
    await probe.wait()
    assert probe.events[-1] == "probe is gone"


async def test_a_timeout_around_stop_works() -> None:
    probe = Probe()
    probe.cleanup.clear()
    await probe.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await probe.stop()
    probe.cleanup.set()
    await probe.stop()


async def test_a_cancelled_start_leaves_nothing_running() -> None:
    probe = Probe()
    probe.may_be_ready.clear()
    starting = asyncio.create_task(probe.start())
    await settle()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert probe.events[-1] == "probe is gone"


async def test_stop_during_start_fails_the_start() -> None:
    probe = Probe()
    probe.may_be_ready.clear()
    starting = asyncio.create_task(probe.start())
    await settle()
    await probe.stop()
    with pytest.raises(LifecycleError, match="stopped before it was ready"):
        await starting


async def test_wait_returns_after_a_stop() -> None:
    probe = Probe()
    await probe.start()
    waiting = asyncio.create_task(probe.wait())
    await settle()
    assert not waiting.done()
    await probe.stop()
    await waiting


async def test_wait_raises_what_the_service_died_of_to_everyone_who_asks() -> None:
    probe = Probe()
    await probe.start()
    waiting = asyncio.create_task(probe.wait())
    probe.fail_with.set_result(OSError("disk on fire"))
    with pytest.raises(OSError, match="disk on fire"):
        await waiting
    with pytest.raises(OSError, match="disk on fire"):
        await probe.wait()
    await probe.stop()


async def test_wait_returns_when_the_service_finishes_by_itself() -> None:
    probe = Probe()
    await probe.start()
    probe.fail_with.set_result(None)
    await probe.wait()


async def test_cancelling_a_waiter_does_not_touch_the_service() -> None:
    async with Probe() as probe:
        waiting = asyncio.create_task(probe.wait())
        await settle()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        assert probe.is_running


async def test_waiting_for_a_service_that_was_never_started_is_an_error() -> None:
    with pytest.raises(LifecycleError, match="never started"):
        await Probe().wait()


async def test_a_cancellation_by_other_code_counts_as_a_failure() -> None:
    probe = Probe()
    await probe.start()
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "Probe")
    task.cancel()
    with pytest.raises(LifecycleError, match="other code"):
        await probe.wait()


async def test_leaving_the_block_raises_what_the_service_died_of() -> None:
    async def use_a_dying_service() -> None:
        async with Probe() as probe:
            probe.fail_with.set_result(OSError("disk on fire"))
            await settle()

    with pytest.raises(OSError, match="disk on fire"):
        await use_a_dying_service()


async def test_an_error_of_the_block_is_not_replaced_but_the_death_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail_beside_a_dying_service() -> None:
        async with Probe() as probe:
            probe.fail_with.set_result(OSError("disk on fire"))
            await settle()
            raise KeyError("of the block")

    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="of the block"):
        await fail_beside_a_dying_service()
    assert [record.getMessage() for record in caplog.records] == ["service failed name=Probe"]
    assert "disk on fire" in caplog.text


async def test_stop_logs_an_unobserved_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    probe = Probe()
    await probe.start()
    probe.fail_with.set_result(OSError("disk on fire"))
    await settle()
    with caplog.at_level(logging.ERROR):
        await probe.stop()
        await probe.stop()
    assert len(caplog.records) == 1


async def test_a_service_that_stops_itself_gets_an_error() -> None:
    class Suicidal(Service):
        async def _run(self, ready: Callable[[], None]) -> None:
            ready()
            await self.stop()

    with pytest.raises(LifecycleError, match="tried to stop itself"):
        async with Suicidal():
            await settle()


async def test_an_exit_stack_stops_parts_in_reverse() -> None:
    events: list[str] = []
    async with AsyncExitStack() as stack:
        for name in ("log", "server"):
            await stack.enter_async_context(Probe(name, events))
    assert [event for event in events if "clean" not in event] == [
        "log starts",
        "server starts",
        "server is gone",
        "log is gone",
    ]


async def test_one_dead_part_ends_the_whole() -> None:
    one, other = Probe("one"), Probe("other")

    async def root() -> None:
        async with one, other:
            waiting = asyncio.create_task(wait_any(one, other))
            await settle()
            assert not waiting.done()
            other.fail_with.set_result(OSError("disk on fire"))
            await waiting

    with pytest.raises(OSError, match="disk on fire"):
        await root()
    assert one.events[-1] == "one is gone"


async def test_wait_any_names_the_part_that_finished() -> None:
    async with Probe("one") as one, Probe("other") as other:
        one.fail_with.set_result(None)
        assert await wait_any(one, other) is one


async def test_wait_any_needs_started_services() -> None:
    with pytest.raises(LifecycleError, match="nothing to wait for"):
        await wait_any()
    with pytest.raises(LifecycleError, match="were started"):
        await wait_any(Probe())
