"""Where handlers run: threads and loops, bursts there and back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.consuming.executors import CoroutineExecutor, InlineExecutor, ThreadExecutor
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.message_batches import batches_of
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.session.loop_thread import LoopThread
from penstock.model import MessageQueue, StoredMessage
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import run_virtual

QUEUE = MessageQueue("T", "broker-a", 0)
LISTENER = Listener("T", lambda message: None, takes_batch=False)


def jobs(count: int) -> list[Job]:
    queue = ProcessQueue(QUEUE, 0.0)
    messages = [StoredMessage("T", b"x", b"", QUEUE, offset) for offset in range(count)]
    return [Job(queue, batch, LISTENER, "g") for batch in batches_of(messages, 1)]


class Home:
    """Collects finished jobs, and on which thread they came home."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bursts = 0
        self.threads: set[int] = set()

    def __call__(self, finished: list[Job]) -> None:
        self.jobs += finished
        self.bursts += 1
        self.threads.add(threading.get_ident())


async def test_threads_run_jobs_and_bring_them_home_in_bursts() -> None:
    home = Home()
    ran: set[int] = set()
    pool = ThreadExecutor(
        asyncio.get_running_loop(),
        lambda job: ran.add(threading.get_ident()),
        home,
        threads=20,
        name="pool",
    )
    work = jobs(2000)
    for start in range(0, 2000, 32):
        assert pool.submit(work[start : start + 32]) == len(work[start : start + 32])
    await eventually(lambda: len(home.jobs) == 2000)
    assert home.threads == {threading.get_ident()}
    assert threading.get_ident() not in ran
    assert home.bursts < 500
    await pool.close()


async def test_jobs_that_block_spread_over_all_threads_and_no_more() -> None:
    home = Home()
    release = threading.Event()
    running = threading.Semaphore(0)

    def block(job: Job) -> None:
        running.release()
        release.wait(10)

    pool = ThreadExecutor(asyncio.get_running_loop(), block, home, threads=5, name="pool")
    pool.submit(jobs(12))
    await eventually(lambda: len(pool.running) == 5)
    # The others wait and can be taken back.
    assert len(pool.discard()) == 7
    release.set()
    await eventually(lambda: len(home.jobs) == 5)
    assert not pool.running
    await pool.close()


async def test_a_single_slow_job_does_not_hold_up_the_next_submission() -> None:
    home = Home()
    release = threading.Event()

    def first_blocks(job: Job) -> None:
        if job.messages[0].queue_offset == 0:
            release.wait(10)

    pool = ThreadExecutor(asyncio.get_running_loop(), first_blocks, home, threads=2, name="pool")
    first, *others = jobs(5)
    pool.submit([first])
    await eventually(lambda: pool.running == [first])
    pool.submit(others)
    await eventually(lambda: len(home.jobs) == 4)
    release.set()
    await eventually(lambda: len(home.jobs) == 5)
    await pool.close()


async def test_a_call_that_raises_ends_neither_the_thread_nor_the_job() -> None:
    home = Home()

    def raises(job: Job) -> None:
        raise SystemExit(1)

    pool = ThreadExecutor(asyncio.get_running_loop(), raises, home, threads=1, name="pool")
    pool.submit(jobs(3))
    await eventually(lambda: len(home.jobs) == 3)
    await pool.close()


@pytest.mark.spec("S68")
async def test_a_full_pool_takes_only_what_there_is_room_for() -> None:
    home = Home()
    release = threading.Event()

    def block(job: Job) -> None:
        release.wait(10)

    pool = ThreadExecutor(
        asyncio.get_running_loop(),
        block,
        home,
        threads=1,
        name="pool",
        task_limit=3,
    )
    assert pool.submit(jobs(1)) == 1
    await eventually(lambda: len(pool.running) == 1)
    assert pool.submit(jobs(5)) == 3
    assert pool.submit(jobs(5)) == 0
    release.set()
    await eventually(lambda: len(home.jobs) == 4)
    await pool.close()
    assert pool.submit(jobs(1)) == 0


async def test_coroutines_run_on_their_loop_up_to_the_limit() -> None:
    home = Home()
    handlers = LoopThread("handlers")
    running = most = 0
    loops: set[asyncio.AbstractEventLoop] = set()

    async def call(job: Job) -> None:
        nonlocal running, most
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    pool = CoroutineExecutor(
        asyncio.get_running_loop(), handlers.loop, call, home, limit=8, name="pool"
    )
    pool.submit(jobs(50))
    await eventually(lambda: len(home.jobs) == 50)
    assert most == 8
    assert loops == {handlers.loop}
    assert home.threads == {threading.get_ident()}
    await pool.close()
    handlers.close()


async def test_closing_cancels_coroutines_and_takes_no_more() -> None:
    home = Home()
    handlers = LoopThread("handlers")
    cancelled = threading.Event()

    async def call(job: Job) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    loop = asyncio.get_running_loop()
    pool = CoroutineExecutor(loop, handlers.loop, call, home, limit=2, name="pool")
    pool.submit(jobs(3))
    await eventually(lambda: len(pool.running) == 2)
    await pool.close()
    await eventually(cancelled.is_set)
    assert pool.submit(jobs(1)) == 0
    handlers.close()


async def test_a_loop_of_handlers_that_is_gone_takes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = LoopThread("handlers")
    handlers.close()

    async def call(job: Job) -> None:
        """Never called."""

    loop = asyncio.get_running_loop()
    pool = CoroutineExecutor(loop, handlers.loop, call, Home(), limit=2, name="pool")
    assert pool.submit(jobs(3)) == 0
    assert "event loop of the handlers is closed" in caplog.text
    await pool.close()


def test_on_a_virtual_loop_plain_handlers_are_events_of_it() -> None:
    async def main() -> None:
        home = Home()
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        pool = InlineExecutor(
            loop, lambda job: seen.append(job.messages[0].queue_offset), home, threads=2
        )
        assert pool.submit(jobs(5)) == 5
        assert len(pool.discard()) == 3
        await asyncio.sleep(1)
        assert seen == [0, 1]
        assert len(home.jobs) == 2
        assert not pool.running
        await pool.close()
        assert pool.submit(jobs(1)) == 0

    run_virtual(main())


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
async def test_handing_over_costs_little_beside_calling(kind: str) -> None:
    """A no-op through the executor, compared with the same no-ops through call_soon_threadsafe."""
    loop = asyncio.get_running_loop()
    count = 5_000
    work = jobs(count)

    async def through(submit: Callable[[], Awaitable[None]]) -> float:
        begin = time.perf_counter()
        await submit()
        return time.perf_counter() - begin

    async def one_by_one() -> None:
        done = 0
        finished = asyncio.Event()

        def home() -> None:
            nonlocal done
            done += 1
            if done == count:
                finished.set()

        def run_all() -> None:
            for _ in work:
                loop.call_soon_threadsafe(home)

        threading.Thread(target=run_all).start()
        await finished.wait()

    home = Home()
    if kind == "threads":
        pool: ThreadExecutor | CoroutineExecutor = ThreadExecutor(
            loop, lambda job: None, home, threads=20, name="pool"
        )
    else:

        async def call(job: Job) -> None:
            """Done at once."""

        pool = CoroutineExecutor(loop, loop, call, home, limit=20, name="pool")

    async def in_bursts() -> None:
        for start in range(0, count, 32):
            pool.submit(work[start : start + 32])
        await eventually(lambda: len(home.jobs) == count, interval=0.001)

    baseline = await through(one_by_one)
    assert await through(in_bursts) < 20 * baseline
    await pool.close()
