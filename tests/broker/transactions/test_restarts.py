"""Open transactions of a store: after a stop, after a kill, and in stores of Apache's broker."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.broker.transactions.lab import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    check_times,
    decide,
    end,
    half_in,
    op_bodies,
    prepared,
    questions,
)
from tests.support.asking import all_records, properties
from tests.support.paths import VECTORS
from tests.support.stage import SMALL_STORE, Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.transactions.progress import OpRecords
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from penstock.model.properties import encode_properties
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.half_messages import OP_PROPERTIES, op_body, op_offsets
from penstock.protocol.records.codec import decode_record
from penstock.store import SYNC_FLUSH, Draft, MessageStore, StoreConfig
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
APACHE_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


async def started(stage: Stage, root: Path, **store: Any) -> tuple[Broker, Wire]:
    broker = await stage.broker(root=root, store=store)
    wire = await stage.connect(broker)
    await wire.heartbeat("c", producer=GROUP)
    return broker, wire


def killed(root: Path) -> Path:
    """The files that the death of a process leaves: a copy made while it writes."""
    copy = root.with_name(root.name + "-killed")
    shutil.copytree(root, copy)
    return copy


def saved_offsets(broker: Broker) -> dict[str, dict[int, int]]:
    return broker.state.offsets.of_group(TRANSACTION_GROUP)


@pytest.mark.spec("X19", "X38")
@in_virtual_time
async def test_a_clean_stop_keeps_what_is_open_and_what_is_decided(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with Stage(tmp_path) as stage:
        broker, wire = await started(stage, root)
        halves = [await prepared(wire, unique_id=f"ID-{number}") for number in range(4)]
        await stage.clock.sleep(31)
        assert len(questions(wire)) == 4
        await end(wire, halves[0])
        await end(wire, halves[2], ROLLBACK)
        await broker.stop()
        broker, wire = await started(stage, root)
        assert saved_offsets(broker)[HALF_TOPIC] == {0: 5}
        await stage.clock.sleep(31)
        assert check_times(wire) == [("ID-1", 2), ("ID-3", 2)]
        # Decisions of the life before are known, too.
        assert (await end(wire, halves[0])).code == ResponseCode.SUCCESS
        assert (await end(wire, halves[0], ROLLBACK)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(wire, halves[2], ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await end(wire, halves[2])).code == ResponseCode.ILLEGAL_OPERATION
        assert (await end(wire, halves[1])).code == ResponseCode.SUCCESS
        assert len(await all_records(wire, TOPIC, 1)) == 2


@pytest.mark.spec("X20", "X38")
@pytest.mark.parametrize("store", [{}, {"flush_disk_type": SYNC_FLUSH}], ids=["async", "sync"])
@in_virtual_time
async def test_a_kill_keeps_what_is_open_and_what_is_decided(
    tmp_path: Path, store: dict[str, str]
) -> None:
    root = tmp_path / "store"
    async with Stage(tmp_path) as stage:
        _, wire = await started(stage, root, **store)
        committed = await prepared(wire)
        await prepared(wire, unique_id="ID-2")
        await stage.clock.sleep(31)
        question, _ = questions(wire)
        await end(wire, committed)
        _, wire = await started(stage, killed(root), **store)
        await stage.clock.sleep(31)
        assert check_times(wire) == [("ID-2", 2)]
        # A producer that was asked before the kill answers after it.
        assert (await decide(wire, question)).code == ResponseCode.SUCCESS
        assert (await decide(wire, question, ROLLBACK)).code == ResponseCode.ILLEGAL_OPERATION
        assert len(await all_records(wire, TOPIC, 1)) == 1


@pytest.mark.spec("X20")
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("is_checked", [True, False])
@in_virtual_time
async def test_a_committed_half_without_an_op_record_is_closed(
    tmp_path: Path, has_index: bool, is_checked: bool
) -> None:
    """A kill may cut a write between both records, and Apache's broker writes the other later."""
    root = tmp_path / "store"
    settings: dict[str, Any] = {} if has_index else {"message_index_enable": False}
    async with Stage(tmp_path) as stage:
        broker, wire = await started(stage, root, **settings)
        half = await prepared(wire)
        if is_checked:
            await stage.clock.sleep(31)
        await prepared(wire, unique_id="ID-2")
        store = broker.state.storage.store
        view = store.record_at(0)
        assert view is not None
        record = decode_record(view)
        stored = {
            key: value
            for key, value in properties(record).items()
            if key not in ("REAL_TOPIC", "REAL_QID")
        }
        final = Draft(TOPIC, 1, record.body, encode_properties(stored), sys_flag=8)
        broker.state.storage.append(final)
        await broker.stop()
        broker, wire = await started(stage, root, **settings)
        assert len(broker.state.transactions.open) == 1
        await stage.clock.sleep(31)
        assert [unique_id for unique_id, _ in check_times(wire)] == ["ID-2"]
        assert b"%d" % int(is_checked) in await op_bodies(wire)
        assert (await end(wire, half)).code == ResponseCode.SUCCESS
        assert len(await all_records(wire, TOPIC, 1)) == 1


