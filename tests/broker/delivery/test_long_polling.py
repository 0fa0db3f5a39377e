"""Pulls that wait: woken by messages, ended by their time, forgotten with their connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.asking import (
    bodies,
    commit,
    committed,
    ext,
    put_group,
    put_topic,
)
from tests.support.fake_clock import FakeClock
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.delivery.held_pulls import HeldPull, HeldPulls
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.testing.eventually import eventually

FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND


async def hold(
    stage: Stage, wire: Wire, offset: int = 0, *, ms: int = 15_000, expression: str = "*"
) -> asyncio.Future[Command]:
    """A pull of T that the broker holds."""
    answer = wire.start_pull("g", "T", offset, hold_ms=ms, expression=expression)
    await stage.clock.sleep(1)
    assert not answer.done()
    return answer


# Over a socket


@pytest.mark.spec("S1")
@in_virtual_time
async def test_a_held_pull_is_answered_as_soon_as_a_message_is_stored(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        consumer, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T", 2)
        held = await hold(stage, consumer)
        await stage.clock.sleep(10)
        # A message of another queue is none of its business.
        await producer.send("T", b"elsewhere", queue_id=1)
        before = stage.clock.monotonic()
        assert not held.done()
        await producer.send("T", b"news")
        answer = await held
        assert bodies(answer) == [b"news"]
        assert ext(answer)["nextBeginOffset"] == "1"
        # Neither a scan nor a tick was waited for.
        assert stage.clock.monotonic() - before < HeldPulls.TICK


@pytest.mark.spec("S1", "S59")
@in_virtual_time
async def test_a_held_pull_is_answered_with_nothing_when_its_time_is_up(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await wire.send("T")
        begin = stage.clock.monotonic()
        answer = await wire.start_pull("g", "T", 1, hold_ms=15_000)
        waited = stage.clock.monotonic() - begin
        assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
        assert ext(answer)["nextBeginOffset"] == "1"
        assert 15.0 <= waited < 20.0


@in_virtual_time
async def test_short_polling_waits_a_second(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(long_polling_enable=False))
        await put_topic(wire, "T")
        begin = stage.clock.monotonic()
        assert (await wire.start_pull("g", "T", 0, hold_ms=15_000)).code == NOT_FOUND
        assert 1.0 <= stage.clock.monotonic() - begin < 2.0


@in_virtual_time
async def test_no_pull_is_held_for_longer_than_a_client_waits(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T")
        for ms in (1 << 62, -5):
            answer = await wire.start_pull("g", "T", 0, hold_ms=ms)
            assert answer.code == NOT_FOUND
        assert stage.clock.monotonic() < 120


@in_virtual_time
async def test_a_tag_filter_sleeps_through_other_tags(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T")
        held = await hold(stage, wire, expression="mine")
        await producer.send("T", b"other", properties={"TAGS": "other"})
        await producer.send("T", b"none")
        await stage.clock.sleep(1)
        assert not held.done()
        await producer.send("T", b"mine", properties={"TAGS": "mine"})
        answer = await held
        assert bodies(answer) == [b"mine"]
        assert ext(answer)["nextBeginOffset"] == "3"


@in_virtual_time
async def test_an_sql_filter_sleeps_through_other_properties(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T")
        held = wire.start_pull(
            "g", "T", 0, hold_ms=15_000, expression="n > 5", expression_type="SQL92"
        )
        for number in ("1", "5"):
            await producer.send("T", number.encode(), properties={"n": number})
        await stage.clock.sleep(1)
        assert not held.done()
        await producer.send("T", b"6", properties={"n": "6"})
        assert bodies(await held) == [b"6"]


@in_virtual_time
async def test_a_pull_whose_filter_rejected_messages_is_answered_within_seconds(
    tmp_path: Path,
) -> None:
    # So that the consumer can commit beyond them.
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T")
        held = await hold(stage, wire, expression="mine")
        await producer.send("T", properties={"TAGS": "other"})
        begin = stage.clock.monotonic()
        answer = await held
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert ext(answer)["nextBeginOffset"] == "1"
        assert stage.clock.monotonic() - begin <= 5 + HeldPulls.TICK


@in_virtual_time
async def test_one_message_wakes_every_group_that_waits(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        producer = await stage.connect(broker)
        await put_topic(producer, "T")
        consumers = [await stage.connect(broker) for _ in range(5)]
        held = [
            wire.start_pull(f"g{number}", "T", 0, hold_ms=15_000)
            for number, wire in enumerate(consumers)
        ]
        await eventually(lambda: len(broker.state.held) == 5)
        await producer.send("T", b"for all")
        assert [bodies(await one) for one in held] == [[b"for all"]] * 5
        assert len(broker.state.held) == 0


@in_virtual_time
async def test_pulls_of_many_queues_wait_on_one_connection(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T", 8)
        held = [wire.start_pull("g", "T", 0, queue_id=q, hold_ms=15_000) for q in range(8)]
        await producer.send("T", b"five", queue_id=5)
        assert bodies(await held[5]) == [b"five"]
        # The connection serves other requests, too.
        assert (await wire.send("T", b"zero", queue_id=0)).code == FOUND
        assert bodies(await held[0]) == [b"zero"]
        assert sum(one.done() for one in held) == 2


@in_virtual_time
async def test_a_held_pull_commits_when_it_comes_and_not_again(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await wire.send("T")
        held = wire.start_pull("g", "T", 1, hold_ms=15_000, commit=1)
        await eventually(lambda: len(broker.state.held) == 1)
        assert await committed(producer, "g", "T") == 1
        await commit(producer, "g", "T", 0)
        await producer.send("T")
        assert (await held).code == FOUND
        assert await committed(producer, "g", "T") == 0


@in_virtual_time
async def test_what_is_forbidden_meanwhile_is_not_answered(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(producer, "T")
        held = await hold(stage, wire)
        await put_group(producer, SubscriptionGroupConfig("g", consume_enable=False))
        await producer.send("T", b"secret")
        answer = await held
        assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")


@in_virtual_time
async def test_a_reset_wakes_the_pulls_of_its_queue(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        for _ in range(5):
            await producer.send("T")
        held = await hold(stage, wire, 5)
        broker.state.offsets.reset("g", "T", 0, 2)
        broker.state.held.wake(("T", 0))
        answer = await held
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert ext(answer)["nextBeginOffset"] == "2"
        # The reset is answered once; from then on the queue is read as usual.
        assert len(bodies(await wire.pull("g", "T", 2))) == 3


@in_virtual_time
async def test_a_closed_connection_takes_its_pulls_along(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, other = await stage.connect(broker), await stage.connect(broker)
        await put_topic(other, "T", 4)
        for queue_id in range(4):
            wire.start_pull("g", "T", 0, queue_id=queue_id, hold_ms=15_000)
        kept = other.start_pull("g", "T", 0, hold_ms=15_000)
        await eventually(lambda: len(broker.state.held) == 5)
        await wire.close()
        await eventually(lambda: len(broker.state.held) == 1)
        assert not kept.done()


@in_virtual_time
async def test_a_broker_that_stops_answers_what_it_holds(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        held = await hold(stage, wire)
        await broker.stop()
        assert (await held).code == NOT_FOUND


async def test_a_one_way_pull_is_neither_answered_nor_a_problem(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        flags = PullFlag.SUSPEND | PullFlag.SUBSCRIPTION
        wire.oneway(11, PullMessage("g", "T", 0, 0, 32, flags, 0, 15_000, 0, "*"))
        assert (await wire.send("T")).code == FOUND


# The table of held pulls by itself


QUEUE = ("T", 0)


class Answers:
    """Pulls that note when they were answered."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.at: dict[str, float] = {}

    def pull(self, name: str, offset: int = 0, deadline: float = 15.0) -> HeldPull:
        def answer() -> None:
            assert name not in self.at, f"{name} was answered twice"
            self.at[name] = self.clock.monotonic()

        return HeldPull(QUEUE, offset, deadline, answer)


