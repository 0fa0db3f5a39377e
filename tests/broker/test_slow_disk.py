"""The event loop never waits for a disk.

Every operation of a running broker or name server that waits for the disk is here:

    broker start, stop      open, recover, close the store; load and save the tables
    send                    the first message of a store, a new log segment, a flush (both modes)
    delete topic            files of its queues, our note, topics.json
    clean unused topics     the same, for topics that are in the store only
    clean expired, retention   segments of the log, files of queues and index
    tables                  topics.json, subscriptionGroup.json, consumerOffset.json
    name server             kvConfig.json: load, put, delete, stop

One exception remains, as back-pressure: a write that finds sixteen log segments unflushed flushes
the oldest of them itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.asking import all_records, commit, put_group, put_topic
from tests.support.slow_disk import SlowDisk
from tests.support.stage import SMALL_STORE
from tests.support.wire import Wire

from penstock.broker import Broker, BrokerConfig
from penstock.nameserver import NameServer, NameServerConfig
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.nameserver import DeleteKvConfig, PutKvConfig
from penstock.store import MessageStore, StoreConfig
from penstock.testing.eventually import eventually

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@asynccontextmanager
async def served(
    disk: SlowDisk, root: Path, store: StoreConfig = SMALL_STORE
) -> AsyncIterator[tuple[Broker, Wire]]:
    """A broker on the disk, and a connection to it."""
    broker = Broker(
        BrokerConfig(listen_port=0, flush_consumer_offset_interval_ms=100),
        root,
        store_config=store,
        files=disk.files,
        state_files=disk.state_files,
    )
    async with broker, await Wire.connect(broker.port) as wire:
        yield broker, wire


async def bodies_of(wire: Wire, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await all_records(wire, topic, queue_id)]


async def test_start_and_stop(disk: SlowDisk, tmp_path: Path) -> None:
    async with disk.watch():
        async with served(disk, tmp_path) as (_, wire):
            await wire.send("T", b"kept")
        async with served(disk, tmp_path) as (_, wire):
            assert await bodies_of(wire, "T") == [b"kept"]
    assert disk.waits["sync"]
    assert disk.waits["read table"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_the_first_message_and_new_segments(
    disk: SlowDisk, tmp_path: Path, flush: str
) -> None:
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=flush)
    async with served(disk, tmp_path, store) as (broker, wire), disk.watch():
        for _ in range(30):
            await wire.send("T", bytes(100_000))
        assert broker.state.storage.store.statistics().log_segments > 2
        await eventually(lambda: disk.waits["sync"] > 0)


async def test_deleting_a_topic(disk: SlowDisk, tmp_path: Path) -> None:
    async with served(disk, tmp_path) as (broker, wire):
        for queue_id in range(4):
            await wire.send("T", b"old", queue_id=queue_id)
        await asyncio.to_thread(broker.state.storage.store.flush, thorough=True)
        async with disk.watch():
            await wire.ok(DELETE, DeleteTopic("T"))
        assert disk.waits["remove"] >= 4
        assert disk.waits["write table"] >= 1
        assert not (tmp_path / "consumequeue" / "T").exists()


async def test_a_topic_created_anew_while_its_files_are_removed_loses_nothing(
    disk: SlowDisk, tmp_path: Path
) -> None:
    async with served(disk, tmp_path) as (broker, wire):
        store = broker.state.storage.store
        for number in range(400):
            await wire.send("T", b"old %d" % number)
        await asyncio.to_thread(store.flush, thorough=True)
        async with disk.watch():
            with disk.hold("remove_dir"):
                deletion = asyncio.create_task(wire.ok(DELETE, DeleteTopic("T")))
                await eventually(lambda: "T" not in broker.state.topics)
                sent = [b"new %d" % number for number in range(400)]
                for body in sent:
                    await wire.send("T", body)
                assert await bodies_of(wire, "T") == sent
                await asyncio.to_thread(store.flush, thorough=True)
                assert not deletion.done()
            await deletion
        assert await bodies_of(wire, "T") == sent
    async with served(disk, tmp_path) as (_, wire):
        assert await bodies_of(wire, "T") == sent


async def test_a_topic_deleted_twice_while_its_files_are_removed(
    disk: SlowDisk, tmp_path: Path
) -> None:
    async with served(disk, tmp_path) as (broker, wire):
        await wire.send("T", b"oldest")
        await asyncio.to_thread(broker.state.storage.store.flush, thorough=True)
        async with disk.watch():
            deletions = []
            with disk.hold("remove_dir"):
                for _ in range(3):
                    deletions.append(asyncio.create_task(wire.ok(DELETE, DeleteTopic("T"))))
                    await eventually(lambda: "T" not in broker.state.topics)
                    await wire.send("T", b"new")
                assert await bodies_of(wire, "T") == [b"new"]
            await asyncio.gather(*deletions)
        assert await bodies_of(wire, "T") == [b"new"]


async def test_a_broker_that_stops_finishes_a_deletion_first(
    disk: SlowDisk, tmp_path: Path
) -> None:
    async with disk.watch():
        async with served(disk, tmp_path) as (broker, wire):
            await wire.send("T", b"old")
            await wire.send("U", b"kept")
            await asyncio.to_thread(broker.state.storage.store.flush, thorough=True)
            deletion = asyncio.create_task(wire.request(DELETE, DeleteTopic("T")))
            await eventually(lambda: "T" not in broker.state.topics)
        await asyncio.gather(deletion, return_exceptions=True)
    with MessageStore.open_readonly(tmp_path) as store:
        assert {topic for topic, _ in store.queues()} == {"U"}


async def test_cleaning_unused_topics(disk: SlowDisk, tmp_path: Path) -> None:
    async with served(disk, tmp_path) as (broker, wire):
        await wire.send("T", b"unused")
        await wire.send("U", b"used")
        await asyncio.to_thread(broker.state.storage.store.flush, thorough=True)
        broker.state.topics.remove("T")
        async with disk.watch():
            await wire.ok(RequestCode.CLEAN_UNUSED_TOPIC)
        assert disk.waits["remove"]
        assert {topic for topic, _ in broker.state.storage.store.queues()} == {"U"}


async def test_retention(disk: SlowDisk, tmp_path: Path) -> None:
    async with served(disk, tmp_path) as (broker, wire):
        storage = broker.state.storage
        for number in range(1000):
            await wire.send("T", bytes(4000), properties={"KEYS": str(number)})
        await asyncio.to_thread(storage.store.flush, thorough=True)
        segments = sorted((tmp_path / "commitlog").iterdir())
        for path in segments[:3]:
            os.utime(path, (1_600_000_000, 1_600_000_000))
        async with disk.watch():
            await wire.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
            cleaning = asyncio.create_task(storage.clean())
            await wire.send("T", b"meanwhile")
            removed = await cleaning
        kinds = {Path(path).relative_to(tmp_path).parts[0] for path in removed}
        assert kinds == {"commitlog", "consumequeue", "index"}
        assert disk.waits["remove"] >= len(removed)
        assert not any(map(os.path.exists, removed))
        assert storage.min_offset("T", 0) > 0
        assert (await bodies_of(wire, "T"))[-1] == b"meanwhile"


async def test_tables(disk: SlowDisk, tmp_path: Path) -> None:
    async with served(disk, tmp_path) as (_, wire), disk.watch():
        await put_topic(wire, "T", 4)
        await put_group(wire, SubscriptionGroupConfig("g"))
        await wire.send("T", b"message")
        await commit(wire, "g", "T", 1)
        await eventually((tmp_path / "config" / "consumerOffset.json").exists)
    assert disk.waits["write table"] >= 3


async def test_the_texts_of_a_name_server(disk: SlowDisk, tmp_path: Path) -> None:
    def name_server() -> NameServer:
        config = NameServerConfig(listen_port=0)
        return NameServer(config, data=tmp_path, state_files=disk.state_files)

    async with disk.watch():
        async with name_server() as server, await Wire.connect(server.port) as wire:
            await wire.ok(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "kept", "text"))
            await wire.ok(RequestCode.PUT_KV_CONFIG, PutKvConfig("n", "deleted", "text"))
            await wire.ok(RequestCode.DELETE_KV_CONFIG, DeleteKvConfig("n", "deleted"))
            assert b"kept" in (tmp_path / "kvConfig.json").read_bytes()
            assert b"deleted" not in (tmp_path / "kvConfig.json").read_bytes()
        async with name_server():
            pass
    assert disk.waits["write table"] == 6, "the table and its checksum, three times"
