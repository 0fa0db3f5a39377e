"""The virtual loop: time, order, repeatability, and being driven from outside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import logging
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from penstock.errors import InvalidArgument, LifecycleError
from penstock.testing.clock import DEFAULT_START, VirtualClock
from penstock.testing.virtual_time import loop as loop_module
from penstock.testing.virtual_time.loop import (
    UnhandledInLoop,
    VirtualDeadlock,
    VirtualLoop,
    run_virtual,
    virtual_loop,
)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A virtual loop that stands still until the test drives it."""
    made = VirtualLoop()
    yield made
    made.close()


# -- time ---------------------------------------------------------------------------------------


def test_two_hours_of_sleep_pass_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 7200.0


def test_timers_due_at_one_moment_fire_in_the_order_they_were_made() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        fired: list[int] = []
        for number in range(50):
            loop.call_later(5, fired.append, number)
        loop.call_later(1, fired.append, -1)
        await asyncio.sleep(6)
        return fired

    assert run_virtual(main) == [-1, *range(50)]


def test_time_moves_only_when_nothing_is_ready() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_later(1, lambda: None)
        for _ in range(1000):
            await asyncio.sleep(0)
            assert loop.time() == 0.0

    run_virtual(main)


def test_a_timer_in_the_past_does_not_turn_time_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.sleep(10)
        called: list[float] = []
        loop.call_at(3, lambda: called.append(loop.time()))
        await asyncio.sleep(1)
        assert called == [10.0]

    run_virtual(main)


def test_timeouts_queues_and_task_groups_work_in_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)

        async def produce() -> None:
            for number in range(3):
                await asyncio.sleep(10)
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            got = [await queue.get() for _ in range(3)]
        assert (got, loop.time()) == ([0, 1, 2], 30.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(900):
                await queue.get()
        assert loop.time() == 930.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 70)
        assert loop.time() == 1000.0

    run_virtual(main)


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main(loop: VirtualLoop) -> None:
        for _ in range(10_000):
            loop.call_later(3600, lambda: None).cancel()
        assert len(loop._timers) < 1000
        await asyncio.sleep(1)
        assert loop.time() == 1.0

    run_virtual(main)


def test_a_cancelled_timer_does_not_move_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_later(3600, lambda: None).cancel()
        with pytest.raises(VirtualDeadlock):
            loop._next_instant()
        assert loop.time() == 0.0

    run_virtual(main)


# -- running ------------------------------------------------------------------------------------


def test_asyncios_own_runner_takes_the_loop_also_in_debug_mode() -> None:
    async def main() -> str:
        await asyncio.sleep(3600)
        await asyncio.to_thread(lambda: None)
        return "done"

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(7), debug=True) as runner:
        assert runner.run(main()) == "done"


def test_a_deadlock_says_who_waits_for_what() -> None:
    async def read_answer(answer: asyncio.Future[None]) -> None:
        await answer

    async def main(loop: VirtualLoop) -> None:
        answer = loop.create_future()
        reader = asyncio.create_task(read_answer(answer), name="reader of answers")
        await asyncio.wait([reader])

    with pytest.raises(VirtualDeadlock) as caught:
        run_virtual(main)
    text = str(caught.value)
    assert "nothing will happen any more at 0.0" in text
    assert "reader of answers in" in text
    assert "read_answer (test_virtual_loop.py:" in text
    assert "main (test_virtual_loop.py:" in text


def test_a_timer_at_infinity_is_a_deadlock_and_no_jump() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_later(float("inf"), lambda: None)
        await loop.create_future()

    with pytest.raises(VirtualDeadlock):
        run_virtual(main)


def test_a_busy_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "MAX_TURNS_PER_INSTANT", 500)

    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(VirtualDeadlock, match=r"time stands still at 0\.0(.|\n)*main"):
        run_virtual(main())


def test_a_callback_that_failed_unseen_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("in a callback")

    async def main(loop: VirtualLoop) -> str:
        loop.call_later(1, fail)
        await asyncio.sleep(2)
        return "looks fine"

    with caplog.at_level(logging.CRITICAL), pytest.raises(UnhandledInLoop) as caught:
        run_virtual(main)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_errors_of_main_come_out_as_they_are() -> None:
    async def main() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


def test_virtual_loop_gives_the_running_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        assert virtual_loop() is loop

    run_virtual(main)


async def test_virtual_loop_on_a_real_loop_is_an_error() -> None:
    with pytest.raises(LifecycleError, match="expected a VirtualLoop"):
        virtual_loop()


