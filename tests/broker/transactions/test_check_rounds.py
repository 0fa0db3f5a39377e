"""Questions about open transactions: when they come, to which producer, and when they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.transactions.lab import (
    CHECK,
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    asked,
    check_times,
    decide,
    end,
    half_in,
    halves,
    op_bodies,
    prepared,
    questions,
    resume,
)
from tests.support.asking import all_records, ext, log_position, properties
from tests.support.faulty_files import FaultyFiles
from tests.support.simulated_disk import SimulatedDisk
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.model.hosts import offset_message_id
from penstock.model.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import Draft

HEARTBEAT = 30


async def stay(stage: Stage, wire: Wire, seconds: int, *, producer: str = GROUP) -> None:
    """Let time pass for a client that sends heartbeats."""
    while seconds > 0:
        await wire.heartbeat(f"client {wire.address}", producer=producer)
        await stage.clock.sleep(min(seconds, HEARTBEAT))
        seconds -= HEARTBEAT


async def opened(stage: Stage, **settings: Any) -> tuple[Broker, Wire]:
    """A broker, and a producer of the group."""
    broker = await stage.broker(**settings)
    wire = await stage.connect(broker)
    await wire.heartbeat("c", producer=GROUP)
    return broker, wire


@pytest.mark.spec("X21", "X22", "X26")
@in_virtual_time
async def test_the_first_check_comes_after_six_seconds_then_one_a_round(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        await stage.clock.sleep(25)
        await prepared(wire)
        # Younger than six seconds in the first round, so the second one asks.
        await stage.clock.sleep(6)
        assert not questions(wire)
        await stay(stage, wire, 30)
        assert check_times(wire) == [("ID-1", 1)]
        await stay(stage, wire, 60)
        assert check_times(wire) == [("ID-1", 1), ("ID-1", 2), ("ID-1", 3)]
        decided = await prepared(wire, unique_id="ID-2")
        await stage.clock.sleep(28)
        await end(wire, decided)
        await stage.clock.sleep(31)
        assert {unique_id for unique_id, _ in check_times(wire)} == {"ID-1"}


@pytest.mark.spec("X23", "X34")
@in_virtual_time
async def test_a_check_carries_the_half_and_a_place_that_can_be_decided(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage)
        half = await prepared(
            wire,
            b"zipped",
            queue_id=3,
            more={"TAGS": "t", "WAIT": "true"},
            flag=9,
            sys_flag=SysFlag.COMPRESSED,
            reconsume_times=2,
        )
        [original] = await halves(wire)
        await stage.clock.sleep(31)
        question = await wire.asked(CHECK)
        ask, record = asked(question), half_in(question)
        assert ask.msg_id == ask.transaction_id == "ID-1"
        assert (ask.topic, ask.broker_name) == (TOPIC, "broker-a")
        _, copy = await halves(wire)
        assert (ask.tran_state_table_offset, ask.commit_log_offset) == (1, copy.log_position)
        assert ask.offset_msg_id == offset_message_id(broker.state.store_host, copy.log_position)
        assert (record.topic, record.queue_id) == (TOPIC, 3)
        assert (record.queue_offset, record.log_position) == (1, copy.log_position)
        assert record.store_timestamp == original.store_timestamp
        assert (record.body, record.flag, record.reconsume_times) == (b"zipped", 9, 2)
        assert record.sys_flag == SysFlag.COMPRESSED
        assert record.born_timestamp == original.born_timestamp
        shown, stored = properties(record), properties(copy)
        assert shown == {**stored, "WAIT": "false"}
        assert stored == {**properties(original), "TRANSACTION_CHECK_TIMES": "1"}
        assert (await decide(wire, question)).code == ResponseCode.SUCCESS
        [final] = await all_records(wire, TOPIC, 3)
        assert final.prepared_transaction_offset == copy.log_position != log_position(half)
        assert (final.flag, final.reconsume_times) == (9, 2)
        assert properties(final)["WAIT"] == "true"


@pytest.mark.spec("X14")
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
@in_virtual_time
async def test_a_decision_about_the_original_settles_all_copies(
    tmp_path: Path, decision: int
) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage)
        half = await prepared(wire)
        await stay(stage, wire, 61)
        first, second = questions(wire)
        assert (await end(wire, half, decision)).code == ResponseCode.SUCCESS
        for question in (first, second):
            assert (await decide(wire, question, decision)).code == ResponseCode.SUCCESS
            opposite = ROLLBACK if decision == COMMIT else COMMIT
            refused = await decide(wire, question, opposite)
            assert refused.code == ResponseCode.ILLEGAL_OPERATION
        await stay(stage, wire, 90)
        assert len(questions(wire)) == 2
        assert len(await all_records(wire, TOPIC, 1)) == (decision == COMMIT)
        # Each copy is closed when the next one is there: another broker asks about none of them.
        assert await op_bodies(wire) == [b"0", b"1", b"2"]
        assert broker.state.offsets.of_group(TRANSACTION_GROUP) == {
            HALF_TOPIC: {0: 3},
            OP_HALF_TOPIC: {0: 3},
        }


@pytest.mark.spec("X24")
@in_virtual_time
async def test_producers_of_a_group_are_asked_in_turn(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, one = await opened(stage)
        two = await stage.connect(broker)
        await two.heartbeat("c2", producer=GROUP)
        stranger = await stage.connect(broker)
        await stranger.heartbeat("c3", producer="others")
        for number in range(6):
            await prepared(one, unique_id=f"ID-{number}")
        await stage.clock.sleep(31)
        assert len(questions(one)) == len(questions(two)) == 3
        await one.close()
        await stay(stage, two, 30)
        assert len(questions(two)) == 3 + 6
        assert not questions(stranger)


@pytest.mark.spec("X25")
@in_virtual_time
async def test_without_a_producer_no_check_is_counted(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await prepared(wire)
        await stage.clock.sleep(3600)
        wire = await stage.connect(broker)
        assert len(await halves(wire)) == 1
        await wire.heartbeat("c", producer=GROUP)
        await stage.clock.sleep(31)
        assert check_times(wire) == [("ID-1", 1)]


@pytest.mark.spec("X27", "X37")
@in_virtual_time
async def test_a_half_is_given_up_after_fifteen_checks_and_can_be_resumed(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        half = await prepared(wire, b"parked", more={"KEYS": "k"}, flag=3)
        await stay(stage, wire, 16 * 30 + 5)
        assert check_times(wire) == [("ID-1", number) for number in range(1, 16)]
        [parked] = await all_records(wire, TRANSACTION_GIVEN_UP_TOPIC)
        assert (parked.body, parked.flag) == (b"parked", 3)
        stored = properties(parked)
        assert (stored["REAL_TOPIC"], stored["REAL_QID"], stored["KEYS"]) == (TOPIC, "1", "k")
        assert stored["TRANSACTION_CHECK_TIMES"] == "15"
        await stay(stage, wire, 120)
        assert len(questions(wire)) == 15
        # Only what was given up can be asked about again.
        wrong = ("", "no id", ext(half)["msgId"], offset_message_id(bytes(8), 1 << 40))
        for msg_id in wrong:
            answer = await resume(wire, msg_id)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith("Exception was thrown when putting message")
        msg_id = offset_message_id(parked.store_host, parked.log_position)
        assert (await resume(wire, msg_id)).code == ResponseCode.SUCCESS
        wire.requests.clear()
        await stay(stage, wire, 37)
        assert check_times(wire) == [("ID-1", 1)]
        assert (await decide(wire, questions(wire)[0])).code == ResponseCode.SUCCESS
        assert [one.body for one in await all_records(wire, TOPIC, 1)] == [b"parked"]
        # It is committed now, and stays so.
        assert (await resume(wire, msg_id)).code == ResponseCode.SYSTEM_ERROR


@in_virtual_time
async def test_a_half_that_was_given_up_can_still_be_decided(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage, transaction_check_max=1)
        first = await prepared(wire)
        second = await prepared(wire, unique_id="ID-2")
        await stay(stage, wire, 61)
        assert len(await all_records(wire, TRANSACTION_GIVEN_UP_TOPIC)) == 2
        assert not len(broker.state.transactions.open)
        for _ in range(2):
            assert (await end(wire, first)).code == ResponseCode.SUCCESS
        assert (await end(wire, second, ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await end(wire, second)).code == ResponseCode.ILLEGAL_OPERATION
        assert len(await all_records(wire, TOPIC, 1)) == 1
        assert not len(broker.state.transactions.open)


@pytest.mark.spec("X15", "X28")
@in_virtual_time
async def test_a_full_disk_loses_no_transaction(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, transaction_check_max=2)
        wire = await stage.connect(broker)
        half = await prepared(wire)
        other = await prepared(wire, unique_id="ID-2")
        await stay(stage, wire, 61)
        assert len(check_times(wire)) == 4
        files.disk.free_bytes = 0
        # The write that finds the disk full may cost the connection.
        with pytest.raises(ConnectionError):
            await end(wire, half)
        wire = await stage.connect(broker)
        for decision in (COMMIT, ROLLBACK):
            answer = await end(wire, half, decision)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await stay(stage, wire, 40)
        assert len(broker.state.transactions.open) == 2
        files.disk.free_bytes = None
        await stay(stage, wire, 60)
        # Both have been given up, once each, and both can be decided.
        parked = await all_records(wire, TRANSACTION_GIVEN_UP_TOPIC)
        assert {properties(one)["UNIQ_KEY"] for one in parked} == {"ID-1", "ID-2"}
        assert len(parked) == 2
        for one in (half, other):
            assert (await end(wire, one)).code == ResponseCode.SUCCESS
        assert len(await all_records(wire, TOPIC, 1)) == 2


@pytest.mark.spec("X29")
@in_virtual_time
async def test_a_half_older_than_the_retention_is_given_up_unasked(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"file_reserved_hours": 1})
        wire = await stage.connect(broker)
        # Its producer's clock is behind; the time of the broker counts.
        await prepared(wire, born_timestamp=stage.clock.time_ms() - 73 * 3_600_000)
        await stage.clock.sleep(3500)
        wire = await stage.connect(broker)
        assert TRANSACTION_GIVEN_UP_TOPIC not in broker.state.topics
        await stage.clock.sleep(200)
        wire = await stage.connect(broker)
        wire = await stage.connect(broker)
        assert len(await all_records(wire, TRANSACTION_GIVEN_UP_TOPIC)) == 1
        await stay(stage, wire, 61)
        assert not questions(wire)


@pytest.mark.spec("X30", "X33")
@in_virtual_time
async def test_an_immunity_delays_the_first_check(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
        half = await prepared(wire, more=immunity)
        await stay(stage, wire, 60)
        assert not questions(wire)
        await stay(stage, wire, 31)
        assert check_times(wire) == [("ID-1", 1)]
        assert (await end(wire, half)).code == ResponseCode.ILLEGAL_OPERATION
        assert not await all_records(wire, TOPIC, 1)
        # The answer to a check is in time.
        assert (await decide(wire, questions(wire)[0])).code == ResponseCode.SUCCESS
        assert len(await all_records(wire, TOPIC, 1)) == 1


@pytest.mark.spec("X31")
@in_virtual_time
async def test_a_long_immunity_costs_no_check(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        await prepared(wire, more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "600"})
        await stay(stage, wire, 600)
        assert not questions(wire)
        assert len(await halves(wire)) == 1
        await stay(stage, wire, 17 * 30)
        assert [times for _, times in check_times(wire)] == list(range(1, 16))


@pytest.mark.spec("X32")
@in_virtual_time
async def test_a_commit_within_the_immunity_time_is_final(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        half = await prepared(wire, more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "120"})
        await stay(stage, wire, 60)
        assert (await end(wire, half)).code == ResponseCode.SUCCESS
        await stay(stage, wire, 150)
        assert not questions(wire)
        assert len(await all_records(wire, TOPIC, 1)) == 1


@pytest.mark.spec("X35")
@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
@in_virtual_time
async def test_the_clock_of_a_producer_does_not_move_the_first_check(
    tmp_path: Path, ahead_ms: int
) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        await stage.clock.sleep(27)
        await prepared(wire, born_timestamp=stage.clock.time_ms() + ahead_ms)
        await stage.clock.sleep(5)
        assert not questions(wire)
        await stay(stage, wire, 30)
        assert len(questions(wire)) == 1


@pytest.mark.spec("X36")
@in_virtual_time
async def test_a_half_that_cannot_be_read_stops_no_check(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage)
        await prepared(wire)
        storage = broker.state.storage
        # Records of another program, in both queues.
        storage.append(Draft(HALF_TOPIC, 0, b"no half", b""))
        storage.append(Draft(OP_HALF_TOPIC, 0, b"no number,,-1,7x", b"TAGS\x01d\x02"))
        storage.append(Draft(OP_HALF_TOPIC, 0, b"2,", b"TAGS\x01other\x02"))
        await prepared(wire, unique_id="ID-2")
        await wire.close()
        await broker.stop()
        broker, wire = await opened(stage)
        await stage.clock.sleep(31)
        assert check_times(wire) == [("ID-1", 1), ("ID-2", 1)]


@pytest.mark.spec("X36")
@in_virtual_time
async def test_a_half_that_this_broker_would_refuse_stops_no_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage)
        await prepared(wire)
        # Of another program: no room for the count of checks that a copy has.
        text = (
            f"a\x01{32_690 * 'x'}\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02UNIQ_KEY\x01ID-0\x02"
            f"REAL_TOPIC\x01{TOPIC}\x02REAL_QID\x011\x02"
        )
        broker.state.storage.append(Draft(HALF_TOPIC, 0, b"a half", text.encode()))
        await wire.close()
        await broker.stop()
        broker, wire = await opened(stage, transaction_check_max=1)
        await stay(stage, wire, 121)
        assert check_times(wire) == [("ID-1", 1)]
        parked = await all_records(wire, TRANSACTION_GIVEN_UP_TOPIC)
        assert [properties(one)["UNIQ_KEY"] for one in parked] == ["ID-1"]
        assert "half message cannot be copied" in caplog.text


@in_virtual_time
async def test_a_half_is_copied_before_its_segment_is_deleted(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"mapped_file_size_commit_log": 1 << 16})
        wire = await stage.connect(broker)
        half = await prepared(wire)
        for _ in range(3):
            await wire.send("filler", bytes(30_000))
        await stage.clock.sleep(61)
        wire = await stage.connect(broker)
        first, copy = await halves(wire)
        assert copy.log_position > first.log_position + (1 << 16)
        assert properties(copy)["TRANSACTION_CHECK_TIMES"] == "0"
        assert (await end(wire, half)).code == ResponseCode.SUCCESS
        assert await op_bodies(wire) == [b"0", b"1"]


@in_virtual_time
async def test_many_questions_go_out_in_bursts(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await opened(stage)
        for number in range(1100):
            await prepared(wire, unique_id=f"ID-{number}")
        await stage.clock.sleep(30.5)
        burst = len(questions(wire))
        assert 1000 <= burst < 1100
        await stage.clock.sleep(2)
        assert len(questions(wire)) == 1100
        assert (await end(wire, await prepared(wire, unique_id="later"), UNKNOWN)).code == 0


@in_virtual_time
async def test_the_counters_are_those_of_the_open_transactions(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await opened(stage)
        counters = broker.state.transactions.counters
        first = await prepared(wire)
        await prepared(wire)
        second = await prepared(wire, unique_id="ID-2")
        assert counters.open_by_topic()[TOPIC] == 2
        for _ in range(2):
            await end(wire, first)
        assert counters.open_by_topic()[TOPIC] == 1
        await stage.clock.sleep(11)
        text = (tmp_path / "broker-a/config/transactionMetrics").read_bytes()
        assert text.startswith(b'{"dataVersion":{"counter":')
        assert b'"transactionCount":{"orders":{"count":1,"timeStamp":' in text
        await end(wire, second, ROLLBACK)
        assert counters.open_by_topic()[TOPIC] == 0
        await wire.request(RequestCode.GET_BROKER_RUNTIME_INFO)


@in_virtual_time
async def test_a_decision_that_could_not_be_written_is_none(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        half = await prepared(wire)
        files.disk.free_bytes = 0
        with pytest.raises(ConnectionError):
            await end(wire, half)
        files.disk.free_bytes = None
        await stage.clock.sleep(15)
        wire = await stage.connect(broker)
        assert (await end(wire, half, ROLLBACK)).code == ResponseCode.SUCCESS
        assert not await all_records(wire, TOPIC, 1)
        assert not len(broker.state.transactions.open)
