"""Timer messages through a broker: when they arrive, as what, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import all_records, ext, properties, send_back
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.broker.timers import timer_service
from penstock.broker.timers.preparing import LocatedRun, Prepared, prepare_run
from penstock.broker.timers.timer_shape import TimerShape
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.timers import TimerMetricsTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.recall_handles import decode_handle
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import Record
from penstock.runtime.clock import Clock
from penstock.testing.clock import VirtualClock
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

OK = ResponseCode.SUCCESS


def delivered(broker: Broker, queue_id: int = 0, topic: str = "T") -> int:
    return broker.state.storage.max_offset(topic, queue_id)


async def at_full_second(clock: Clock) -> int:
    """Wait for the start of a second of the wall clock."""
    await clock.sleep((1000 - clock.time_ms() % 1000) / 1000)
    return clock.time_ms()


async def timed(wire: Wire, body: bytes = b"later", *, queue_id: int = 0, **keys: object) -> str:
    """Send a timer message; return its recall handle."""
    given = {key: str(value) for key, value in keys.items()}
    answer = await wire.send("T", body, queue_id=queue_id, properties=given)
    assert answer.code == OK, answer.remark
    return ext(answer).get("recallHandle", "")


def arrival_ms(record: Record) -> int:
    return int(properties(record)["TIMER_DEQUEUE_MS"])


@pytest.mark.spec("Y1")
@in_virtual_time
async def test_a_timer_message_arrives_in_its_second_and_never_early(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for queue, key in enumerate(("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")):
            now = stage.clock.time_ms()
            due = {"TIMER_DELAY_SEC": 5, "TIMER_DELAY_MS": 5000, "TIMER_DELIVER_MS": now + 5000}
            # Of several keys the first counts.
            keys = {"TIMER_DELIVER_MS": str(now + 60_000), key: str(due[key])}
            await wire.send("T", queue_id=queue, properties=keys)
            await stage.clock.sleep(4.99)
            assert delivered(broker, queue) == 0
            await stage.clock.sleep(1.11)
            [record] = await all_records(wire, "T", queue)
            assert 5000 <= record.store_timestamp - now <= 6100
            assert now + 5000 <= arrival_ms(record) <= record.store_timestamp


@pytest.mark.spec("Y2")
@in_virtual_time
async def test_a_delay_level_comes_before_a_timer(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await timed(wire, DELAY=1, TIMER_DELAY_SEC=60)
        await eventually(lambda: delivered(broker) == 1, 3)
        [record] = await all_records(wire, "T")
        assert "TIMER_DELAY_SEC" not in properties(record)
        assert broker.state.storage.max_offset(TIMER_TOPIC, 0) == 0


@pytest.mark.spec("Y3")
@in_virtual_time
async def test_a_time_that_has_passed_is_stored_at_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        now = stage.clock.time_ms()
        assert not await timed(wire, TIMER_DELIVER_MS=now - 1)
        assert not await timed(wire, TIMER_DELAY_SEC=0)
        assert not await timed(wire, TIMER_DELAY_MS=-1, TIMER_OUT_MS=5)
        found = await all_records(wire, "T")
        assert len(found) == 3
        assert not any("TIMER_OUT_MS" in properties(record) for record in found)


@pytest.mark.spec("Y4")
@in_virtual_time
async def test_three_days_are_the_longest_delay(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await timed(wire, TIMER_DELAY_SEC=259_200)
        answer = await wire.send("T", properties={"TIMER_DELAY_SEC": "259201"})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (answer.remark or "").startswith(
            "timer message illegal, the delay time should not be bigger than the max delay "
            "259200000ms; or if set del msg"
        )


@pytest.mark.spec("Y5")
@pytest.mark.parametrize("key", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["soon", "1.5", "9" * 19, "9" * 40])
async def test_a_value_that_is_no_time_is_refused(
    broker: Broker, wire: Wire, key: str, value: str
) -> None:
    answer = await wire.send("T", properties={key: value})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert delivered(broker) == 0


@pytest.mark.spec("Y6")
@in_virtual_time
async def test_the_answer_counts_timer_messages_of_all_topics(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        for offset, (topic, queue_id) in enumerate((("T", 2), ("U", 3), ("T", 0))):
            answer = await wire.send(topic, queue_id=queue_id, properties={"TIMER_DELAY_SEC": "60"})
            assert ext(answer)["queueOffset"] == str(offset)
            assert ext(answer)["queueId"] == str(queue_id)


@pytest.mark.spec("Y7")
@pytest.mark.spec("Y8")
@in_virtual_time
async def test_a_delivered_message_is_what_was_sent_with_its_times(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        full = await at_full_second(stage.clock) + 5000
        for deliver, slot in ((full, full - 1000), (full + 1, full), (full + 999, full)):
            sent = await wire.send(
                "T",
                b"body",
                queue_id=3,
                properties={
                    "TIMER_DELIVER_MS": str(deliver), "TAGS": "A", "KEYS": "k", "UNIQ_KEY": "U",
                },
                flag=5,
                born_timestamp=99,
            )  # fmt: skip
            handle = decode_handle(ext(sent)["recallHandle"])
            assert handle.time_ms == slot + 1
        await eventually(lambda: delivered(broker, 3) == 3, 10)
        for record, deliver in zip(
            await all_records(wire, "T", 3), (full, full + 1, full + 999), strict=True
        ):
            assert (record.body, record.flag, record.born_timestamp) == (b"body", 5, 99)
            seen = properties(record)
            assert (seen["TAGS"], seen["KEYS"], seen["UNIQ_KEY"]) == ("A", "k", "U")
            assert (seen["REAL_TOPIC"], seen["REAL_QID"]) == ("T", "3")
            assert int(seen["TIMER_OUT_MS"]) < deliver <= int(seen["TIMER_DEQUEUE_MS"])
            assert int(seen["TIMER_ENQUEUE_MS"]) % 1000 == 0


@pytest.mark.spec("Y9")
@in_virtual_time
async def test_a_timer_works_although_the_sender_set_the_brokers_property(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        now = stage.clock.time_ms()
        await timed(wire, TIMER_DELAY_SEC=5, TIMER_OUT_MS=1)
        await eventually(lambda: delivered(broker) == 1, 10)
        [record] = await all_records(wire, "T")
        assert record.store_timestamp >= now + 5000


@pytest.mark.spec("Y10")
@in_virtual_time
async def test_messages_of_one_second_keep_the_order_in_which_they_were_sent(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        due = await at_full_second(stage.clock) + 3000
        # More than are read, enqueued or delivered at once.
        for number in range(700):
            await timed(wire, str(number).encode(), TIMER_DELIVER_MS=due)
        await eventually(lambda: delivered(broker) == 700, 10)
        found = await all_records(wire, "T")
        assert [int(record.body) for record in found] == list(range(700))


@pytest.mark.parametrize("is_in_reach", [True, False])
@pytest.mark.parametrize("most_bytes", [4 << 20, 5000])
@in_virtual_time
async def test_messages_side_by_side_are_delivered_as_one_run_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_reach: bool, most_bytes: int
) -> None:
    monkeypatch.setattr(timer_service, "_DELIVER_BYTES", most_bytes)
    runs: list[int] = []

    def prepare(run: LocatedRun, *limits: int) -> Prepared | None:
        runs.append(len(run.units.positions))
        return prepare_run(run, *limits)

    monkeypatch.setattr(timer_service, "prepare_run", prepare)
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        due = await at_full_second(stage.clock) + 3000
        for number in range(100, 140):
            await timed(wire, str(number).encode(), TIMER_DELIVER_MS=due)
        await eventually(lambda: broker.state.timers.pending == 40, 3)
        commit_log = broker.state.storage.store.commit_log
        slice_log = commit_log.slice
        if not is_in_reach:
            # As if a part of a run were gone: the messages that are left are delivered.
            monkeypatch.setattr(
                *(commit_log, "slice"),
                lambda position, size: None if size > 5000 else slice_log(position, size),
            )
        await eventually(lambda: delivered(broker) == 40, 10)
        monkeypatch.setattr(commit_log, "slice", slice_log)
        found = await all_records(wire, "T")
        assert [int(record.body) for record in found] == list(range(100, 140))
        assert runs == ([40] if is_in_reach and most_bytes > 5000 else [])


@pytest.mark.spec("Y11")
@in_virtual_time
async def test_a_timer_message_that_fails_is_retried_after_the_delay_of_retries(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await timed(wire, TIMER_DELAY_SEC=100)
        await eventually(lambda: delivered(broker) == 1, 110)
        [record] = await all_records(wire, "T")
        assert (await send_back(wire, "g", record.log_position)).code == OK
        await eventually(lambda: delivered(broker, topic="%RETRY%g") == 1, 12)


@pytest.mark.spec("Y12")
@in_virtual_time
async def test_a_batch_with_a_timer_is_refused_and_timers_go_on(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        inner = encode_batch([BatchItem(b"b", b"TIMER_DELAY_SEC\x011\x02")])
        plain = encode_batch([BatchItem(b"b")])
        for body, envelope in ((inner, {}), (plain, {"TIMER_DELAY_SEC": "1"})):
            answer = await wire.send("T", body, batch=True, properties=envelope)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        await timed(wire, TIMER_DELAY_SEC=1)
        await eventually(lambda: delivered(broker) == 1, 3)


@pytest.mark.spec("Y13")
async def test_the_timer_topic_takes_no_sends(broker: Broker, wire: Wire) -> None:
    answer = await wire.send(TIMER_TOPIC, b"x")
    assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.spec("Y15")
@in_virtual_time
async def test_the_largest_message_is_delivered(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"max_message_size": 100_000})
        wire = await stage.connect(broker)
        await timed(wire, b"x" * 100_000, TIMER_DELAY_SEC=1)
        answer = await wire.send("T", b"x" * 100_001, properties={"TIMER_DELAY_SEC": "1"})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        # Properties that leave no room for those of a delivery are refused at once, too.
        answer = await wire.send(
            "T", properties={"TIMER_DELAY_SEC": "1", "p": "x" * (32_767 - 200)}
        )
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        await eventually(lambda: delivered(broker) == 1, 3)


@pytest.mark.spec("Y17")
@in_virtual_time
async def test_a_crowded_second_refuses_more(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(timer_congest_num_each_slot=10)
        wire = await stage.connect(broker)
        due = stage.clock.time_ms() + 60_000
        refusals = []
        for number in range(200):
            answer = await wire.send("T", properties={"TIMER_DELIVER_MS": str(due)})
            if answer.code != OK:
                assert "flow control" in (answer.remark or "")
                assert answer.code == ResponseCode.SYSTEM_ERROR
                refusals.append(number)
            await stage.clock.sleep(0.2)  # Until it is in the wheel.
        assert min(refusals) > 10
        assert broker.state.timers.pending == 20


@pytest.mark.spec("Y29")
@in_virtual_time
async def test_a_clock_that_jumps_delivers_nothing_early_or_twice(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        clock = stage.clock
        assert isinstance(clock, VirtualClock)
        await timed(wire, b"first", TIMER_DELAY_SEC=5)
        await timed(wire, b"second", TIMER_DELAY_SEC=1800)
        await eventually(lambda: delivered(broker) == 1, 10)
        clock.jump(-3600)
        await timed(wire, b"third", TIMER_DELAY_SEC=5)
        await clock.sleep(4.9)
        assert delivered(broker) == 1
        await eventually(lambda: delivered(broker) == 2, 2)
        clock.jump(3600 + 3600)
        await eventually(lambda: delivered(broker) == 3, 2)
        await clock.sleep(10)
        assert [record.body for record in await all_records(wire, "T")] == [
            b"first", b"third", b"second",
        ]  # fmt: skip


@pytest.mark.spec("Y18")
@in_virtual_time
async def test_a_message_beyond_the_window_is_stored_again_on_its_way(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(timer_roll_window_slot=720)
        wire = await stage.connect(broker)
        now = stage.clock.time_ms()
        for seconds in (750, 1050, 600):
            await timed(wire, str(seconds).encode(), TIMER_DELAY_SEC=seconds)
        await stage.clock.sleep(365)
        wire = await stage.connect(broker)
        parked = await all_records(wire, TIMER_TOPIC)
        assert [record.body for record in parked] == [b"750", b"1050", b"600", b"750"]
        assert properties(parked[3])["TIMER_ROLL_TIMES"] == "1"
        await stage.clock.sleep(360)
        wire = await stage.connect(broker)
        parked = await all_records(wire, TIMER_TOPIC)
        assert [record.body for record in parked][4:] == [b"1050"]
        await stage.clock.sleep(360)
        wire = await stage.connect(broker)
        found = await all_records(wire, "T")
        assert [record.body for record in found] == [b"600", b"750", b"1050"]
        for record in found:
            assert 0 <= record.store_timestamp - now - int(record.body) * 1000 <= 1100


@pytest.mark.spec("Y18")
@pytest.mark.parametrize(
    ("left", "first"),
    [
        (172_799, 172_799),
        (172_800, 86_400),
        (180_000, 86_400),  # 50 h
        (230_399, 86_400),
        (230_400, 172_800),
        (252_000, 172_800),  # 70 h
        (259_200, 172_800),
    ],
)
def test_the_first_slot_of_a_message_is_at_most_two_days_away(left: int, first: int) -> None:
    shape, now = TimerShape(), 1_700_000_000_000
    assert shape.roll_slot(now + left * 1000, now) == now + first * 1000
    assert first * 1000 < 49 * 3_600_000


@pytest.mark.spec("Y30")
@in_virtual_time
async def test_tools_see_what_waits(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(3):
            await timed(wire, TIMER_DELAY_SEC=100)
        await stage.clock.sleep(3)
        page = (await wire.ok(RequestCode.GET_TIMER_CHECK_POINT)).body
        assert isinstance(page, bytes)
        assert len(page) == 56
        assert int.from_bytes(page[16:24], "big") == int.from_bytes(page[24:32], "big") == 3
        metrics = json_body(TimerMetricsTable, await wire.ok(RequestCode.GET_TIMER_METRICS))
        assert metrics.timing_count["T"].count == 3
        info = json_body(KvTable, await wire.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).table
        assert info["timerCongestNum"] == "3"
        assert info["timerOffsetBehind"] == "0"


@pytest.mark.parametrize("step", [0.011, 0.013])
def test_a_message_parked_while_its_second_is_delivered_arrives_too(
    tmp_path: Path, step: float
) -> None:
    """Threads take their time: a second is taken while its last messages are on their way."""

    async def main(loop: VirtualLoop) -> None:
        loop.executor_latency = (0.05, 0.2)
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            await at_full_second(stage.clock)
            sent = set()
            for number in range(500):
                now = stage.clock.time_ms()
                body = b"%d" % number
                await timed(wire, body, TIMER_DELIVER_MS=now + 1000 - now % 1000)
                sent.add(body)
                await stage.clock.sleep(step)
            await stage.clock.sleep(5)
            assert {record.body for record in await all_records(wire, "T")} == sent
            assert broker.state.timers.pending == 0

    run_virtual(main)


@pytest.mark.parametrize("back", [1.5, 60])
def test_a_clock_set_back_while_a_second_is_delivered_makes_nothing_early(
    tmp_path: Path, back: float
) -> None:
    """The message was taken, and is not due any more: it waits in the same second again."""

    async def main(loop: VirtualLoop) -> None:
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            now = await at_full_second(stage.clock)
            await timed(wire, TIMER_DELIVER_MS=now + 5000)
            await stage.clock.sleep(4.5)
            loop.executor_latency = (0.3, 0.3)
            await stage.clock.sleep(0.85)
            assert isinstance(stage.clock, VirtualClock)
            stage.clock.jump(-back)
            await stage.clock.sleep(back + 5)
            [record] = await all_records(wire, "T")
            assert record.store_timestamp >= now + 5000
            loop.executor_latency = (0.0, 0.0)

    run_virtual(main)


def test_delivered_timers_count_when_they_are_on_the_disk(tmp_path: Path) -> None:
    """Else a power failure would lose messages that are not delivered a second time."""

    async def main(loop: VirtualLoop) -> None:
        async with Stage(tmp_path) as stage:
            # Flushed so rarely that the timers are ready to be saved long before.
            broker = await stage.broker(store={"flush_interval_commit_log_ms": 20_000})
            wire = await stage.connect(broker)
            now = await at_full_second(stage.clock)
            await timed(wire, TIMER_DELIVER_MS=now + 3000)
            await eventually(lambda: delivered(broker) == 1, 10)
            position = broker.state.storage.store.max_position
            while broker.state.timers.checkpoint.read_ms <= now + 2000:
                await stage.clock.sleep(0.25)
            assert broker.state.storage.store.flushed_position >= position

    run_virtual(main)
