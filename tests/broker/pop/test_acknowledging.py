"""Acknowledging, changing the invisible time, and coming again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.asking import all_records, committed, ext, put_group, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.popping import Got, ack, bodies, change, changed, pop, start_pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.pop.acknowledging import Receipt, acknowledge
from penstock.errors import StoreError
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.pop import BatchAck, BatchAckEntry, bits_of
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import DeleteGroup, DeleteTopic
from penstock.protocol.headers.pop import AckMessage
from penstock.protocol.headers.receipts import ReceiptHandle
from penstock.store import Draft


async def send(wire: Wire, *bodies: bytes, topic: str = "T", queue_id: int = 0) -> None:
    for body in bodies:
        await wire.send(topic, body, queue_id=queue_id)


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


def entry(got: Sequence[Got], *, bits: bytes | None = None, retry: str = "0") -> BatchAckEntry:
    handle = ReceiptHandle.parse(got[0].handle)
    return BatchAckEntry(
        "g",
        "T",
        retry,
        handle.start_offset,
        handle.queue_id,
        handle.revive_queue_id,
        handle.pop_time,
        handle.invisible_time,
        bits_of(handle.start_offset, [one.offset for one in got]) if bits is None else bits,
    )


async def ack_all(wire: Wire, *entries: BatchAckEntry) -> int:
    body = BatchAck("broker-a", entries)
    return (await wire.request(RequestCode.BATCH_ACK_MESSAGE, body=body)).code


@pytest.mark.spec("P6", "P10", "P22", "P23", "P27", "P37", "P38", "P39")
@in_virtual_time
async def test_only_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"first", properties={"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "U1"})
        await send(wire, *numbered(31))
        got = await pop(wire, invisible=10)
        assert len(got) == 32
        assert await pop(wire) == []
        assert len(await pop(wire, group="other")) == 32
        for one in got[1:]:
            assert (await ack(wire, one)).code == 0
            assert (await ack(wire, one)).code == 0
        await stage.clock.sleep(9.9)
        assert await pop(wire) == []
        await stage.clock.sleep(0.6)
        (again,) = await pop(wire, invisible=10)
        assert (again.body, again.topic, again.queue_id, again.times) == (
            b"first",
            "%RETRY%g_T",
            0,
            1,
        )
        wanted = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "U1", "ORIGIN_GROUP": "g"}
        assert wanted.items() <= again.properties.items()
        first = ReceiptHandle.parse(got[0].handle)
        assert again.properties["1ST_POP_TIME"] == str(first.pop_time)
        assert ReceiptHandle.parse(again.handle).flag == 1
        topic = broker.state.topics.require("%RETRY%g_T")
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
        # A retry that fails goes back to the same topic.
        await stage.clock.sleep(10.5)
        (third,) = await pop(wire)
        assert (third.topic, third.times) == ("%RETRY%g_T", 2)
        assert (await ack(wire, third)).code == 0
        await stage.clock.sleep(70)
        assert await pop(wire) == []
        assert await committed(wire, "g", "%RETRY%g_T") == 2


@pytest.mark.spec("P24", "P21")
@in_virtual_time
async def test_bad_queues_offsets_and_handles_are_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (got,) = await pop(wire)

        async def code(
            *, topic: str = "T", queue_id: int = 0, extra_info: str = got.handle, offset: int = 0
        ) -> int:
            header = AckMessage("g", topic, queue_id, extra_info, offset)
            return (await wire.request(RequestCode.ACK_MESSAGE, header)).code

        assert await code(topic="unknown") == 17
        assert await code(queue_id=1) == 13
        assert await code(queue_id=-1) == 13
        assert await code(offset=2) == 208
        assert await code(offset=-1) == 208
        assert await code(offset=1) == 0
        assert await code(extra_info="1 2 3 4 5 b 7") == 1
        assert await code(extra_info=got.handle.replace("60000", "6x")) == 1
        assert (await change(wire, got._replace(offset=1), 10)).code == 208
        assert broker.state.pop.points.count == 1
        assert await code(extra_info=got.handle + " 4096") == 0
        assert broker.state.pop.points.count == 0


@pytest.mark.spec("P25", "P35", "P49")
@in_virtual_time
async def test_late_acknowledgements_and_changes_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (got,) = await pop(wire, invisible=5)
        await stage.clock.sleep(5.5)
        (again,) = await pop(wire, invisible=600)
        end = broker.state.storage.max_offset(broker.state.pop.journal.topic, 0)
        assert (await change(wire, got, 600)).code == 208
        for _ in range(3):
            assert (await ack(wire, got)).code == 0
        assert broker.state.stats.late_acks["g"].count == 3
        assert sum("after the invisible time" in r.getMessage() for r in caplog.records) == 1
        assert broker.state.pop.points.count == 1
        # Nothing was written about them.
        assert broker.state.storage.max_offset(broker.state.pop.journal.topic, 0) == end
        assert (await ack(wire, again)).code == 0
        assert broker.state.pop.points.count == 0


@pytest.mark.spec("P28", "P31", "P32", "P33", "P34")
@in_virtual_time
async def test_a_change_moves_the_time_and_kills_the_old_handle(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (got,) = await pop(wire, invisible=10)
        answer = await change(wire, got, 120)
        longer = changed(got, answer)
        assert ext(answer)["invisibleTime"] == "120000"
        assert longer.handle != got.handle
        assert (await ack(wire, got)).code == 0
        await stage.clock.sleep(60)
        assert await pop(wire) == []
        await stage.clock.sleep(59.5)
        assert await pop(wire) == []
        await stage.clock.sleep(1)
        (again,) = await pop(wire, invisible=60)
        assert again.times == 1
        short = changed(again, await change(wire, again, 1, suspend=True))
        await stage.clock.sleep(0.9)
        assert await pop(wire) == []
        await stage.clock.sleep(0.6)
        (suspended,) = await pop(wire)
        assert suspended.times == 1
        assert (await ack(wire, short)).code == 0
        # A proxy that kept the old start offset.
        moved = changed(suspended, await change(wire, suspended, 30))
        handle = ReceiptHandle.parse(moved.handle)._replace(start_offset=0)
        assert (await ack(wire, moved._replace(handle=f"{handle} 0 4096"))).code == 0
        await stage.clock.sleep(70)
        assert await pop(wire) == []
        assert broker.state.pop.points.count == 0


@pytest.mark.spec("P29", "P30")
@in_virtual_time
async def test_a_batch_acknowledges_exactly_its_bits(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        await send(wire, *numbered(10))
        got = await pop(wire, invisible=10)
        assert await ack_all(wire, entry([got[i] for i in (0, 3, 9)])) == 0
        assert await ack_all(wire, entry(got, bits=b"\x00" * 500 + b"\xff")) == 0
        assert await ack_all(wire) == 208
        assert await ack_all(wire, entry(got, retry="7")) == 1
        assert await ack_all(wire, entry(got, bits=bytes(131_072))) == 1
        assert (await wire.request(RequestCode.BATCH_ACK_MESSAGE, body=b"")).code == 208
        assert broker.state.pop.points.count == 7
        await stage.clock.sleep(10.5)
        again = await pop(wire)
        left = {body for i, body in enumerate(numbered(10)) if i not in (0, 3, 9)}
        assert {one.body for one in again} == left
        await send(wire, b"new", queue_id=1)
        (new,) = await pop(wire)
        assert await ack_all(wire, entry(again, retry="1"), entry([new])) == 0
        assert broker.state.pop.points.count == 0


# Coming again


@pytest.mark.spec("P41")
@in_virtual_time
async def test_retries_are_not_starved_by_a_full_topic(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"failed")
        await pop(wire, invisible=1)
        await stage.clock.sleep(1.5)
        await send(wire, *numbered(400))
        found: list[bytes] = []
        for _ in range(40):
            found += bodies(await pop(wire, count=8, invisible=300))
        assert b"failed" in found
        assert len(found) == 320


@pytest.mark.spec("P42")
@in_virtual_time
async def test_retry_topics_of_one_name_do_not_mix(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await put_topic(wire, "a_T", 1)
        await send(wire, b"mine")
        await send(wire, b"theirs", topic="a_T")
        assert bodies(await pop(wire, group="G_a", invisible=5)) == [b"mine"]
        assert bodies(await pop(wire, group="G", topic="a_T", invisible=5)) == [b"theirs"]
        await stage.clock.sleep(5.5)
        assert bodies(await pop(wire, group="G_a")) == [b"mine"]
        assert bodies(await pop(wire, group="G", topic="a_T")) == [b"theirs"]


@pytest.mark.spec("P43")
@in_virtual_time
async def test_used_up_retries_end_among_the_dead_letters(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=2))
        await send(wire, b"bad")
        for times in range(3):
            (got,) = await pop(wire, invisible=5)
            assert got.times == times
            await stage.clock.sleep(5.5)
        assert await pop(wire) == []
        (letter,) = await all_records(wire, "%DLQ%g")
        assert (letter.body, letter.reconsume_times) == (b"bad", 3)


@in_virtual_time
async def test_the_second_spelling_of_retry_topics(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(enable_retry_topic_v2=True))
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        await pop(wire, invisible=5)
        await stage.clock.sleep(5.5)
        (got,) = await pop(wire)
        assert got.topic == "%RETRY%g+T"
        assert ReceiptHandle.parse(got.handle).flag == 2
        assert await ack_all(wire, entry([got], retry="2")) == 0
        await stage.clock.sleep(100)
        assert await pop(wire) == []


@pytest.mark.spec("P44", "P46")
@pytest.mark.parametrize("deleted", ["group", "topic"])
@in_virtual_time
async def test_receipts_of_what_was_deleted_vanish(tmp_path: Path, deleted: str) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one", b"two")
        await pop(wire, invisible=10)
        if deleted == "group":
            ask = DeleteGroup("g", clean_offset=False)
            await wire.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, ask)
        else:
            await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
            await put_topic(wire, "T", 1)
            await send(wire, b"new")
        assert broker.state.pop.points.count == 0
        await stage.clock.sleep(15)
        found = await pop(wire)
        assert bodies(found) == ([] if deleted == "group" else [b"new"])
        for one in found:
            assert (await ack(wire, one)).code == 0
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        await stage.clock.sleep(100)
        assert "%RETRY%g_T" not in broker.state.topics


@pytest.mark.spec("P45")
@in_virtual_time
async def test_a_message_that_is_gone_is_dropped_and_not_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(3))
        got = await pop(wire, invisible=10)
        queue = broker.state.pop.points.queue("g", "T", 0)
        point = queue.receipts[next(iter(queue.receipts))]
        # As if retention had taken the records: the receipt points to offsets that do not exist.
        point.offsets = [one.offset + 100 for one in got]
        queue.receipts.clear()
        queue.receipts.update({(point.pop_time, offset): point for offset in point.offsets})
        await stage.clock.sleep(10.5)
        assert await pop(wire) == []
        assert sum("is gone" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.spec("P54", "P55")
@in_virtual_time
async def test_a_reset_moves_the_next_pop_and_leaves_receipts(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(6))
        first = await pop(wire, count=4, invisible=300)
        broker.state.offsets.reset("g", "T", 0, 1)
        again = await pop(wire, count=2, invisible=300)
        assert bodies(again) == numbered(3)[1:]
        broker.state.offsets.reset("g", "T", 0, 5)
        assert bodies(await pop(wire, invisible=300)) == [b"0005"]
        for one in first + again:
            assert (await ack(wire, one)).code == 0
        assert broker.state.pop.points.count == 1


# Writes that fail


@pytest.mark.spec("P26", "P50")
@in_virtual_time
async def test_nothing_is_handed_out_or_finished_without_its_record(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one", b"two")
        (one,) = await pop(wire, count=1, invisible=300)
        for start in (
            lambda wire: wire.start(
                RequestCode.ACK_MESSAGE, AckMessage("g", "T", 0, one.handle, one.offset)
            ),
            lambda wire: start_pop(wire, count=1),
        ):
            files.disk.free_bytes = 0
            answer = start(wire)
            await stage.clock.sleep(1)
            # The answer was withheld together with its connection.
            assert wire.is_closed
            with contextlib.suppress(Exception):
                await answer
            wire = await stage.connect(broker)
            assert broker.state.pop.points.count == 1
            assert broker.state.offsets.committed("g", "T", 0) == 1
            # From now on the store refuses, and the answer says so.
            for _ in range(20):
                assert (await start(wire)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert broker.state.pop.points.count == 1
            files.disk.free_bytes = None
            await stage.clock.sleep(90)
        assert (await ack(wire, one)).code == 0
        assert bodies(await pop(wire)) == [b"two"]


# One record for the acknowledgements of a turn


def start_ack(wire: Wire, one: Got) -> asyncio.Future[Command]:
    header = AckMessage("g", one.topic, one.queue_id, one.handle, one.offset)
    return wire.start(RequestCode.ACK_MESSAGE, header)


@in_virtual_time
async def test_acknowledgements_of_one_turn_share_a_record(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        await send(wire, *numbered(6))
        await send(wire, b"other", queue_id=1)
        got = await pop(wire, invisible=10)
        storage, journal = broker.state.storage, broker.state.pop.journal
        queue_id = ReceiptHandle.parse(got[0].handle).revive_queue_id
        before = storage.max_offset(journal.topic, queue_id)
        for answer in [start_ack(wire, one) for one in got if one.body != b"0002"]:
            assert (await answer).code == 0
        # One for each check-point: of queue 0 and of queue 1.
        assert storage.max_offset(journal.topic, queue_id) == before + 2
        assert broker.state.pop.points.count == 1
        # A second acknowledgement in the same turn has no effect.
        (again,) = [one for one in got if one.body == b"0002"]
        assert [(await one).code for one in [start_ack(wire, again) for _ in range(3)]] == [0, 0, 0]
        assert storage.max_offset(journal.topic, queue_id) == before + 3
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        assert broker.state.pop.points.count == 0
        await stage.clock.sleep(60)
        assert await pop(await stage.connect(broker)) == []


@pytest.mark.spec("P26")
@in_virtual_time
async def test_acknowledgements_that_are_refused_at_the_end_of_their_turn_are_not_answered(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(4))
        got = await pop(wire, invisible=10)
        storage = broker.state.storage

        def fail() -> None:
            files.failing_syncs = 1
            with contextlib.suppress(StoreError):
                storage.store.flush()

        # In the same turn, between the acknowledgements and their record, the disk fails.
        storage.before_write(fail)
        broker.state.storage.append(Draft("T", 0, b"last", b""))
        receipts = [Receipt("g", "T", 0, one.offset, *handle_times(one)) for one in got[:3]]
        for receipt in receipts:
            acknowledge(broker.state, receipt)
        assert broker.state.pop.points.count == 1
        with pytest.raises(StoreError):
            storage.write()
        assert broker.state.pop.points.count == 4
        assert not storage.store.is_writable


@pytest.mark.spec("P26", "P52")
@pytest.mark.parametrize("request_", ["pop", "ack", "change"])
@in_virtual_time
async def test_with_synchronous_flush_no_answer_comes_before_its_record_is_on_the_disk(
    tmp_path: Path, request_: str
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store={"flush_disk_type": "SYNC_FLUSH"})
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one", b"two")
        (one,) = await pop(wire, count=1)
        files.failing_syncs = 1
        if request_ == "pop":
            answer = await start_pop(wire, count=1)
        elif request_ == "ack":
            answer = await ack(wire, one)
        else:
            answer = await change(wire, one, 30)
        assert answer.code != 0


def handle_times(one: Got) -> tuple[int, int, int]:
    handle = ReceiptHandle.parse(one.handle)
    return handle.pop_time, handle.invisible_time, handle.revive_queue_id


@in_virtual_time
async def test_the_journal_is_not_done_before_the_record_of_an_end(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (one,) = await pop(wire)
        journal, storage = broker.state.pop.journal, broker.state.storage
        pop_time, invisible, queue_id = handle_times(one)
        acknowledge(broker.state, Receipt("g", "T", 0, 0, pop_time, invisible, queue_id))
        end = journal.end
        # The record is appended before the committed number passes the check-point.
        journal.keep_up()
        assert journal.end > end
        assert journal.committed(queue_id) == 1
        storage.write()
        assert storage.max_offset(journal.topic, queue_id) == 2


@in_virtual_time
async def test_acknowledgements_are_counted(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(3))
        for one in await pop(wire):
            await ack(wire, one)
        assert broker.state.stats.acks["T", "g"].count == 3


@in_virtual_time
async def test_a_shorter_time_is_kept_to_the_moment(tmp_path: Path) -> None:
    """Not only when the next look at everything that is due comes by."""
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        for number in range(5):
            await send(wire, b"%d" % number)
            (got,) = await pop(wire, invisible=60)
            assert (await change(wire, got, 0.2)).code == 0
            await stage.clock.sleep(0.25)
            (again,) = await pop(wire, invisible=60)
            assert again.body == got.body
            assert (await ack(wire, again)).code == 0
            await stage.clock.sleep(0.13)


@in_virtual_time
async def test_a_queue_gives_no_more_at_the_limit_of_receipts(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(pop_inflight_message_threshold=10)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(30))
        got = await pop(wire, count=8)
        got += await pop(wire, count=8)
        assert len(got) == 16
        assert await pop(wire, count=8) == []
        for one in got[:8]:
            await ack(wire, one)
        assert len(await pop(wire, count=8)) == 8


@in_virtual_time
async def test_what_cannot_be_stored_comes_again_when_there_is_room(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        await pop(wire, invisible=2)
        files.disk.free_bytes = 0
        await stage.clock.sleep(10)
        assert broker.state.pop.points.count == 1
        files.disk.free_bytes = None
        await stage.clock.sleep(15)
        wire = await stage.connect(broker)
        assert bodies(await pop(wire)) == [b"one"]
