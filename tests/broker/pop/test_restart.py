"""Open receipts after a restart, a kill and a power failure; stores of other brokers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.asking import committed, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.popping import Got, ack, bodies, change, changed, pop
from tests.support.stage import SMALL_STORE, Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.delivery.record_views import record_views
from penstock.broker.pop.check_points import CheckPoint, PopQueue
from penstock.broker.pop.journal import Journal
from penstock.broker.pop.revive_records import (
    ReadAck,
    ReadCheckPoint,
    ack_body,
    check_point_body,
    properties_of,
    read_revive_record,
)
from penstock.model.names import REVIVE_GROUP
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.receipts import ReceiptHandle
from penstock.protocol.records.codec import Record, decode_record
from penstock.store import Draft, MessageStore

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


async def send(wire: Wire, *bodies: bytes) -> None:
    for body in bodies:
        await wire.send("T", body)


def read_offsets(data: bytes) -> ConsumerOffsetTable:
    return decode_body(ConsumerOffsetTable, data)


def write_offsets(tmp_path: Path, data: bytes) -> None:
    """Write the offsets as another program would: without a checksum."""
    file = tmp_path / "broker-a/config/consumerOffset.json"
    file.write_bytes(data)
    file.with_name(file.name + ".sum").unlink(missing_ok=True)
    file.with_name(file.name + ".bak").unlink(missing_ok=True)


def saved_offsets(tmp_path: Path) -> ConsumerOffsetTable:
    return read_offsets((tmp_path / "broker-a/config/consumerOffset.json").read_bytes())


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


@pytest.mark.spec("P22", "P51", "P56", "P58")
@in_virtual_time
async def test_open_receipts_survive_a_restart(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(10))
        got = await pop(wire, count=6, invisible=30)
        for one in got[1:]:
            await ack(wire, one)
    saved = saved_offsets(tmp_path).offset_table
    assert saved["T@g"] == {0: 6}
    revive_queue = ReceiptHandle.parse(got[0].handle).revive_queue_id
    assert saved.get(f"{REVIVE}@{REVIVE_GROUP}", {}).get(revive_queue, -1) == -1
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert broker.state.pop.points.count == 1
        assert bodies(await pop(wire, invisible=300)) == numbered(10)[6:]
        await stage.clock.sleep(31)
        (again,) = await pop(wire, invisible=300)
        assert (again.body, again.times) == (b"0000", 1)
        # The first handle is dead now, the new one works across restarts.
        assert (await ack(wire, got[0])).code == 0
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert broker.state.pop.points.count == 5
        assert (await ack(wire, again)).code == 0
        assert broker.state.pop.points.count == 4


@pytest.mark.spec("P51", "P52")
@in_virtual_time
async def test_a_power_failure_loses_no_message(tmp_path: Path) -> None:
    """What was not flushed is gone; what the offsets file says relies on nothing of it."""
    disk = SimulatedDisk()
    for is_acked in (False, True):
        files = FaultyFiles(disk)
        async with Stage(tmp_path) as stage:
            broker = await stage.broker(files=files)
            wire = await stage.connect(broker)
            await put_topic(wire, "T", 1)
            await send(wire, *numbered(4))
            await stage.clock.sleep(2)
            got = await pop(wire, count=2, invisible=60)
            flushed = broker.state.storage.store.flushed_position
            # As a save between two flushes would write it.
            saved = read_offsets(broker.state.offsets.dump())
            assert broker.state.storage.store.flushed_position == flushed
            assert saved.penstock_pop == flushed
            assert saved.offset_table.get("T@g", {}).get(0, 0) == got[0].offset
            await stage.clock.sleep(2)
            saved = read_offsets(broker.state.offsets.dump())
            assert saved.offset_table["T@g"][0] == got[0].offset + 2
            if is_acked:
                for one in got:
                    await ack(wire, one)


@in_virtual_time
async def test_what_was_handed_out_after_the_last_save_is_not_handed_out_again(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(8))
        first = await pop(wire, count=4, invisible=60)
        await ack(wire, first[0])
    # The file of a broker that was killed: from before the pop.
    saved = saved_offsets(tmp_path)
    del saved.offset_table["T@g"]
    write_offsets(tmp_path, encode_state(dataclasses.replace(saved, penstock_pop=0)))
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert bodies(await pop(wire, invisible=60)) == numbered(8)[4:]
        await stage.clock.sleep(61)
        assert bodies(await pop(wire)) == numbered(8)[1:]


# The journal


@pytest.mark.spec("P53")
@in_virtual_time
async def test_a_receipt_that_stays_open_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.pop.journal.MOST_BEHIND", 20)
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"long", *numbered(200))
        (long,) = await pop(wire, count=1, invisible=7000)
        await stage.clock.sleep(1.5)
        for _ in range(30):
            for one in await pop(wire, count=5, invisible=7000):
                await ack(wire, one)
            await stage.clock.sleep(1)
        journal: Journal = broker.state.pop.journal
        end = broker.state.storage.max_offset(REVIVE, 7)
        done = journal.committed(7)
        assert done is not None
        assert end - done <= 40
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert broker.state.pop.points.count == 1
        assert (await ack(wire, long)).code == 0
        assert broker.state.pop.points.count == 0


def record(body: bytes, tag: bytes) -> Record:
    with_store = Draft("R", 0, body, properties_of(tag, 1_700_000_000_004))
    return Record(
        0, 0, 0, 0, 0, 0, 8192, 0, 0, b"", 0, b"", 0, 0, with_store.body, "R", with_store.properties
    )


def test_records_are_those_of_apache() -> None:
    queue = PopQueue("g1", "TopicTest", 3)
    point = CheckPoint(queue, 100, (100, 101, 103), 1_700_000_000_000, 60_000, 2)
    body = check_point_body(point, point.offsets, "broker-a")
    assert body == (
        b'{"bm":0,"bn":"broker-a","c":"g1","d":[0,1,3],"it":60000,"n":3,"pt":1700000000000,"q":3,'
        b'"reviveTime":1700000060000,"ro":0,"so":100,"sp":false,"t":"TopicTest"}'
    )
    assert ack_body(point, [103], "broker-a") == (
        b'{"ao":103,"bn":"broker-a","c":"g1","pt":1700000000000,"q":3,"so":100,"t":"TopicTest"}'
    )
    assert ack_body(point, [100, 103], "broker-a") == (
        b'{"ao":-1,"aol":[100,103],"bn":"broker-a","c":"g1","pt":1700000000000,"q":3,"so":100,'
        b'"t":"TopicTest"}'
    )
    read = read_revive_record(record(body, b"ck"), "broker-a")
    assert isinstance(read, ReadCheckPoint)
    assert read.offsets == (100, 101, 103)
    short = (
        b'{"so":100,"pt":1700000000000,"it":60000,"n":1,"q":3,"t":"TopicTest","c":"g1","d":[3],'
        b'"bn":"broker-a"}'
    )
    read = read_revive_record(record(short, b"ck"), "broker-a")
    assert isinstance(read, ReadCheckPoint)
    assert read.offsets == (103,)
    acked = read_revive_record(record(ack_body(point, [100, 103], "broker-a"), b"bAck"), "broker-a")
    assert acked == ReadAck("g1", "TopicTest", 3, 1_700_000_000_000, (100, 103))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"c":"g"}',
        b'{"so":1,"pt":1,"it":1,"n":99999999999,"q":0,"t":"T","c":"g"}',
        b'{"so":1,"pt":1,"it":1,"n":1,"q":0,"t":"T","c":"g","d":["x"]}',
        b'{"so":1,"pt":99999999999999999999,"it":1,"n":1,"q":0,"t":"T","c":"g","d":[0]}',
        b'{"so":1,"pt":1,"it":1,"n":1,"q":0,"t":"T","c":"g","d":[0],"bn":"another"}',
    ],
)
def test_records_that_make_no_sense_are_left_out(body: bytes) -> None:
    assert read_revive_record(record(body, b"ck"), "broker-a") is None
    assert read_revive_record(record(body, b"ack"), "broker-a") is None


@pytest.mark.spec("P61", "P62")
@in_virtual_time
async def test_check_points_of_apache_are_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "broker-a"
    now = None
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(6))
        await wire.heartbeat("me@1", consumer="g", topics=["T"])
        now = round(stage.clock.time() * 1000)
    queue = PopQueue("g", "T", 0)
    point = CheckPoint(queue, 0, (0, 1, 2), now, 20_000, 2)
    with MessageStore(root, SMALL_STORE, time_ms=lambda: now) as store:
        # The acknowledgement first: it need not be in order.
        for tag, body in (
            (b"ack", ack_body(point, [1], "broker-a")),
            (b"ck", check_point_body(point, point.offsets, "broker-a")),
            (b"ck", b"not a check-point"),
        ):
            store.append(Draft(REVIVE, 2, body, properties_of(tag, now)))
        store.write()
    write_offsets(tmp_path, b'{"offsetTable":{"T@g":{"0":3}}}')
    (root / "kvStore").mkdir()
    (root / "kvStore/CURRENT").write_text("x")
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        assert broker.state.pop.points.count == 2
        assert any("exportPopRecord" in record.getMessage() for record in caplog.records)
        assert bodies(await pop(wire, invisible=300)) == numbered(6)[3:]
        await stage.clock.sleep(21)
        assert bodies(await pop(wire, invisible=300)) == [b"0000", b"0002"]
        # From now on the file says what it takes into account.
        assert saved_offsets(tmp_path).penstock_pop is not None


@in_virtual_time
async def test_a_check_point_from_before_a_deletion_opens_no_receipt(tmp_path: Path) -> None:
    """Other programs delete a topic and leave its check-points open."""
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"old")
        await wire.heartbeat("me@1", consumer="g", topics=["T"])
        now = round(stage.clock.time() * 1000)
    point = CheckPoint(PopQueue("g", "T", 0), 0, (0,), now, 20_000, 2)
    with MessageStore(tmp_path / "broker-a", SMALL_STORE, time_ms=lambda: now) as store:
        body = check_point_body(point, point.offsets, "broker-a")
        store.append(Draft(REVIVE, 2, body, properties_of(b"ck", now)))
        store.delete_topic("T")
        store.append(Draft("T", 0, b"new", b""))
        store.write()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        assert broker.state.pop.points.count == 0
        assert bodies(await pop(await stage.connect(broker))) == [b"new"]


@pytest.mark.spec("P61")
@in_virtual_time
async def test_check_points_that_a_timer_brings_later_are_taken_over(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(3))
        (got,) = await pop(wire, count=1, invisible=60)
        broker.state.offsets.commit("g", "T", 0, 3, "test")
        now = round(stage.clock.time() * 1000)
        point = CheckPoint(PopQueue("g", "T", 0), 1, (1, 2), now, 5_000, 3)
        store = broker.state.storage.store
        for tag, body in (
            (b"ck", check_point_body(point, point.offsets, "broker-a")),
            (b"ack", ack_body(point, [2], "broker-a")),
        ):
            timed = properties_of(tag, now) + b"TIMER_OUT_MS\x01%d\x02" % now
            store.append(Draft(REVIVE, 3, body, timed))
        # Our own records behind them are not taken for theirs.
        moved = changed(got, await change(wire, got, 30))
        await stage.clock.sleep(2)
        assert broker.state.pop.points.count == 2
        assert (await ack(wire, moved)).code == 0
        await stage.clock.sleep(10)
        assert bodies(await pop(wire)) == [b"0001"]


def timed(store: MessageStore, tag: bytes, body: bytes, now: int) -> None:
    """A record of the revive topic as Apache's timer brings it."""
    properties = properties_of(tag, now) + b"TIMER_OUT_MS\x01%d\x02" % now
    store.append(Draft(REVIVE, 3, body, properties))