async def test_deadlines_are_kept_within_a_tick_in_any_order() -> None:
    clock = FakeClock()
    answers = Answers(clock)
    async with HeldPulls(clock) as held:
        for name, deadline in (("late", 9.0), ("early", 1.0), ("middle", 4.5)):
            held.hold(answers.pull(name, deadline=deadline))
        await clock.advance(20)
        assert len(held) == 0
    assert answers.at == {
        "early": pytest.approx(1.0, abs=HeldPulls.TICK),
        "middle": pytest.approx(4.5, abs=HeldPulls.TICK),
        "late": pytest.approx(9.0, abs=HeldPulls.TICK),
    }


async def test_only_pulls_before_a_message_are_woken_by_it() -> None:
    clock = FakeClock()
    answers = Answers(clock)
    held = HeldPulls(clock)
    held.hold(answers.pull("behind", offset=3))
    held.hold(answers.pull("at", offset=7))
    held.hold(answers.pull("beyond", offset=8))
    held.arrived("T", 0, 8, 0, 0, b"")
    assert set(answers.at) == {"behind", "at"}
    assert held.waits_for(QUEUE)
    held.arrived("T", 1, 99, 0, 0, b"")
    assert set(answers.at) == {"behind", "at"}


async def test_one_answer_that_fails_does_not_delay_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    answers = Answers(clock)
    held = HeldPulls(clock)

    def fail() -> None:
        raise RuntimeError("this pull cannot be answered")

    held.hold(HeldPull(QUEUE, 0, 15.0, fail))
    held.hold(answers.pull("good"))
    held.arrived("T", 0, 1, 0, 0, b"")
    assert set(answers.at) == {"good"}
    assert "held pull not answered" in caplog.text
    assert len(held) == 0


async def test_answered_pulls_are_forgotten_long_before_their_deadline() -> None:
    clock = FakeClock()
    held = HeldPulls(clock)
    for number in range(10_000):
        held.hold(HeldPull(QUEUE, number, 1e9, lambda: None))
        held.arrived("T", 0, number + 1, 0, 0, b"")
    assert len(held) == 0
    assert len(held._by_deadline) < 3000
    assert not held.waits_for(QUEUE)


async def test_there_is_room_for_so_many_pulls_and_no_more() -> None:
    def pull(queue_id: int) -> HeldPull:
        return HeldPull(("T", queue_id), 0, 15.0, lambda: None)

    held = HeldPulls(FakeClock(), max_held=3, max_held_at_queue=2)
    held.hold(pull(0))
    assert held.has_room(("T", 0))
    held.hold(pull(0))
    assert not held.has_room(("T", 0))
    assert held.has_room(("T", 1))
    held.hold(pull(1))
    assert not held.has_room(("T", 2))
    held.wake(("T", 0))
    assert held.has_room(("T", 0))


@in_virtual_time
async def test_a_pull_without_room_to_wait_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        monkeypatch.setattr(broker.state.held, "_max_held_at_queue", 2)
        first, second = await hold(stage, wire), await hold(stage, wire)
        answer = await wire.start_pull("g", "T", 0, hold_ms=15_000)
        assert answer.code == NOT_FOUND
        assert ext(answer)["nextBeginOffset"] == "0"
        await wire.send("T", b"news")
        assert bodies(await first) == bodies(await second) == [b"news"]
        await hold(stage, wire, 1)
