"""Ten thousand open receipts of one queue: no step depends on their number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from tests.support.asking import put_topic
from tests.support.popping import ack, pop
from tests.support.stage import Stage, in_virtual_time

from penstock.broker.broker import Broker
from penstock.broker.handlers.consume_stats import get_consume_stats
from penstock.broker.metrics.lag import group_lag
from penstock.broker.pop.acknowledging import Receipt, acknowledge, change_invisible_time
from penstock.broker.pop.check_points import CheckPoint, CheckPoints
from penstock.broker.pop.popping import PopAsk, Popped
from penstock.broker.pop.popping import pop as take
from penstock.protocol.headers.admin import GetConsumeStats
from penstock.store import Draft

ROOMY = {"mapped_file_size_commit_log": 16 << 20, "mapped_file_size_consume_queue": 600_000}


def calls_of(work: Callable[[], object]) -> int:
    """How many calls of functions, also of those in C, a piece of work makes."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def fill(broker: Broker, count: int) -> None:
    for number in range(count):
        broker.state.storage.append(Draft("T", 0, b"%05d" % number, b""))
    broker.state.storage.write()


def receipt_of(popped: Popped) -> Receipt:
    (queue,) = popped.queues
    return Receipt(
        "g", "T", 0, queue.offsets[0], popped.pop_time, popped.invisible_ms, popped.revive_queue_id
    )


async def costs(tmp_path: Path, receipts: int) -> dict[str, int]:
    """The calls of each step while so many receipts are open."""
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store=ROOMY, pop_inflight_message_threshold=100_000)
        state = broker.state
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        fill(broker, receipts + 40)
        ask = PopAsk("g", "T", invisible_ms=600_000, starts_first=True)
        while state.pop.points.count < receipts:
            take(state, ask._replace(max_messages=min(32, receipts - state.pop.points.count)))
            state.storage.write()
        one = ask._replace(max_messages=1)
        found: dict[str, list[int]] = {}
        popped: list[Popped] = []

        def change() -> None:
            changed = change_invisible_time(state, receipt_of(popped[-1]), 90_000)
            popped[-1] = popped[-1]._replace(pop_time=changed.pop_time)

        for _ in range(5):
            steps: dict[str, Callable[[], object]] = {
                "pop": lambda: popped.append(take(state, one)),
                "change": change,
                "acknowledge": lambda: acknowledge(state, receipt_of(popped[-1])),
                "lag": lambda: list(get_consume_stats(state, GetConsumeStats("g", "T"))),
                "metrics": lambda: group_lag(state, "g", "T"),
                "due": lambda: state.pop.points.next_due,
                "journal": lambda: state.pop.journal.keep_up(),
            }
            for name, work in steps.items():
                found.setdefault(name, []).append(calls_of(work))
            state.storage.write()
        assert state.pop.points.count == receipts
        return {name: min(counts) for name, counts in found.items()}


@pytest.mark.spec("P47")
@in_virtual_time
async def test_the_cost_of_a_step_does_not_depend_on_the_open_receipts(tmp_path: Path) -> None:
    few = await costs(tmp_path / "few", 1_000)
    many = await costs(tmp_path / "many", 10_000)
    assert few.keys() == many.keys()
    for step, calls in many.items():
        assert calls <= 1.2 * few[step] + 10, (step, few[step], calls)


@pytest.mark.spec("P47", "P48")
@in_virtual_time
async def test_ten_thousand_receipts_due_at_once_come_again_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store=ROOMY, pop_inflight_message_threshold=100_000)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"long")
        (long,) = await pop(wire, count=1, invisible=7200)
        fill(broker, 10_000)
        count = 0
        while got := await pop(wire, invisible=60):
            count += len(got)
        assert count == 10_000
        await stage.clock.sleep(60.5)
        again: list[bytes] = []
        while got := await pop(wire, invisible=6000):
            again += [one.body for one in got]
        assert sorted(again) == [b"%05d" % number for number in range(10_000)]
        assert (await ack(wire, long)).code == 0


def test_the_lowest_open_offset_is_that_of_a_search() -> None:
    points = CheckPoints()
    queue = points.queue("g", "T", 0)
    for number in range(300):
        start = (number * 37) % 200
        point = CheckPoint(queue, start, range(start, start + 3), number, 60_000, 0)
        points.add(point)
        for offset in range(start, start + number % 4):
            points.finish(queue, number, offset)
        if number % 5 == 0:
            early = queue.receipts[next(iter(queue.receipts))]
            for offset in early.open_offsets:
                points.finish(queue, early.pop_time, offset)
        lowest = min((offset for _, offset in queue.receipts), default=None)
        if number % 3:
            assert queue.lowest == lowest
    for (pop_time, offset), _ in list(queue.receipts.items()):
        points.finish(queue, pop_time, offset)
    assert queue.lowest is None