@pytest.mark.spec("P61")
@in_virtual_time
async def test_acknowledgements_before_the_timer_brings_their_check_point_count(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(4))
        await wire.heartbeat("me@1", consumer="g", topics=["T"])
        due = str(round(stage.clock.time() * 1000) + 3_600_000)
        await wire.send("T", b"timer", properties={"TIMER_DELIVER_MS": due})
        pop_time = round(stage.clock.time() * 1000)
        await stage.clock.sleep(1)
    # Apache's broker ran last: it handed out all four, and its check-point is in the timer.
    write_offsets(tmp_path, b'{"offsetTable":{"T@g":{"0":4}}}')
    point = CheckPoint(PopQueue("g", "T", 0), 0, (0, 1, 2, 3), pop_time, 60_000, 3)
    handle = ReceiptHandle(0, pop_time, 60_000, 3, 0, "broker-a", 0, 0)
    got = [
        Got(body, "T", 0, offset, 0, str(handle._replace(queue_offset=offset)), {})
        for offset, body in enumerate(numbered(4))
    ]
    for life in range(3):
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            if life < 2:
                # Acknowledged in two lives of our broker; a second time is no other end.
                for _ in range(2):
                    assert (await ack(wire, got[life])).code == 0
                await stage.clock.sleep(3)
                continue
            timed(broker.state.storage.store, b"ck", check_point_body(
                point, point.offsets, "broker-a"), pop_time)  # fmt: skip
            await stage.clock.sleep(6)
            assert broker.state.pop.points.count == 2
            await stage.clock.sleep(70)
            wire = await stage.connect(broker)
            assert bodies(await pop(wire, invisible=300)) == [b"0002", b"0003"]
            # Long after that, an acknowledgement without a receipt is a repeated one again.
            await stage.clock.sleep(20)
            assert not broker.state.pop.journal.early.has_open(broker.state.clock.time_ms())


