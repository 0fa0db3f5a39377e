"""What an acknowledgement means: with slow, failing and full disks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.support.asking import all_records, bodies, ext, log_position, put_topic, send_back
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.send import SendMessage
from penstock.store import SYNC_FLUSH, Draft, appending
from penstock.testing.eventually import eventually

OK = ResponseCode.SUCCESS
SYNC = {"flush_disk_type": SYNC_FLUSH}


class SlowDisk(FaultyFiles):
    """Files whose sync waits for the test."""

    def __init__(self) -> None:
        super().__init__(SimulatedDisk())
        self.is_open = threading.Event()
        self.is_open.set()
        self.waiting = 0
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.waiting += 1
        self.is_open.wait()
        self.waiting -= 1
        self.syncs += 1
        super().sync(descriptor)


def start_send(wire: Wire, body: bytes, properties: str = "") -> asyncio.Future[Command]:
    header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, properties)
    return wire.start(RequestCode.SEND_MESSAGE_V2, header, body)


# Async flush


async def test_the_work_for_readers_comes_after_the_answers(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        storage = broker.state.storage
        storage.append(Draft("T", 0, b"first"))
        storage.write()
        # Safe from the death of the process, so the send may be answered now.
        assert storage.store.statistics().dispatch_behind_bytes > 0
        await asyncio.sleep(0)
        assert storage.store.statistics().dispatch_behind_bytes == 0
        storage.append(Draft("T", 0, b"second"))
        storage.write()
        assert bodies(await wire.pull("g", "T", 0)) == [b"first", b"second"]


async def test_the_work_for_readers_waits_for_answers_of_later_requests_too(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        storage = broker.state.storage
        behind = []
        for number in range(12):
            # In each turn something is staged that is written at its end.
            storage.append(Draft("T", 0, bytes(4000) + b"%d" % number))
            await asyncio.sleep(0)
            behind.append(storage.store.unpublished_bytes)
        assert behind[1] > 0
        assert behind[4] > behind[3] > behind[2] > behind[1]
        # Not for ever: readers would be slow, and so would be the turn that does it all.
        assert max(behind) < 45_000
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert storage.store.unpublished_bytes == 0
        assert len(bodies(await wire.pull("g", "T", 0))) == 12


async def test_what_no_answer_waits_for_is_appended_after_the_answers(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        storage = broker.state.storage
        storage.after_answers(lambda: storage.append(Draft("T", 0, b"later")))
        storage.append(Draft("T", 0, b"now"))
        storage.write()
        stored = [storage.store.max_position]
        for _ in range(3):
            await asyncio.sleep(0)
            stored.append(storage.store.max_position)
        assert stored[0] == stored[1] < stored[-1]
        assert bodies(await wire.pull("g", "T", 0)) == [b"now", b"later"]


async def test_a_held_pull_is_answered_together_with_the_send(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        held = wire.start_pull("g", "T", 0, hold_ms=15_000)
        await eventually(lambda: len(broker.state.held) == 1)
        broker.state.storage.append(Draft("T", 0, b"awaited"))
        broker.state.storage.write()
        assert len(broker.state.held) == 0
        assert bodies(await held) == [b"awaited"]


# Sync flush


async def test_a_sync_flush_is_answered_and_seen_only_when_it_is_on_the_disk(
    tmp_path: Path,
) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store=SYNC)
        wire, reader = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T")
        files.is_open.clear()
        pending = start_send(wire, b"safe")
        await eventually(lambda: files.waiting)
        held = reader.start_pull("g", "T", 0, hold_ms=15_000)
        await eventually(lambda: len(broker.state.held) == 1)
        # It is written, but must not be visible yet.
        assert broker.state.storage.store.max_position > 0
        assert not pending.done()
        files.is_open.set()
        assert (await pending).code == OK
        assert bodies(await held) == [b"safe"]


async def test_sends_that_wait_for_the_disk_share_its_work(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(files=files, store=SYNC))
        await put_topic(wire, "T")
        files.is_open.clear()
        first = start_send(wire, b"first")
        await eventually(lambda: files.waiting)
        before = files.syncs
        rest = [start_send(wire, str(number).encode()) for number in range(100)]
        await eventually(lambda: len(wire._waiting) == 101)
        files.is_open.set()
        answers = await asyncio.gather(first, *rest)
        assert {answer.code for answer in answers} == {OK}
        assert files.syncs - before < 20
        assert len(await all_records(wire, "T")) == 101


async def test_a_disk_that_is_too_slow_is_admitted(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store=SYNC, sync_flush_timeout_ms=30)
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        files.is_open.clear()
        try:
            answers = await asyncio.gather(*(start_send(wire, b"slow") for _ in range(3)))
            assert {answer.code for answer in answers} == {ResponseCode.FLUSH_DISK_TIMEOUT}
            # Stored all the same, and the answer says where.
            assert [ext(answer)["queueOffset"] for answer in answers] == ["0", "1", "2"]
        finally:
            files.is_open.set()
        await eventually(lambda: broker.state.storage.max_offset("T", 0) == 3)
        assert (await start_send(wire, b"fast again")).code == OK


async def test_a_send_with_wait_false_is_answered_before_the_disk(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(files=files, store=SYNC))
        await put_topic(wire, "T")
        files.is_open.clear()
        try:
            assert (await start_send(wire, b"hasty", "WAIT\x01false\x02")).code == OK
        finally:
            files.is_open.set()


@pytest.mark.spec("S110")
async def test_a_send_back_never_waits_for_the_disk(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(files=files, store=SYNC))
        position = log_position(await wire.send("T"))
        files.is_open.clear()
        try:
            assert (await send_back(wire, "g", position)).code == OK
        finally:
            files.is_open.set()


async def test_a_failed_sync_refuses_what_waits_and_all_that_follows(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(files=files, store=SYNC))
        assert (await start_send(wire, b"good")).code == OK
        files.is_open.clear()
        pending = [start_send(wire, b"doubtful") for _ in range(3)]
        await eventually(lambda: files.waiting)
        files.failing_syncs = 1
        files.is_open.set()
        answers = await asyncio.gather(*pending)
        assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        answer = await start_send(wire, b"later")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "flush" in (answer.remark or "")
        # What was safe can still be read, and what is doubtful is not shown.
        assert [record.body for record in await all_records(wire, "T")] == [b"good"]


async def test_without_sync_flush_a_failed_sync_also_ends_the_writing(tmp_path: Path) -> None:
    files = SlowDisk()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store={"flush_interval_commit_log_ms": 1})
        wire = await stage.connect(broker)
        store = broker.state.storage.store
        assert (await start_send(wire, b"safe")).code == OK
        await eventually(lambda: store.flushed_position == store.max_position)
        files.failing_syncs = 1
        assert (await start_send(wire, b"taken")).code == OK
        await eventually(lambda: not store.is_writable)
        answer = await start_send(wire, b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert [record.body for record in await all_records(wire, "T")] == [b"safe", b"taken"]


# Full disks


async def outcome(future: asyncio.Future[Command]) -> int | None:
    """The code of an answer; None if the connection was cut instead."""
    try:
        return (await future).code
    except ConnectionError:
        return None


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("is_new_topic", [False, True])
async def test_nothing_is_acknowledged_that_a_full_disk_did_not_take(
    tmp_path: Path, mode: str, is_new_topic: bool
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store=SYNC if mode == "sync" else {})
        wires = [await stage.connect(broker) for _ in range(3)]
        if not is_new_topic:
            await put_topic(wires[0], "T")
        await wires[0].send("other")
        files.disk.free_bytes = 3000
        sent = {}
        for number in range(60):
            body = str(number).encode().ljust(100, b".")
            sent[body] = start_send(wires[number % 3], body)
        codes = {body: await outcome(future) for body, future in sent.items()}
        assert set(codes.values()) <= {OK, None, ResponseCode.SERVICE_NOT_AVAILABLE}
        assert OK not in codes.values() or None in codes.values() or 14 in codes.values()
        acknowledged = [body for body, code in codes.items() if code == OK]
        reader = await stage.connect(broker)
        found = [record.body for record in await all_records(reader, "T")]
        assert [body for body in acknowledged if body not in found] == []
        refused = await outcome(start_send(reader, b"more".ljust(4000)))
        assert refused in (None, ResponseCode.SERVICE_NOT_AVAILABLE)


async def test_an_append_that_had_to_write_costs_all_answers_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So much may be staged in one turn that the store writes in the middle of it.
    monkeypatch.setattr(appending, "MAX_STAGED_BYTES", 1000)
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await wire.send("T", b"good")
        files.disk.free_bytes = 0
        codes = [await outcome(f) for f in [start_send(wire, bytes(100)) for _ in range(50)]]
        assert OK not in codes
        reader = await stage.connect(broker)
        assert [record.body for record in await all_records(reader, "T")] == [b"good"]


@in_virtual_time
async def test_messages_are_taken_again_when_there_is_room(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        assert (await start_send(wire, b"before")).code == OK
        files.disk.free_bytes = 0
        assert await outcome(start_send(wire, b"lost")) is None
        wire = await stage.connect(broker)
        assert await outcome(start_send(wire, b"refused")) == 14
        files.disk.free_bytes = None
        await stage.clock.sleep(90)
        assert (await start_send(wire, b"after")).code == OK
        assert [record.body for record in await all_records(wire, "T")] == [b"before", b"after"]


async def test_other_connections_survive_anothers_lost_write(tmp_path: Path) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        producer, consumer = await stage.connect(broker), await stage.connect(broker)
        await producer.send("T", b"there")
        held = consumer.start_pull("g", "T", 1, hold_ms=15_000)
        await eventually(lambda: len(broker.state.held) == 1)
        files.disk.free_bytes = 0
        assert await outcome(start_send(producer, b"lost")) is None
        assert bodies(await consumer.pull("g", "T", 0)) == [b"there"]
        assert not held.done()