# -- repeatability ------------------------------------------------------------------------------


async def _tangle(loop: VirtualLoop) -> list[str]:
    """Tasks in sets, cancelled together, waking in an order that only chance would decide."""
    order: list[str] = []

    async def sleeper(name: str) -> None:
        try:
            await asyncio.sleep(loop.random.uniform(1, 100))
            order.append(f"{name} woke")
        finally:
            order.append(f"{name} ended")

    async def bomb() -> None:
        await asyncio.sleep(50)
        raise RuntimeError("boom")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(sleeper(str(number)))
            group.create_task(bomb())
    except* RuntimeError:
        order.append("boom")
    pending = [asyncio.create_task(sleeper(f"waited {number}")) for number in range(20)]
    done, rest = await asyncio.wait(pending, timeout=30)
    order.extend(task.get_name() for task in done)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    order.append(f"{random.random()}")
    return order


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    assert run_virtual(_tangle, seed=1) == run_virtual(_tangle, seed=1)
    assert run_virtual(_tangle, seed=1) != run_virtual(_tangle, seed=2)


def test_the_order_survives_another_process_with_other_hashes_and_addresses() -> None:
    program = (
        "import sys, zlib; sys.path.insert(0, sys.argv[1]);"
        "padding = [object() for _ in range(int(sys.argv[2]))];"
        "from test_virtual_loop import _tangle;"
        "from penstock.testing.virtual_time.loop import run_virtual;"
        "sys.stdout.write(str(zlib.crc32(repr(run_virtual(_tangle, seed=4)).encode())))"
    )
    here = __file__.rpartition("/")[0]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, here, padding],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed, padding in (("1", "10"), ("2", "12345"))
    ]
    assert outputs[0]
    assert outputs[0] == outputs[1]


def test_the_global_generator_is_as_before_after_a_run() -> None:
    random.seed(99)
    expected = random.Random(99).random()

    async def main() -> float:
        return random.random()

    first = run_virtual(main(), seed=3)
    assert random.random() == expected
    assert run_virtual(main(), seed=3) == first


def test_default_task_names_do_not_count_over_loops() -> None:
    async def main() -> list[str]:
        async def nothing() -> None:
            pass

        tasks = [asyncio.create_task(nothing()) for _ in range(3)]
        await asyncio.gather(*tasks)
        return [task.get_name() for task in tasks]

    assert run_virtual(main()) == run_virtual(main())


def test_a_task_factory_is_respected() -> None:
    made: list[str] = []

    class Marked(asyncio.Task[None]):
        pass

    async def main(loop: VirtualLoop) -> None:
        def factory(owner: asyncio.AbstractEventLoop, coro: object, **options: object) -> Marked:
            made.append("task")
            return Marked(coro, loop=owner, **options)  # type: ignore[arg-type]  # as given

        loop.set_task_factory(factory)  # type: ignore[arg-type]  # narrower than any factory
        await asyncio.create_task(asyncio.sleep(0))
        loop.set_task_factory(None)

    run_virtual(main)
    assert made == ["task"]


# -- executors, threads, signals, names -----------------------------------------------------------


def test_executor_functions_run_inline_and_see_no_running_loop() -> None:
    async def main(loop: VirtualLoop) -> None:
        here = threading.get_ident()

        def work(value: int) -> tuple[int, int, bool]:
            return value, threading.get_ident(), asyncio._get_running_loop() is None

        assert await loop.run_in_executor(None, work, 5) == (5, here, True)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert await loop.run_in_executor(pool, work, 6) == (6, here, True)
        assert await asyncio.to_thread(work, 7) == (7, here, True)

    run_virtual(main)


def test_executor_functions_may_fail_and_may_take_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        def fail() -> None:
            raise OSError("fsync failed")

        with pytest.raises(OSError, match="fsync failed"):
            await loop.run_in_executor(None, fail)
        loop.executor_latency = (2.0, 3.0)
        before = loop.time()
        assert await loop.run_in_executor(None, lambda: "late") == "late"
        assert 2.0 <= loop.time() - before <= 3.0

    run_virtual(main)


def test_an_executor_function_cancelled_before_its_turn_does_not_run() -> None:
    ran: list[int] = []

    async def main(loop: VirtualLoop) -> None:
        loop.run_in_executor(None, ran.append, 1).cancel()
        await asyncio.sleep(1)

    run_virtual(main)
    assert ran == []


