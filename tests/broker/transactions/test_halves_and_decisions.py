"""Half messages, commits and rollbacks, as a client sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.transactions.lab import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    end,
    halves,
    op_bodies,
    prepare,
    prepared,
)
from tests.support.asking import all_records, ext, log_position, properties, records
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire, body_of

from penstock.broker import Broker
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.pull import QueryMessage
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import decode_records
from penstock.protocol.records.sys_flags import SysFlag

# Halves


@pytest.mark.spec("X1", "X2")
async def test_a_half_is_stored_apart_and_no_consumer_sees_it(wire: Wire, broker: Broker) -> None:
    answer = await prepared(wire, b"hidden", queue_id=2, flag=7, sys_flag=4)
    assert ext(answer)["queueId"] == "2"
    assert ext(answer)["queueOffset"] == "0"
    assert ext(answer)["transactionId"] == "ID-1"
    [half] = await halves(wire)
    assert (half.topic, half.queue_id, half.body, half.flag) == (HALF_TOPIC, 0, b"hidden", 7)
    assert not half.sys_flag & SysFlag.TRANSACTION_MASK
    assert log_position(answer) == half.log_position
    stored = properties(half)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"]) == (TOPIC, "2")
    assert stored["__transactionId__"] == "ID-1"
    for queue_id in range(4):
        assert not await all_records(wire, TOPIC, queue_id)


async def test_the_real_queue_is_the_one_that_the_broker_chose(wire: Wire) -> None:
    answer = await prepared(wire, queue_id=-1, more={"REAL_TOPIC": "other", "REAL_QID": "9"})
    [half] = await halves(wire)
    assert properties(half)["REAL_TOPIC"] == TOPIC
    assert properties(half)["REAL_QID"] == ext(answer)["queueId"]


@pytest.mark.spec("X3")
async def test_the_property_decides_and_not_the_flag(wire: Wire) -> None:
    await prepared(wire, more={"TRAN_MSG": "TRUE"}, sys_flag=0)
    assert len(await halves(wire)) == 1
    await wire.send(TOPIC, b"plain", queue_id=1, sys_flag=SysFlag.TRANSACTION_PREPARED)
    await wire.send(TOPIC, b"false", queue_id=1, properties={"TRAN_MSG": "false"})
    assert [one.body for one in await all_records(wire, TOPIC, 1)] == [b"plain", b"false"]
    assert len(await halves(wire)) == 1


@pytest.mark.spec("X4")
async def test_a_retry_of_an_old_consumer_is_no_half(wire: Wire) -> None:
    # Consumers before 4.6.1 send a failed message again with all its properties.
    answer = await wire.send(
        "%RETRY%readers",
        properties={"TRAN_MSG": "true", "PGROUP": GROUP, "DELAY": "3"},
        reconsume_times=1,
        max_reconsume_times=16,
    )
    assert answer.code == ResponseCode.SUCCESS
    assert not await halves(wire)
    assert len(await all_records(wire, SCHEDULE_TOPIC, 2)) == 1


@pytest.mark.spec("X5")
@pytest.mark.parametrize(
    "delay",
    [
        {"DELAY": "3"},
        {"TIMER_DELAY_SEC": "60"},
        {"TIMER_DELAY_MS": "1"},
        {"TIMER_DELIVER_MS": "0"},
    ],
)
async def test_a_delayed_half_is_refused(wire: Wire, delay: dict[str, str]) -> None:
    answer = await prepare(wire, more=delay)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert not await halves(wire)


async def test_halves_can_be_forbidden(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(reject_transaction_message=True)
        wire = await stage.connect(broker)
        answer = await prepare(wire)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
        assert (await wire.send(TOPIC)).code == ResponseCode.SUCCESS


@pytest.mark.spec("X41")
async def test_a_batch_with_a_transactional_message_is_refused(wire: Wire) -> None:
    body = encode_batch([BatchItem(b"a", b"TRAN_MSG\x01true\x02", 0)])
    plain = encode_batch([BatchItem(b"a", b"", 0)])
    code = RequestCode.SEND_BATCH_MESSAGE
    prepared_bit = SysFlag.TRANSACTION_PREPARED
    inner = await wire.send(TOPIC, body, code=code, batch=True)
    envelope = await wire.send(TOPIC, plain, code=code, batch=True, sys_flag=prepared_bit)
    assert [inner.code, envelope.code] == [ResponseCode.MESSAGE_ILLEGAL] * 2
    assert not await all_records(wire, TOPIC)


# Decisions


@pytest.mark.spec("X6", "X7")
async def test_a_commit_makes_the_message_visible_at_once(wire: Wire, broker: Broker) -> None:
    await prepared(wire, b"first", unique_id="ID-0")
    half = await prepared(
        wire,
        b"body",
        more={"KEYS": "k1", "TAGS": "new", "color": "red"},
        flag=5,
        sys_flag=SysFlag.COMPRESSED | SysFlag.TRANSACTION_PREPARED,
        born_timestamp=1_700_000_000_000,
    )
    held = wire.start_pull("readers", TOPIC, 0, queue_id=1, hold_ms=15_000)
    assert (await end(wire, half)).code == ResponseCode.SUCCESS
    [record] = records(await held)
    assert (record.topic, record.queue_id, record.queue_offset) == (TOPIC, 1, 0)
    assert record.sys_flag == SysFlag.COMPRESSED | SysFlag.TRANSACTION_COMMIT
    assert record.prepared_transaction_offset == log_position(half) > 0
    assert (record.body, record.flag, record.born_timestamp) == (b"body", 5, 1_700_000_000_000)
    stored = properties(record)
    assert stored["UNIQ_KEY"] == stored["__transactionId__"] == "ID-1"
    assert (stored["KEYS"], stored["TAGS"], stored["color"]) == ("k1", "new", "red")
    assert (stored["TRAN_MSG"], stored["PGROUP"]) == ("true", GROUP)
    assert "REAL_TOPIC" not in stored
    assert "REAL_QID" not in stored
    # Filters and the key index see the committed message.
    for expression, kind in (("new", "TAG"), ("color = 'red'", "SQL92")):
        pulled = await wire.pull(
            "r2", TOPIC, 0, queue_id=1, expression=expression, expression_type=kind
        )
        assert [one.body for one in records(pulled)] == [b"body"]
    for key in ("k1", "ID-1"):
        found = await wire.ok(RequestCode.QUERY_MESSAGE, QueryMessage(TOPIC, key, 10, 0, 1 << 62))
        assert [one.body for one in decode_records(body_of(found))] == [b"body"]


@pytest.mark.spec("X8", "X17")
@in_virtual_time
async def test_a_rollback_stores_nothing_and_no_check_follows(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await wire.heartbeat("c", producer=GROUP)
        half = await prepared(wire)
        assert (await end(wire, half, ROLLBACK)).code == ResponseCode.SUCCESS
        [op] = await all_records(wire, OP_HALF_TOPIC)
        assert (op.body, op.queue_id, op.sys_flag, op.flag) == (b"0", 0, 0, 0)
        assert properties(op) == {"WAIT": "true", "TAGS": "d"}
        assert op.born_host == op.store_host == broker.state.store_host
        entry = broker.state.storage.store.entry(OP_HALF_TOPIC, 0, 0)
        assert entry is not None
        assert entry.tags_code == 100
        await stage.clock.sleep(100)
        assert not wire.requests
        assert not await all_records(wire, TOPIC, 1)


@pytest.mark.spec("X9")
async def test_no_decision_writes_nothing_and_is_answered(wire: Wire, broker: Broker) -> None:
    half = await prepared(wire)
    before = broker.state.storage.store.max_position
    assert (await end(wire, half, UNKNOWN)).code == ResponseCode.SUCCESS
    assert broker.state.storage.store.max_position == before
    assert len(broker.state.transactions.open) == 1


@pytest.mark.spec("X10")
async def test_a_decision_must_name_the_half_exactly(wire: Wire, broker: Broker) -> None:
    half = await prepared(wire)
    other = await prepared(wire, unique_id="ID-2")
    wrong = [
        (await end(wire, half, group="thieves"), "The producer group wrong"),
        (await end(wire, half, offset=1), "The transaction state table offset wrong"),
        (await end(wire, half, position=17), "Find prepared transaction message failed"),
        (await end(wire, half, position=1 << 40), "Find prepared transaction message failed"),
        (
            await end(wire, half, position=log_position(other)),
            "The transaction state table offset wrong",
        ),
        (await end(wire, half, 5), "commitOrRollback field wrong"),
    ]
    for answer, remark in wrong:
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(remark)
    assert not await op_bodies(wire)
    assert len(broker.state.transactions.open) == 2
    assert (await end(wire, half)).code == ResponseCode.SUCCESS


@pytest.mark.spec("X11")
async def test_only_a_half_can_be_committed(wire: Wire) -> None:
    plain = await wire.send(
        TOPIC, queue_id=0, properties={"PGROUP": GROUP, "REAL_TOPIC": "other", "REAL_QID": "0"}
    )
    answer = await end(wire, plain)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not await op_bodies(wire)


@pytest.mark.spec("X12")
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_the_same_decision_again_changes_nothing(wire: Wire, decision: int) -> None:
    half = await prepared(wire)
    for _ in range(3):
        assert (await end(wire, half, decision)).code == ResponseCode.SUCCESS
    assert len(await all_records(wire, TOPIC, 1)) == (decision == COMMIT)
    assert await op_bodies(wire) == [b"0"]


@pytest.mark.spec("X13")
@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
async def test_the_opposite_decision_is_refused(wire: Wire, first: int, second: int) -> None:
    half = await prepared(wire)
    await end(wire, half, first)
    assert (await end(wire, half, second)).code == ResponseCode.ILLEGAL_OPERATION
    assert len(await all_records(wire, TOPIC, 1)) == (first == COMMIT)


async def test_two_decisions_in_one_turn_are_one(wire: Wire) -> None:
    half = await prepared(wire)
    header = {
        "producerGroup": GROUP,
        "tranStateTableOffset": "0",
        "commitLogOffset": str(log_position(half)),
        "commitOrRollback": "8",
        "msgId": "ID-1",
    }
    first, second = (wire.start(RequestCode.END_TRANSACTION, header) for _ in range(2))
    rollback = wire.start(RequestCode.END_TRANSACTION, {**header, "commitOrRollback": "12"})
    assert (await first).code == (await second).code == ResponseCode.SUCCESS
    assert (await rollback).code == ResponseCode.ILLEGAL_OPERATION
    assert len(await all_records(wire, TOPIC, 1)) == 1


async def test_a_repeated_half_belongs_to_the_same_transaction(wire: Wire, broker: Broker) -> None:
    first = await prepared(wire)
    second = await prepared(wire)
    assert ext(second)["queueOffset"] == "1"
    assert (await end(wire, second)).code == ResponseCode.SUCCESS
    assert (await end(wire, first)).code == ResponseCode.SUCCESS
    assert len(await all_records(wire, TOPIC, 1)) == 1
    assert await op_bodies(wire) == [b"0", b"1"]
    assert not len(broker.state.transactions.open)


async def test_one_unique_id_in_two_transactions_after_each_other(wire: Wire) -> None:
    # Java keeps the id of a message object that is sent a second time.
    for _ in range(2):
        assert (await end(wire, await prepared(wire))).code == ResponseCode.SUCCESS
    assert len(await all_records(wire, TOPIC, 1)) == 2


async def test_a_decision_without_an_answer_counts(wire: Wire) -> None:
    half = await prepared(wire)
    header = {
        "producerGroup": GROUP,
        "tranStateTableOffset": "0",
        "commitLogOffset": str(log_position(half)),
        "commitOrRollback": "8",
        "msgId": "ID-1",
    }
    held = wire.start_pull("readers", TOPIC, 0, queue_id=1, hold_ms=15_000)
    wire.oneway(RequestCode.END_TRANSACTION, header)
    assert len(records(await held)) == 1


async def test_a_slave_decides_nothing(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        master = await stage.broker("broker-a")
        half = await prepared(await stage.connect(master))
        slave = await stage.broker("broker-b", broker_id=1)
        wire = await stage.connect(slave)
        answer = await end(wire, half)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert answer.remark is None


async def test_a_topic_deleted_meanwhile_does_not_come_back(wire: Wire, broker: Broker) -> None:
    half = await prepared(wire)
    await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    answer = await end(wire, half)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(broker.state.transactions.open) == 1
    assert (await end(wire, half, ROLLBACK)).code == ResponseCode.SUCCESS


async def test_statistics_count_the_half_and_the_committed_message(
    wire: Wire, broker: Broker
) -> None:
    half = await prepared(wire)
    stats = broker.state.stats
    assert (stats.puts_of(HALF_TOPIC).count, stats.puts_of(TOPIC).count) == (1, 0)
    await end(wire, half)
    assert (stats.puts_of(HALF_TOPIC).count, stats.puts_of(TOPIC).count) == (1, 1)