@pytest.mark.spec("X16")
async def test_with_sync_flush_a_commit_is_answered_from_the_disk(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await started(stage, tmp_path / "store", flush_disk_type=SYNC_FLUSH)
        half = await prepared(wire)
        store = broker.state.storage.store
        assert (await end(wire, half)).code == ResponseCode.SUCCESS
        [final] = await all_records(wire, TOPIC, 1)
        assert store.flushed_position >= final.log_position + final.size
        hasty = await prepared(wire, unique_id="ID-2", more={"WAIT": "false"})
        assert (await end(wire, hasty)).code == ResponseCode.SUCCESS


@in_virtual_time
async def test_progress_waits_for_the_oldest_open_half(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(root=tmp_path / "store")
        wire = await stage.connect(broker)
        await end(wire, await prepared(wire, unique_id="before"))
        await prepared(wire)
        for number in range(3):
            await end(wire, await prepared(wire, unique_id=f"after-{number}"))
        await stage.clock.sleep(10)
        # Op record 0 closes a half below the oldest open one; the others are needed.
        assert saved_offsets(broker) == {HALF_TOPIC: {0: 1}, OP_HALF_TOPIC: {0: 1}}


def test_a_half_that_stays_open_costs_no_memory() -> None:
    records = OpRecords()
    for number in range(100_000):
        records.add(number, number + 1)
    assert len(records) < 10_000
    assert records.needed_from(0) == 0
    first = records.needed_from(50_000)
    assert first is not None
    assert 49_000 < first <= 49_999
    assert records.needed_from(200_000) is None


# Other brokers


@pytest.mark.spec("X18")
def test_op_records_of_both_releases_are_read() -> None:
    def offsets(body: bytes) -> list[int]:
        return op_offsets("d", body)

    assert offsets(b"7") == [7]
    assert offsets(b"7,9,") == [7, 9]
    assert offsets(b"") == offsets(b",") == offsets(b"x,-1," + b"9" * 30) == []
    assert offsets(b"7,\xff\xfe,9") == [7, 9]
    assert op_offsets("other", b"7,") == op_offsets(None, b"7,") == []


@pytest.mark.spec("X17")
def test_an_op_record_is_that_of_apache(tmp_path: Path) -> None:
    """The record of ``store-5.5.0`` that closes two halves."""
    with MessageStore.open_readonly(unpacked("5.5.0", tmp_path), StoreConfig(**APACHE_SIZES)) as s:
        found = s.read(OP_HALF_TOPIC, 0, 0)
        record = decode_record(found.slices[0])
    assert record.properties == OP_PROPERTIES
    assert op_offsets("d", record.body) == [1, 0]
    assert (op_offsets("d", op_body(7)), op_body(7)) == ([7], b"7")


def unpacked(version: str, directory: Path) -> Path:
    with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
        members = [member for member in archive if not member.name.endswith("timerwheel")]
        archive.extractall(directory, members, **SAFE_EXTRACTION)
    if version.startswith("5."):
        (directory / "store" / "timerwheel").touch()
    return directory / "store"


@pytest.mark.spec("X39")
@pytest.mark.parametrize("version", ["4.9.7", "5.5.0", "5.5.0-killed"])
@in_virtual_time
async def test_of_the_halves_of_apache_only_the_open_ones_are_asked_about(
    tmp_path: Path, version: str
) -> None:
    root = unpacked(version, tmp_path)
    with MessageStore.open_readonly(root, StoreConfig(**APACHE_SIZES)) as store:
        halves = [
            decode_record(store.read(HALF_TOPIC, 0, offset, max_count=1).slices[0])
            for offset in range(store.max_offset(HALF_TOPIC, 0))
        ]
    newest = {properties(one)["UNIQ_KEY"]: one for one in halves}
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(root=root, store=APACHE_SIZES)
        found = {entry.key.unique_id: entry for entry in broker.state.transactions.open}
        [open_id] = found
        entry, half = found[open_id], newest[open_id]
        assert entry.position == half.log_position
        before = entry.check_times
        assert before == int(properties(half).get("TRANSACTION_CHECK_TIMES", 0))
        wire = await stage.connect(broker)
        await wire.heartbeat("c", producer=entry.key.group)
        await stage.clock.sleep(31)
        assert check_times(wire) == [(open_id, before + 1)]
        record = half_in(questions(wire)[0])
        answer = await end(
            wire,
            questions(wire)[0],
            COMMIT,
            group=entry.key.group,
            offset=record.queue_offset,
            position=record.log_position,
            from_check=True,
        )
        assert answer.code == ResponseCode.SUCCESS
        [final] = [
            one
            for one in await all_records(wire, record.topic, record.queue_id)
            if properties(one).get("UNIQ_KEY") == open_id
        ]
        assert final.body == half.body
        # Those that were closed before are known by what they became.
        for one in halves:
            stored = properties(one)
            if stored["UNIQ_KEY"] == open_id:
                continue
            topic, queue_id = stored["REAL_TOPIC"], int(stored["REAL_QID"])
            ids = [
                properties(record).get("UNIQ_KEY")
                for record in await all_records(wire, topic, queue_id)
            ]
            was = COMMIT if stored["UNIQ_KEY"] in ids else ROLLBACK
            for decision in (COMMIT, ROLLBACK):
                answer = await end(
                    wire,
                    questions(wire)[0],
                    decision,
                    group=stored["PGROUP"],
                    offset=one.queue_offset,
                    position=one.log_position,
                )
                same = ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION
                assert answer.code == same[decision != was]


def asked_by_apache(root: Path, **sizes: Any) -> set[str]:
    """The unique ids that a round of Apache's broker asks about, on the files of a store.

    It reads op records from their saved offset on, and asks about the halves from theirs on that no
    op record names.
    """
    saved = decode_body(
        ConsumerOffsetTable, (root / "config/consumerOffset.json").read_bytes()
    ).offset_table
    half_from = saved.get(f"{HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, 0)
    op_from = saved.get(f"{OP_HALF_TOPIC}@{TRANSACTION_GROUP}", {}).get(0, 0)
    closed: set[int] = set()
    asked: list[str] = []
    with MessageStore.open_readonly(root, dataclasses.replace(SMALL_STORE, **sizes)) as store:
        for offset in range(op_from, store.max_offset(OP_HALF_TOPIC, 0)):
            record = decode_record(store.read(OP_HALF_TOPIC, 0, offset, max_count=1).slices[0])
            closed.update(op_offsets(properties(record)["TAGS"], record.body))
        for offset in range(half_from, store.max_offset(HALF_TOPIC, 0)):
            record = decode_record(store.read(HALF_TOPIC, 0, offset, max_count=1).slices[0])
            if offset not in closed:
                asked.append(properties(record)["UNIQ_KEY"])
    assert len(asked) == len(set(asked)), "asked about two copies of one half"
    return set(asked)


@pytest.mark.spec("X40")
@pytest.mark.parametrize("is_killed", [False, True])
@in_virtual_time
async def test_apache_asks_about_exactly_the_open_halves(tmp_path: Path, is_killed: bool) -> None:
    """`make interop` shows the same with Apache's broker itself (swap_transactions_to_apache)."""
    root = tmp_path / "store"
    async with Stage(tmp_path) as stage:
        broker, wire = await started(stage, root)
        other = {"PGROUP": "absent"}
        # Not asked about, because its group is not connected: it holds the saved offset back.
        await prepared(wire, unique_id="absent", more=other)
        halves = {f"ID-{n}": await prepared(wire, unique_id=f"ID-{n}") for n in range(6)}
        await prepared(wire, unique_id="ID-5")
        await end(wire, halves["ID-0"])
        await end(wire, halves["ID-1"], ROLLBACK)
        await stage.clock.sleep(31)
        await wire.heartbeat("c", producer=GROUP)
        await stage.clock.sleep(30)
        assert len(questions(wire)) == 8
        await end(wire, halves["ID-2"])
        await decide(wire, questions(wire)[-1], ROLLBACK)
        if is_killed:
            root = killed(root)
        else:
            await broker.stop()
        left = {one.key.unique_id for one in broker.state.transactions.open}
        assert left == {"absent", "ID-3", "ID-4"}
        assert asked_by_apache(root) == left


def test_progress_is_not_saved_before_the_log_is_on_the_disk(tmp_path: Path) -> None:
    """A power failure would leave an offset that passes halves which are open again."""

    async def main(loop: VirtualLoop) -> None:
        async with Stage(tmp_path) as stage:
            broker, wire = await started(stage, tmp_path / "store")
            await end(wire, await prepared(wire, unique_id="first"))
            await stage.clock.sleep(10)
            assert saved_offsets(broker)[HALF_TOPIC] == {0: 1}
            loop.executor_latency = (15.0, 15.0)
            await end(wire, await prepared(wire, unique_id="second"))
            position = broker.state.storage.store.max_position
            while saved_offsets(broker)[HALF_TOPIC] == {0: 1}:
                await stage.clock.sleep(0.5)
            assert broker.state.storage.store.flushed_position >= position
            loop.executor_latency = (0.0, 0.0)

    run_virtual(main)


@pytest.mark.parametrize("is_stopped_at_once", [False, True])
def test_a_half_repeated_during_its_commit_is_closed_with_it(
    tmp_path: Path, is_stopped_at_once: bool
) -> None:
    """It lies behind the committed message, so only its op record says that it is decided."""

    async def main(loop: VirtualLoop) -> None:
        root = tmp_path / "store"
        async with Stage(tmp_path) as stage:
            broker, wire = await started(stage, root, flush_disk_type=SYNC_FLUSH)
            # Not asked about, because its group is not connected: it holds the saved offset back.
            await prepared(wire, unique_id="absent", more={"PGROUP": "absent"})
            half = await prepared(wire)
            loop.executor_latency = (1.0, 1.0)
            commit = asyncio.ensure_future(end(wire, half))
            await stage.clock.sleep(0.1)
            await prepared(wire, more={"WAIT": "false"})
            assert not commit.done()
            assert (await commit).code == ResponseCode.SUCCESS
            loop.executor_latency = (0.0, 0.0)
            if not is_stopped_at_once:
                await stage.clock.sleep(10)
                assert saved_offsets(broker)[HALF_TOPIC] == {0: 0}
                await stage.clock.sleep(30)
                assert await op_bodies(wire) == [b"1", b"2"]
            await broker.stop()
            broker, wire = await started(stage, root)
            assert await op_bodies(wire) == [b"1", b"2"]
            assert [one.key.unique_id for one in broker.state.transactions.open] == ["absent"]

    run_virtual(main)
