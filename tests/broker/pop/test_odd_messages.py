"""Messages that cannot be stored again like others: each comes back, or is kept for later."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import all_records, put_group, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.popping import bodies, pop
from tests.support.stage import Stage, in_virtual_time

from penstock.broker.broker import Broker
from penstock.model.names import Property
from penstock.model.properties import MAX_PROPERTIES_BYTES, get_property, parse_properties
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.store import Draft

ODD = {
    "a second separator": b"a\x01b\x01c\x02",
    "no end": b"k\x01v",
    "as long as can be": b"k\x01" + b"v" * (MAX_PROPERTIES_BYTES - 3) + b"\x02",
    "not UTF-8": b"k\x01\xff\xfe\x02",
    "half a surrogate pair": b"k\x01\xed\xa0\x80\x02",
    "of another group": b"ORIGIN_GROUP\x01other\x02k\x01" + b"v" * 32_700 + b"\x02",
}


def store(broker: Broker, body: bytes, properties: bytes) -> None:
    broker.state.storage.append(Draft("T", 0, body, properties))
    broker.state.storage.write()


@pytest.mark.spec("P37")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("order", [False, True])
@in_virtual_time
async def test_a_message_with_odd_properties_comes_again_and_ends_as_a_dead_letter(
    tmp_path: Path, odd: str, order: bool
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        store(broker, b"odd", ODD[odd])
        store(broker, b"other", b"")
        await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=2))
        for times in range(3):
            got = {one.body: one for one in await pop(wire, invisible=2, order=order)}
            assert sorted(got) == [b"odd", b"other"]
            assert got[b"odd"].properties.get("k") == parse_properties(ODD[odd]).get("k")
            assert order or got[b"odd"].times == times
            await stage.clock.sleep(2.5)
        assert await pop(wire, invisible=2, order=order) == []
        await stage.clock.sleep(2.5)
        dead = await all_records(wire, "%DLQ%g")
        assert sorted(record.body for record in dead) == [b"odd", b"other"]
        assert broker.state.pop.points.count == 0


@in_virtual_time
async def test_a_message_does_not_grow_with_its_deliveries(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        store(broker, b"one", b"a\x01b\x01c\x02")
        for _ in range(4):
            await pop(wire, invisible=2)
            await stage.clock.sleep(2.5)
        records = await all_records(wire, "%RETRY%g_T")
        assert len({len(record.properties) for record in records}) == 1
        assert get_property(records[-1].properties, Property.ORIGIN_GROUP.encode()) == b"g"


@in_virtual_time
async def test_without_room_for_the_retry_topic_messages_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for topic in ("T", "U"):
            await put_topic(wire, topic, 1)
            await wire.send(topic, topic.encode())
        await pop(wire, topic="U", invisible=2)
        await stage.clock.sleep(3)
        # The retry topic of U is there, that of T finds no room.
        await pop(wire, topic="U", invisible=4)
        await pop(wire, topic="T", invisible=3)
        count = len(broker.state.topics.table().topic_config_table)
        with monkeypatch.context() as limited:
            limited.setattr("penstock.broker.tables.topics.MAX_TOPICS", count)
            await stage.clock.sleep(60)
            assert bodies(await pop(wire, topic="U", invisible=300)) == [b"U"]
            assert broker.state.pop.points.count == 2
        said = [line for line in caplog.messages if "kept for later" in line]
        assert len(said) == 1
        await stage.clock.sleep(11)
        assert bodies(await pop(wire, topic="T")) == [b"T"]


@in_virtual_time
async def test_without_room_for_dead_letters_an_orderly_message_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        await pop(wire, order=True, invisible=1)
        await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=0))
        await stage.clock.sleep(2)
        monkeypatch.setattr("penstock.broker.tables.topics.MAX_TOPICS", 1)
        assert bodies(await pop(wire, order=True, invisible=1)) == [b"one"]
        monkeypatch.undo()
        await stage.clock.sleep(2)
        assert await pop(wire, order=True) == []
        assert [record.body for record in await all_records(wire, "%DLQ%g")] == [b"one"]


@pytest.mark.spec("P51")
@in_virtual_time
async def test_large_messages_come_again_once_even_if_a_write_fails(tmp_path: Path) -> None:
    """The store writes when much is staged: a message may be stored and the end of its receipt
    not."""
    files = FaultyFiles(SimulatedDisk())
    large = {
        "mapped_file_size_commit_log": 128 << 20,
        "max_transfer_bytes_on_message_in_memory": 15 << 20,
    }
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store=large)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for number in range(14):
            store(broker, b"%02d" % number + bytes(3 << 20), b"")
        got = []
        while found := await pop(wire, invisible=5):
            got += found
        assert len(got) == 14
        room = 37 << 20
        while broker.state.pop.points.count:
            files.disk.free_bytes = room
            await stage.clock.sleep(30)
            files.disk.free_bytes = None
            await stage.clock.sleep(30)
        wire = await stage.connect(broker)
        again = [record.body[:2] for record in await all_records(wire, "%RETRY%g_T")]
        assert sorted(again) == [b"%02d" % number for number in range(14)]
