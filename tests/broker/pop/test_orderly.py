"""Orderly pop: one batch of a queue at a time, in order, with counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import all_records, committed, ext, put_group, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.popping import Got, ack, bodies, change, messages, pop, start_pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.pop.orders import Orders
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.headers.receipts import ReceiptHandle

APACHE = (
    b'{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"TopicTest@g1":{3:{"a":"att-1",'
    b'"cm":3,"i":30000,"l":1794897577652,"o":[100,1,3],"ot":{103:1700000040000},'
    b'"popTime":1700000000000}}}}'
)


async def send(wire: Wire, *bodies: bytes, queue_id: int = 0) -> None:
    for body in bodies:
        await wire.send("T", body, queue_id=queue_id)


async def take(wire: Wire, count: int = 32, **more: object) -> list[Got]:
    return await pop(wire, count=count, order=True, **{"invisible": 10, **more})


@pytest.mark.spec("P63", "P65", "P5")
@in_virtual_time
async def test_a_queue_gives_one_batch_at_a_time(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        await send(wire, b"0", b"1", b"2", b"3")
        got = await take(wire, 3)
        assert [one.body for one in got] == [b"0", b"1", b"2"]
        assert ReceiptHandle.parse(got[0].handle).revive_queue_id == 999
        assert await take(wire) == []
        await send(wire, b"other", queue_id=1)
        assert bodies(await take(wire)) == [b"other"]
        assert (await ack(wire, got[1])).code == 0
        assert await committed(wire, "g", "T") == 0
        assert (await ack(wire, got[0])).code == 0
        assert await committed(wire, "g", "T") == 2
        assert await take(wire) == []
        assert (await ack(wire, got[2])).code == 0
        assert await committed(wire, "g", "T") == 3
        assert bodies(await take(wire)) == [b"3"]
        assert broker.state.pop.points.count == 0


@pytest.mark.spec("P64")
@in_virtual_time
async def test_the_same_attempt_gets_the_same_batch_at_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"0", b"1")
        first = await start_pop(wire, order=True, attempt="a", invisible=10)
        again = await start_pop(wire, order=True, attempt="a", invisible=10, wait=5)
        for answer in (first, again):
            assert bodies(messages(answer)) == [b"0", b"1"]
            assert ext(answer)["orderCountInfo"] == "0 0 0"
        assert await take(wire, attempt="b") == []
        for one in messages(again):
            assert (await ack(wire, one)).code == 0


@pytest.mark.spec("P66", "P71")
@in_virtual_time
async def test_an_unfinished_batch_comes_again_with_its_count(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, other = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"0", b"1", b"2")
        got = await take(wire)
        await ack(wire, got[0])
        for count in (1, 2):
            begun = stage.clock.monotonic()
            answer = await start_pop(other, order=True, invisible=10, wait=30)
            again = messages(answer)
            assert [one.body for one in again] == [b"1", b"2"]
            assert ext(answer)["orderCountInfo"] == (f"0 qo0%1 {count};0 qo0%2 {count};0 0 {count}")
            assert 9.5 < stage.clock.monotonic() - begun <= 10.3
        held = start_pop(other, order=True, wait=30)
        await stage.clock.sleep(0.1)
        await send(wire, b"3")
        for one in again:
            assert (await ack(wire, one)).code == 0
        await stage.clock.sleep(0.2)
        assert held.done()
        assert bodies(messages(held.result())) == [b"3"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@in_virtual_time
async def test_used_up_retries_are_dead_letters_and_free_the_queue(
    tmp_path: Path, flush: str
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": flush})
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=2))
        await send(wire, b"bad", b"good", b"bad, too", b"next")
        for times in range(3):
            got = await take(wire, 3)
            assert [one.body for one in got] == [b"bad", b"good", b"bad, too"], times
            # Acknowledged each time, and handed out again behind the one that fails.
            assert (await ack(wire, got[1])).code == 0
            if times == 1:
                # A repeated attempt is no further one.
                again = await take(wire, 3, attempt="a")
                assert again == []
            await stage.clock.sleep(10.5)
        answer = await start_pop(wire, order=True, invisible=10, count=3)
        got = messages(answer)
        assert [one.body for one in got] == [b"good", b"bad, too"]
        assert ext(answer)["msgOffsetInfo"] == "0 0 1,2"
        assert await committed(wire, "g", "T") == 1
        (letter,) = await all_records(wire, "%DLQ%g")
        assert (letter.body, letter.reconsume_times) == (b"bad", 3)
        assert parse_properties(letter.properties)["RETRY_TOPIC"] == "T"
        assert (await ack(wire, got[0])).code == 0
        await stage.clock.sleep(10.5)
        # The second one fails once more than it may.
        assert bodies(await take(wire)) == [b"next"]
        assert [one.body for one in await all_records(wire, "%DLQ%g")] == [b"bad", b"bad, too"]
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(store={"flush_disk_type": flush}))
        assert await committed(wire, "g", "T") == 3


@in_virtual_time
async def test_a_dead_letter_that_cannot_be_written_stays_in_its_queue(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=0))
        await send(wire, b"bad", b"next")
        assert len(await take(wire, 1)) == 1
        await stage.clock.sleep(10.5)
        files.disk.free_bytes = 0
        with pytest.raises(ConnectionResetError):
            await start_pop(wire, order=True)
        assert broker.state.offsets.committed("g", "T", 0) == 0
        files.disk.free_bytes = None
        await stage.clock.sleep(90)
        wire = await stage.connect(broker)
        assert b"bad" in bodies(await take(wire))


@pytest.mark.spec("P67", "P68", "P69")
@in_virtual_time
async def test_other_pop_times_offsets_and_changes(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"0", b"1", b"2", b"3")
        got = await take(wire, 2)
        handle = ReceiptHandle.parse(got[0].handle)
        late = got[0]._replace(handle=str(handle._replace(pop_time=1)))
        assert (await ack(wire, late)).code == 0
        assert (await ack(wire, got[0], offset=3)).code == 13
        assert await committed(wire, "g", "T") == 0
        answer = await change(wire, got[1], 25)
        assert ext(answer)["popTime"] == str(handle.pop_time)
        assert ext(answer)["reviveQid"] == "999"
        assert int(ext(answer)["invisibleTime"]) == pytest.approx(25_000, abs=500)
        assert (await ack(wire, got[0])).code == 0
        assert (await change(wire, got[0], 5)).code == 208
        await stage.clock.sleep(15)
        assert await take(wire) == []
        await stage.clock.sleep(11)
        assert bodies(await take(wire)) == [b"1", b"2", b"3"]


@pytest.mark.spec("P70", "P71", "P72")
@in_virtual_time
async def test_batches_survive_a_restart_and_a_lost_one_skips_nothing(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"0", b"1", b"2")
        got = await take(wire)
        await ack(wire, got[0])
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        held = start_pop(wire, order=True, invisible=10, wait=30)
        await stage.clock.sleep(5)
        assert not held.done()
        again = messages(await held)
        assert [one.body for one in again] == [b"1", b"2"]
    for file in (tmp_path / "broker-a/config").glob("consumerOrderInfo.json*"):
        file.unlink()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert (await ack(wire, again[1])).code == 0
        assert await committed(wire, "g", "T") == 1
        assert [one.body for one in await take(wire)] == [b"1", b"2"]


@pytest.mark.spec("P54")
@in_virtual_time
async def test_a_reset_frees_a_blocked_queue(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"0", b"1")
        await take(wire)
        assert await take(wire) == []
        broker.state.offsets.reset("g", "T", 0, 1)
        assert bodies(await take(wire)) == [b"1"]


@pytest.mark.spec("P65", "P67", "P72")
def test_the_file_of_apache_is_taken_over_and_given_back() -> None:
    orders = Orders(now_ms=lambda: 1794897577652)
    orders.load(APACHE)
    assert orders.is_blocked("TopicTest", "g1", 3, None, 1_700_000_039_000)
    assert not orders.is_blocked("TopicTest", "g1", 3, "att-1", 1_700_000_039_000)
    assert not orders.is_blocked("TopicTest", "g1", 3, None, 1_700_000_041_000)
    text = orders.dump().replace(b"\n", b"").replace(b"\t", b"")
    assert text == APACHE
    result = orders.acknowledge("TopicTest", "g1", 3, 103, 1_700_000_000_000)
    assert result is not None
    assert (result.next_offset, result.is_free) == (104, True)
    assert orders.acknowledge("TopicTest", "g1", 3, 102, 1_700_000_000_000) is None
