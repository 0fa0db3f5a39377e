"""Delayed messages: when they are delivered, and what becomes of them in trouble."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import (
    all_records,
    bodies,
    log_position,
    properties,
    put_topic,
    records,
)
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.broker.delivery.delay_service import DelayService
from penstock.broker.delivery.delay_times import DelayTimes
from penstock.broker.delivery.schedule_records import delayed, due
from penstock.model.hosts import pack_host
from penstock.model.names import SCHEDULE_TOPIC
from penstock.model.properties import encode_properties
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.offsets import DelayOffsetTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.delays import DelayLevels
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.send import SendMessage
from penstock.protocol.records.codec import Record, decode_record, encode_record
from penstock.store import SYNC_FLUSH, Draft
from penstock.testing.clock import VirtualClock
from penstock.testing.eventually import eventually

OK = ResponseCode.SUCCESS
HOST = pack_host("127.0.0.1", 1)


async def delay(wire: Wire, level: int, body: bytes = b"later", *, queue_id: int = 0) -> None:
    answer = await wire.send("T", body, queue_id=queue_id, properties={"DELAY": str(level)})
    assert answer.code == OK, answer.remark


def delivered(broker: Broker, queue_id: int = 0) -> int:
    return broker.state.storage.max_offset("T", queue_id)


def saved_progress(file: Path) -> dict[int, int]:
    return decode_body(DelayOffsetTable, file.read_bytes()).offset_table


# Delivery


@in_virtual_time
async def test_a_message_is_delivered_when_its_level_has_passed(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        # More than the first second, in which nothing is delivered at all.
        await stage.clock.sleep(2)
        for level, seconds in ((1, 1), (2, 5), (3, 10)):
            count = delivered(broker, level)
            await delay(wire, level, queue_id=level)
            await stage.clock.sleep(seconds - 0.05)
            assert delivered(broker, level) == count
            await stage.clock.sleep(0.05 + 2 * DelayService.TICK)
            assert delivered(broker, level) == count + 1


@in_virtual_time
async def test_a_delivered_message_is_what_was_sent(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        answer = await wire.send(
            "T",
            b"body",
            queue_id=3,
            properties={"DELAY": "1", "TAGS": "A", "KEYS": "k", "UNIQ_KEY": "U", "WAIT": "true"},
            flag=5,
            born_timestamp=99,
            reconsume_times=2,
        )
        answer_held = await wire.start_pull("g", "T", 0, queue_id=3, hold_ms=15_000, expression="A")
        [record] = records(answer_held)
        assert record.log_position > log_position(answer)
        assert (record.body, record.queue_id, record.flag) == (b"body", 3, 5)
        assert (record.born_timestamp, record.reconsume_times) == (99, 2)
        seen = properties(record)
        assert (seen["TAGS"], seen["KEYS"], seen["UNIQ_KEY"]) == ("A", "k", "U")
        # As in RocketMQ these tell that it was delayed once.
        assert (seen["DELAY"], seen["REAL_TOPIC"], seen["REAL_QID"]) == ("1", "T", "3")


@in_virtual_time
async def test_messages_of_one_level_keep_their_order(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for number in range(150):
            await delay(wire, 1, str(number).encode())
        await eventually(lambda: delivered(broker) == 150, 30)
        found = await all_records(wire, "T")
        assert [int(record.body) for record in found] == list(range(150))


@in_virtual_time
async def test_a_short_level_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 18, b"two hours")
        await delay(wire, 1, b"one second")
        await eventually(lambda: delivered(broker) == 1, 30)
        assert bodies(await wire.pull("g", "T", 0)) == [b"one second"]


@in_virtual_time
async def test_levels_can_be_chosen(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(message_delay_level="3s 7s")
        wire = await stage.connect(broker)
        await delay(wire, 9)
        await stage.clock.sleep(6.5)
        assert delivered(broker) == 0
        await stage.clock.sleep(1)
        assert delivered(broker) == 1
        # Readers of the files find the same time in the queue entry.
        entry = broker.state.storage.store.entry(SCHEDULE_TOPIC, 1, 0)
        assert entry is not None
        record = broker.state.storage.record_at(entry.log_position)
        assert record is not None
        assert entry.tags_code == decode_record(record).store_timestamp + 7000


@in_virtual_time
async def test_with_sync_flush_delays_work_too(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": SYNC_FLUSH})
        wire = await stage.connect(broker)
        await delay(wire, 1)
        await eventually(lambda: delivered(broker) == 1, 30)


# Deleted topics


@in_virtual_time
async def test_a_delayed_message_does_not_bring_its_deleted_topic_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for body in (b"one", b"two"):
            await delay(wire, 2, body)
        assert (await wire.send("U", b"goes on", properties={"DELAY": "2"})).code == OK
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        # A later delivery still knows that the topic was deleted.
        await broker.stop()
        broker = await stage.broker()
        await eventually(lambda: broker.state.storage.max_offset("U", 0) == 1, 30)
        assert delivered(broker) == 0
        await broker.stop()
        broker = await stage.broker()
        assert "T" not in broker.state.topics
    logged = [r.message for r in caplog.records if "of a deleted topic" in r.message]
    assert logged == ["delayed messages of a deleted topic skipped topic=T"]


@in_virtual_time
async def test_a_delayed_message_reaches_a_topic_that_was_made_anew(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 1)
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        await put_topic(wire, "T")
        await eventually(lambda: delivered(broker) == 1, 30)


@in_virtual_time
async def test_a_delayed_message_outlives_the_loss_of_the_topic_table(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(root=tmp_path)
        await delay(await stage.connect(broker), 2)
        await broker.stop()
        # What a crash leaves that comes before a new topic is saved.
        for file in (tmp_path / "config").glob("topics.json*"):
            file.unlink()
        broker = await stage.broker(root=tmp_path)
        assert "T" not in broker.state.topics
        await eventually(lambda: delivered(broker) == 1, 30)


# Clocks


def jump(stage: Stage, seconds: float) -> None:
    assert isinstance(stage.clock, VirtualClock)
    stage.clock.jump(seconds)


@pytest.mark.parametrize("seconds", [-6 * 3600, 80 * 3600, 0.15, -0.15])
@in_virtual_time
async def test_a_delay_takes_its_time_when_the_clock_is_set(tmp_path: Path, seconds: float) -> None:
    """Before, between and after two messages, one of which lies behind the other."""
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 3, b"before")
        await stage.clock.sleep(4)
        jump(stage, seconds)
        await stage.clock.sleep(2)
        await delay(wire, 3, b"after")
        jump(stage, -seconds)
        await stage.clock.sleep(3.5)
        assert delivered(broker) == 0
        await stage.clock.sleep(1)
        assert delivered(broker) == 1
        await stage.clock.sleep(5)
        assert delivered(broker) == 1
        await stage.clock.sleep(1)
        assert delivered(broker) == 2


@pytest.mark.parametrize("seconds", [-6 * 3600, -5])
@in_virtual_time
async def test_what_seems_to_come_from_the_future_at_the_start_waits_for_its_delay(
    tmp_path: Path, seconds: float
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        await delay(await stage.connect(broker), 3)
        await broker.stop()
        jump(stage, seconds)
        broker = await stage.broker()
        await stage.clock.sleep(9)
        assert delivered(broker) == 0
        await stage.clock.sleep(2)
        assert delivered(broker) == 1


@in_virtual_time
async def test_what_fell_due_while_the_broker_was_down_comes_at_its_start(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        await delay(await stage.connect(broker), 18)
        await broker.stop()
        await stage.clock.sleep(3600)
        broker = await stage.broker()
        await stage.clock.sleep(3590)
        assert delivered(broker) == 0
        await broker.stop()
        await stage.clock.sleep(3600)
        broker = await stage.broker()
        await stage.clock.sleep(2)
        assert delivered(broker) == 1


@in_virtual_time
async def test_a_clock_that_is_set_again_and_again_is_remembered_within_bounds(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        times = DelayTimes(stage.clock, 0)
        for offset in range(5000):
            jump(stage, 1 if offset % 2 else -1)
            times.arrived(offset)
        stamp = stage.clock.time_ms()
        assert 9 < times.seconds_left(500, stamp, 10_000) < 12


# Progress and restarts


@in_virtual_time
async def test_progress_is_saved_every_ten_seconds_and_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "broker-a/config/delayOffset.json"
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 1)
        await stage.clock.sleep(13)
        assert saved_progress(file)[1] == 1
        await delay(wire, 1)
        await stage.clock.sleep(2)
        await broker.stop()
    assert saved_progress(file)[1] == 2


@in_virtual_time
async def test_the_version_of_the_progress_moves_with_it_and_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "broker-a/config/delayOffset.json"

    def saved_version() -> DataVersion:
        version = decode_body(DelayOffsetTable, file.read_bytes()).data_version
        assert version is not None
        return version

    async def deliver_one() -> None:
        before = delivered(broker)
        await delay(wire, 1)
        await eventually(lambda: delivered(broker) > before, 30)

    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        answer = await wire.ok(RequestCode.GET_ALL_DELAY_OFFSET)
        first = json_body(DelayOffsetTable, answer).data_version
        assert first is not None
        for _ in range(199):
            await deliver_one()
        answer = await wire.ok(RequestCode.GET_ALL_DELAY_OFFSET)
        assert json_body(DelayOffsetTable, answer).data_version == first
        await deliver_one()
        await broker.stop()
        assert saved_version().counter == first.counter + 1
        broker = await stage.broker()
        answer = await (await stage.connect(broker)).ok(RequestCode.GET_ALL_DELAY_OFFSET)
        assert json_body(DelayOffsetTable, answer).data_version == saved_version()


@in_virtual_time
async def test_what_waits_is_delivered_by_the_next_broker_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 1, b"before")
        await eventually(lambda: delivered(broker) == 1, 30)
        await delay(wire, 3, b"after")
        await broker.stop()
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await eventually(lambda: delivered(broker) == 2, 30)
        await stage.clock.sleep(20)
        assert [r.body for r in await all_records(wire, "T")] == [b"before", b"after"]


@in_virtual_time
async def test_saved_progress_beyond_the_queue_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "broker-a/config/delayOffset.json"
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 1)
        await eventually(lambda: delivered(broker) == 1, 30)
        await broker.stop()
        file.write_text('{"offsetTable":{1:99}}')
        file.with_name("delayOffset.json.sum").unlink()
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await delay(wire, 1)
        await eventually(lambda: delivered(broker) == 2, 30)


async def test_saved_progress_before_the_first_message_is_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker-a/config/delayOffset.json"
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(30):
            await delay(wire, 18, bytes(100_000))
        store = broker.state.storage.store
        store.flush(thorough=True)
        store.request_clean()
        assert store.clean(stage.clock.time_ms() + 100 * 3_600_000)
        first = store.min_offset(SCHEDULE_TOPIC, 17)
        assert first > 0
        await broker.stop()
        file.write_text('{"offsetTable":{18:0}}')
        file.with_name("delayOffset.json.sum").unlink(missing_ok=True)
        broker = await stage.broker()
        assert broker.state.delay_service.progress()[18] == (first, 30)
        assert f"delay progress corrected level=18 from=0 to={first}" in caplog.text


@in_virtual_time
async def test_a_slave_delivers_nothing(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        master = await stage.broker()
        await delay(await stage.connect(master), 1)
        await master.stop()
        slave = await stage.broker(broker_role="SLAVE", broker_id=1)
        await stage.clock.sleep(30)
        assert delivered(slave) == 0


# Trouble


@in_virtual_time
async def test_a_full_disk_delays_delayed_messages_and_loses_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        for number in range(5):
            await delay(wire, 1, str(number).encode())
        files.disk.free_bytes = 0
        await stage.clock.sleep(30)
        assert delivered(broker) == 0
        files.disk.free_bytes = None
        await eventually(lambda: delivered(broker) == 5, 100, interval=1.0)
        found = await all_records(wire, "T")
        assert [r.body for r in found] == [b"0", b"1", b"2", b"3", b"4"]
    # Ten tries a second must not fill the log as well.
    assert caplog.text.count("delayed messages not delivered") == 1


@in_virtual_time
async def test_a_foreign_record_without_a_target_does_not_block_others(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        storage = broker.state.storage
        for bad in (
            {"x": "no target"},
            {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC"},
            {"REAL_TOPIC": "t" * 300, "REAL_QID": "0"},
        ):
            storage.append(Draft(SCHEDULE_TOPIC, 0, b"bad", encode_properties(bad)))
        await delay(wire, 1, b"good")
        await eventually(lambda: delivered(broker) == 1, 30)
        assert broker.is_running


# The way in and out, by itself


def record_with(values: dict[str, str]) -> Record:
    stored = encode_properties(values)
    topic = SCHEDULE_TOPIC.encode()
    return decode_record(encode_record(topic, b"b", stored, 2, 0, 0, 0, 0, HOST, HOST, 0, 0, 4, 0))


def test_what_is_due_is_what_was_delayed() -> None:
    draft = Draft("T", 5, b"b", b"", 1, 0, 2, HOST, HOST, 3)
    waiting = delayed(draft, {"a": "b"}, 3, DelayLevels())
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, 2)
    back = due(record_with({"a": "b", "REAL_TOPIC": "T", "REAL_QID": "5", "DELAY": "3"}))
    assert back is not None
    assert (back.topic, back.queue_id, back.body, back.reconsume_times) == ("T", 5, b"b", 4)


@pytest.mark.parametrize("text", ["", "x", "-3", "9" * 30, "٣"])
def test_a_queue_number_of_another_program_may_be_anything(text: str) -> None:
    values = {"REAL_TOPIC": "T", "REAL_QID": text} if text else {"REAL_TOPIC": "T"}
    back = due(record_with(values))
    assert back is not None
    assert back.queue_id == 0


async def test_a_one_way_delayed_send_waits_as_well(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "DELAY\x0118\x02")
        wire.oneway(RequestCode.SEND_MESSAGE_V2, header, b"x")
        await eventually(lambda: broker.state.storage.max_offset(SCHEDULE_TOPIC, 17) == 1)