def test_a_blocking_call_inside_an_executor_function_drives_the_loop() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        events: list[str] = []

        async def send() -> str:
            await asyncio.sleep(5)
            return f"sent at {loop.time()}"

        def listener() -> None:
            events.append("listener begins")
            events.append(loop.drive(send()))
            assert asyncio._get_running_loop() is None
            events.append("listener ends")

        async def heartbeats() -> None:
            for _ in range(3):
                await asyncio.sleep(2)
                events.append(f"beat at {loop.time()}")

        beating = asyncio.create_task(heartbeats())
        await loop.run_in_executor(None, listener)
        await beating
        return events

    assert run_virtual(main) == [
        "listener begins",
        "beat at 2.0",
        "beat at 4.0",
        "sent at 5.0",
        "listener ends",
        "beat at 6.0",
    ]


def test_a_blocking_call_on_the_loop_itself_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        waiting = loop.create_future()
        with pytest.raises(LifecycleError, match="await it instead"):
            loop.drive(waiting)
        with pytest.raises(LifecycleError, match=r"clock\.advance"):
            loop.advance(1)

    run_virtual(main)


def test_calls_from_another_thread_run_when_the_loop_is_next_driven(loop: VirtualLoop) -> None:
    called: list[str] = []
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(called.append, "hello"))
    thread.start()
    thread.join()
    assert called == []
    loop.settle()
    assert called == ["hello"]


def test_signal_handlers_are_kept_and_can_be_fired() -> None:
    async def main(loop: VirtualLoop) -> None:
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        loop.send_signal(signal.SIGTERM)
        await stopped.wait()
        assert loop.remove_signal_handler(signal.SIGTERM)
        assert not loop.remove_signal_handler(signal.SIGTERM)
        with pytest.raises(LifecycleError, match="no handler for SIGTERM"):
            loop.send_signal(signal.SIGTERM)

    run_virtual(main)


def test_only_literal_addresses_and_the_networks_own_names_resolve() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.network.add_name("broker-a", "10.0.0.7")
        found = await loop.getaddrinfo("10.1.2.3", 80)
        assert found == [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("10.1.2.3", 80))
        ]
        assert (await loop.getaddrinfo("Broker-A", 1))[0][4] == ("10.0.0.7", 1)
        assert (await loop.getaddrinfo("localhost", 1))[0][4] == ("127.0.0.1", 1)
        assert (await loop.getaddrinfo(b"::1", 1))[0][4] == ("::1", 1, 0, 0)
        with pytest.raises(socket.gaierror, match=r"example\.org"):
            await loop.getaddrinfo("example.org", 80)
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("10.0.0.1", 80, family=socket.AF_INET6)

    run_virtual(main)


def test_the_context_of_a_timer_is_kept() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")

    async def main(loop: VirtualLoop) -> None:
        seen: list[str] = []
        inside = contextvars.copy_context()
        inside.run(variable.set, "inside")
        loop.call_later(1, lambda: seen.append(variable.get()), context=inside)
        loop.call_later(2, lambda: seen.append(variable.get()))
        await asyncio.sleep(3)
        assert seen == ["inside", "outside"]

    run_virtual(main)


# -- driven step by step --------------------------------------------------------------------------


def test_advance_runs_what_is_due_and_stops(loop: VirtualLoop) -> None:
    fired: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(10)
            fired.append(loop.time())

    task = loop.create_task(tick())
    loop.settle()
    assert (fired, loop.time()) == ([], 0.0)
    loop.advance(25)
    assert (fired, loop.time()) == ([10.0, 20.0], 25.0)
    loop.advance("5s")
    assert (fired, loop.time()) == ([10.0, 20.0, 30.0], 30.0)
    loop.advance("2h")
    assert len(fired) == 723
    task.cancel()
    loop.settle()
    assert task.cancelled()


def test_advance_settles_what_happens_at_its_last_moment(loop: VirtualLoop) -> None:
    steps: list[str] = []

    async def chain() -> None:
        await asyncio.sleep(5)
        for number in range(100):
            await asyncio.sleep(0)
            steps.append(str(number))
        await loop.run_in_executor(None, steps.append, "handled")

    loop.create_task(chain())
    loop.advance(5)
    assert steps[-1] == "handled"