@pytest.mark.spec("P59")
@in_virtual_time
async def test_an_apache_broker_finds_what_it_needs(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(3))
        got = await pop(wire, invisible=600)
        await ack(wire, got[1])
        assert await committed(wire, "g", "T") == 3
    saved = saved_offsets(tmp_path).offset_table
    done = saved.get(f"{REVIVE}@{REVIVE_GROUP}", {}).get(7, -1)
    with MessageStore(tmp_path / "broker-a", SMALL_STORE) as store:
        found = store.read(REVIVE, 7, done + 1)
        tags, times = [], []
        position = 0
        data = b"".join(map(bytes, found.slices))
        while position < len(data):
            one = decode_record(memoryview(data)[position:])
            position += one.size
            tags.append(one.properties.split(b"\x02")[0])
            times.append(int(one.properties.split(b"\x01")[2].rstrip(b"\x02")))
            assert times[-1] <= one.store_timestamp
    assert tags == [b"TAGS\x01ck", b"TAGS\x01ack"]


def apache_revives(root: Path, done: dict[int, int], now_ms: int) -> set[tuple[str, int, int]]:
    """Topic, queue and offset of what Apache's reader of the revive topic would store again now.

    Check-points are found by a text of topic, group, queue, start offset, pop time and broker name;
    acknowledgements belong to the one with the same text, by their index in its list.
    """
    points: dict[tuple[object, ...], tuple[dict[str, Any], set[int]]] = {}
    acks: list[tuple[tuple[object, ...], list[int]]] = []
    end_time = 0
    with MessageStore(root, SMALL_STORE) as store:
        for queue_id in range(8):
            offset = done.get(queue_id, -1) + 1
            while (found := store.read(REVIVE, queue_id, offset)).count:
                offset = found.next_offset
                for view in record_views(found.slices):
                    one = decode_record(view)
                    properties = parse_properties(one.properties)
                    end_time = max(end_time, int(properties["TIMER_DELIVER_MS"]))
                    body = json.loads(one.body)
                    key = tuple(body[name] for name in ("t", "c", "q", "so", "pt", "bn"))
                    if properties["TAGS"] == "ck":
                        points[key] = (body, set())
                    else:
                        acks.append((key, body.get("aol") or [body["ao"]]))
    for key, offsets in acks:
        if key in points:
            body, acked = points[key]
            acked.update(body["d"].index(one - body["so"]) for one in offsets)
    assert end_time <= now_ms, "a time in the future would revive the others too early"
    return {
        (body["t"], body["q"], body["so"] + step)
        for body, acked in points.values()
        for index, step in enumerate(body["d"])
        if index not in acked and now_ms - (body["pt"] + body["it"]) > 2_000
    }