def test_a_blocking_call_in_a_listener_ends_before_the_advance_that_set_it_off(
    loop: VirtualLoop,
) -> None:
    events: list[str] = []

    async def send() -> None:
        await asyncio.sleep(5)
        events.append("sent")

    def listener() -> None:
        loop.drive(send())
        events.append("listener ends")

    async def deliver() -> None:
        await loop.run_in_executor(None, listener)
        events.append("acknowledged")

    async def meter() -> None:
        await loop.clock.advance(1)
        events.append("a second is over")

    tasks = [loop.create_task(deliver()), loop.create_task(meter())]
    loop.advance(1)
    # The call took longer than the second; what it set off is settled all the same.
    assert events[:3] == ["sent", "listener ends", "acknowledged"]
    assert events[3:] in ([], ["a second is over"])
    assert loop.time() == 5.0
    loop.settle()
    assert all(task.done() for task in tasks)


def test_a_blocking_call_may_itself_wait_for_time_to_pass(loop: VirtualLoop) -> None:
    async def main() -> None:
        await loop.run_in_executor(None, loop.drive, loop.clock.advance(3))

    loop.drive(main())
    assert loop.time() == 3.0


def test_a_loop_stopped_beforehand_runs_one_turn_and_keeps_its_time(loop: VirtualLoop) -> None:
    called: list[str] = []
    loop.call_later(10, called.append, "timer")
    loop.call_soon(called.append, "ready")
    loop.stop()
    loop.run_forever()
    loop.stop()
    loop.run_forever()
    assert (called, loop.time()) == (["ready"], 0.0)


def test_stopping_the_loop_from_inside_a_blocking_call_stops_the_outer_run(
    loop: VirtualLoop,
) -> None:
    async def stop_then_sleep() -> None:
        loop.stop()
        await asyncio.sleep(2)

    loop.run_in_executor(None, loop.drive, stop_then_sleep())
    loop.run_forever()
    assert loop.time() == 2.0


def test_advance_with_nothing_to_do_only_moves_time(loop: VirtualLoop) -> None:
    loop.advance(3.5)
    assert loop.time() == 3.5


def test_advance_refuses_what_is_no_duration(loop: VirtualLoop) -> None:
    with pytest.raises(InvalidArgument, match="is not a duration"):
        loop.advance("soon")


def test_a_coroutine_may_advance_the_clock_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        fired: list[float] = []
        for moment in (10, 20, 30, 30.001):
            loop.call_later(moment, lambda: fired.append(loop.time()))
        await loop.clock.advance("30s")
        assert (fired, loop.time()) == ([10.0, 20.0, 30.0], 30.0)

    run_virtual(main)


def test_drive_from_outside_runs_a_coroutine_to_its_end(loop: VirtualLoop) -> None:
    async def slow() -> str:
        await asyncio.sleep(100)
        return "done"

    assert loop.drive(slow()) == "done"
    assert loop.time() == 100.0


def test_the_loop_can_live_in_a_thread_and_be_steered_from_another() -> None:
    loop = VirtualLoop()
    with concurrent.futures.ThreadPoolExecutor(1) as owner:
        fired: list[float] = []
        owner.submit(loop.call_later, 60, lambda: fired.append(loop.time())).result()
        owner.submit(loop.advance, 59).result()
        assert fired == []
        owner.submit(loop.advance, 1).result()
        assert fired == [60.0]
        owner.submit(loop.close).result()


# -- the clock ------------------------------------------------------------------------------------


def test_the_virtual_clock_goes_with_the_loop() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = loop.clock
        assert (clock.time(), clock.monotonic()) == (DEFAULT_START, 0.0)
        await clock.sleep(0.003)
        assert clock.time_ms() == int(DEFAULT_START * 1000) + 3
        called: list[str] = []
        clock.call_later(1, called.append, "called")
        await clock.sleep(1)
        assert called == ["called"]

    run_virtual(main)


def test_every_step_of_a_tenth_gives_the_right_millisecond() -> None:
    async def main(loop: VirtualLoop) -> None:
        begin = loop.clock.time_ms()
        for step in range(1, 2000):
            await asyncio.sleep(0.1)
            assert loop.clock.time_ms() == begin + 100 * step

    run_virtual(main)


def test_a_jump_of_the_wall_clock_leaves_timers_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = loop.clock
        other_host = VirtualClock(loop)
        clock.jump("-1h")
        assert clock.time() == DEFAULT_START - 3600
        assert other_host.time() == DEFAULT_START
        await clock.sleep(10)
        assert clock.monotonic() == 10.0
        clock.jump("2h")
        assert clock.time_ms() == int(DEFAULT_START * 1000) + 3600_000 + 10_000

    run_virtual(main)


def test_a_run_may_start_at_another_time() -> None:
    async def main(loop: VirtualLoop) -> int:
        return loop.clock.time_ms()

    assert run_virtual(main, start=1_000.5) == 1_000_500