@pytest.mark.spec("P59", "P60")
@in_virtual_time
async def test_an_apache_broker_takes_acknowledgements_with_our_handles(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        for number in range(6):
            await wire.send("T", b"%d" % number, properties={"TAGS": "ab"[number % 2]})
        # A filter, so that the start offset is not that of the first message.
        got = await pop(wire, invisible=60, tags="b")
        assert [one.offset for one in got] == [1, 3, 5]
        assert (await ack(wire, got[0])).code == 0
        moved = changed(got[1], await change(wire, got[1], 40))
        now = round(stage.clock.time() * 1000)
    root = tmp_path / "broker-a"
    done = saved_offsets(tmp_path).offset_table.get(f"{REVIVE}@{REVIVE_GROUP}", {})
    assert apache_revives(root, done, now) == set()
    assert apache_revives(root, done, now + 62_100) == {("T", 0, 3), ("T", 0, 5)}
    # As Apache's broker writes an acknowledgement: from the request and its handle.
    for one in (moved, got[2]):
        handle = ReceiptHandle.parse(one.handle)
        said = {
            "ao": one.offset,
            "bn": handle.broker_name,
            "c": "g",
            "pt": handle.pop_time,
            "q": one.queue_id,
            "so": handle.start_offset,
            "t": one.topic,
        }
        with MessageStore(root, SMALL_STORE) as store:
            properties = properties_of(b"ack", handle.pop_time)
            body = json.dumps(said).encode()
            store.append(Draft(REVIVE, handle.revive_queue_id, body, properties))
            store.write()
    assert apache_revives(root, done, now + 62_100) == set()


@in_virtual_time
async def test_clients_cannot_write_to_the_journal(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (got,) = await pop(wire, invisible=60)
        queue = broker.state.pop.points.queue("g", "T", 0)
        forged = ack_body(next(iter(queue.receipts.values())), [got.offset], "broker-a")
        for _ in range(2):
            answer = await wire.send(REVIVE, forged, properties={"TAGS": "ack"})
            assert answer.code == ResponseCode.NO_PERMISSION
        await stage.clock.sleep(2)
        assert broker.state.pop.points.count == 1
