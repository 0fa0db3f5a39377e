"""Timers after a stop, a kill, a power failure, and the loss of files."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.asking import all_records, ext, properties
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.paths import VECTORS
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.model.names import TIMER_TOPIC
from penstock.model.properties import encode_properties
from penstock.protocol.codes import ResponseCode
from penstock.store import SYNC_FLUSH, Draft
from penstock.store.timers.wheel_file import SLOT_BYTES
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def delivered(broker: Broker) -> int:
    return broker.state.storage.max_offset("T", 0)


async def timed(wire: Wire, stage: Stage, body: str, seconds: float) -> None:
    due = stage.clock.time_ms() + int(seconds * 1000)
    keys = {"TIMER_DELIVER_MS": str(due), "UNIQ_KEY": f"ID-{body}"}
    answer = await wire.send("T", body.encode(), properties=keys)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def arrived(wire: Wire) -> list[str]:
    """The bodies that arrived; none of them early."""
    found = await all_records(wire, "T")
    for record in found:
        assert record.store_timestamp >= int(properties(record)["TIMER_DELIVER_MS"])
    return [record.body.decode() for record in found]


def copy_of(root: Path, name: str) -> Path:
    """The files as a kill of the process leaves them."""
    copy = root.parent / name
    shutil.copytree(root, copy)
    return copy


async def send_many(wire: Wire, stage: Stage, count: int = 20) -> None:
    for number in range(count):
        await timed(wire, stage, str(number), 5 + number)
        await stage.clock.sleep(0.3)


# Bytes


@pytest.mark.spec("Y19")
@pytest.mark.spec("Y20")
@in_virtual_time
async def test_the_files_of_one_and_of_two_messages(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        root = tmp_path / "broker-a"
        assert not (root / "timerwheel").exists()
        await stage.clock.sleep((1000 - stage.clock.time_ms() % 1000) / 1000)
        due = stage.clock.time_ms() + 60_500
        for count in (1, 2):
            answer = await wire.send("T", properties={"TIMER_DELIVER_MS": str(due)})
            assert ext(answer)["queueOffset"] == str(count - 1)
            await stage.clock.sleep(3)
            wheel = (root / "timerwheel").read_bytes()
            assert len(wheel) == 38_707_200
            tick = due // 1000
            at = tick % 1_209_600 * SLOT_BYTES
            slot = wheel[at : at + SLOT_BYTES]
            assert wheel.count(0) == len(wheel) - SLOT_BYTES + slot.count(0)
            numbers = [int.from_bytes(slot[i : i + 8], "big") for i in (0, 8, 16)]
            assert numbers == [tick, 0, 52 * (count - 1)]
            assert int.from_bytes(slot[24:28], "big") == count
            segment = root / "timerlog" / f"{0:020d}"
            assert segment.stat().st_size == 100 << 20
            with segment.open("rb") as file:
                log = file.read(4096)
            assert not any(log[52 * count :])
            page = (root / "config" / "timercheck").read_bytes()
            assert [int.from_bytes(page[i : i + 8], "big") for i in (8, 16, 24)] == [
                52 * count, count, count,
            ]  # fmt: skip
        # The second unit names the first.
        assert int.from_bytes(log[4:12], "big", signed=True) == -1
        assert int.from_bytes(log[56:64], "big") == 0


# Stops


@pytest.mark.spec("Y22")
@in_virtual_time
async def test_after_a_clean_stop_every_message_arrives_once_and_in_time(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await send_many(wire, stage)
        for pause in (0.05, 1.7, 3.3):
            await stage.clock.sleep(pause)
            await broker.stop()
            broker = await stage.broker()
        wire = await stage.connect(broker)
        await eventually(lambda: delivered(broker) == 20, 60)
        await stage.clock.sleep(5)
        assert await arrived(wire) == [str(number) for number in range(20)]
        for record in await all_records(wire, "T"):
            assert record.store_timestamp <= int(properties(record)["TIMER_DELIVER_MS"]) + 1100


@pytest.mark.spec("Y22")
@in_virtual_time
async def test_a_stop_within_a_full_second_repeats_nothing_of_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        due = stage.clock.time_ms() + 4000
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.executor_latency = (0.001, 0.001)
        for number in range(600):
            await wire.send("T", str(number).encode(), properties={"TIMER_DELIVER_MS": str(due)})
        await eventually(lambda: delivered(broker) >= 256, 10, interval=0.001)
        assert delivered(broker) < 600
        await broker.stop()
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await eventually(lambda: delivered(broker) >= 600, 10)
        await stage.clock.sleep(5)
        found = await all_records(wire, "T")
        assert [int(record.body) for record in found] == list(range(600))


@pytest.mark.spec("Y23")
@pytest.mark.spec("Y30")
@pytest.mark.parametrize("pause", [0.0, 6.02, 11.45])
def test_after_a_kill_nothing_is_lost_and_only_the_last_seconds_come_twice(
    tmp_path: Path, pause: float
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with Stage(tmp_path) as stage:
            broker = await stage.broker(mapped_file_size_timer_log=1 << 20)
            wire = await stage.connect(broker)
            await send_many(wire, stage)
            await stage.clock.sleep(pause)
            killed_at = stage.clock.time_ms()
            before = len(await arrived(wire))
            copy = copy_of(tmp_path / "broker-a", "killed")
            await broker.stop()
            broker = await stage.broker(root=copy)
            await stage.clock.sleep(0.5)
            assert broker.state.timers.pending >= 20 - before
            await stage.clock.sleep(40)
            wire = await stage.connect(broker)
            found = Counter(await arrived(wire))
            assert found.keys() == {str(number) for number in range(20)}
            for number, count in found.items():
                if count > 1:
                    [first, *_] = [
                        record
                        for record in await all_records(wire, "T")
                        if record.body.decode() == number
                    ]
                    assert killed_at - first.store_timestamp <= 2000
                    assert count == 2
            assert broker.state.timers.pending == 0

    run()


@pytest.mark.spec("Y24")
@pytest.mark.parametrize("days", [1 / 24, 8, 13])
def test_after_a_long_stop_all_overdue_messages_come_at_once_in_order_of_time(
    tmp_path: Path, days: float
) -> None:
    @in_virtual_time
    async def run() -> None:
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            wire = await stage.connect(broker)
            for number in (7, 3, 9, 1, 5):
                await timed(wire, stage, str(number), 60 * number)
            await stage.clock.sleep(2)
            await broker.stop()
            await stage.clock.sleep(days * 86_400)
            broker = await stage.broker()
            wire = await stage.connect(broker)
            await timed(wire, stage, "100", 40 * 3600)
            await stage.clock.sleep(1.5)
            assert await arrived(wire) == ["1", "3", "5", "7", "9"]

    run()


# Lost files


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(("timerwheel",), marks=pytest.mark.spec("Y25")),
        pytest.param(("timerwheel", "timerlog"), marks=pytest.mark.spec("Y26")),
        ("timerlog",),
        ("timerwheel", "timerlog", "config/timercheck"),
    ],
    ids=lambda names: "-".join(names),
)
def test_lost_files_are_made_anew(tmp_path: Path, lost: tuple[str, ...]) -> None:
    @in_virtual_time
    async def run() -> None:
        async with Stage(tmp_path) as stage:
            settings: dict[str, Any] = {
                "mapped_file_size_timer_log": 200,
                "timer_roll_window_slot": 30,
            }
            broker = await stage.broker(**settings)
            wire = await stage.connect(broker)
            await send_many(wire, stage)
            await timed(wire, stage, "rolled", 38)
            await stage.clock.sleep(24)
            before = await arrived(wire)
            assert 5 < len(before) < 20
            await broker.stop()
            for name in lost:
                path = tmp_path / "broker-a" / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            broker = await stage.broker(**settings)
            wire = await stage.connect(broker)
            await stage.clock.sleep(40)
            found = await arrived(wire)
            everything = {*map(str, range(20)), "rolled"}
            assert set(found) == everything
            if "config/timercheck" not in lost:
                # What was delivered is known.
                assert len(found) == len(everything)

    run()


@pytest.mark.spec("Y14")
@in_virtual_time
async def test_records_that_cannot_be_read_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        good = {"TIMER_OUT_MS": str(stage.clock.time_ms()), "REAL_TOPIC": "T", "REAL_QID": "0"}
        bad: tuple[dict[str, str], ...] = (
            {},
            {**good, "TIMER_OUT_MS": "soon"},
            {**good, "REAL_QID": "-1"},
            {**good, "REAL_QID": "many"},
            {"TIMER_OUT_MS": good["TIMER_OUT_MS"], "REAL_QID": "0"},
        )
        for number, wrong in enumerate(bad):
            draft = Draft(TIMER_TOPIC, 0, b"bad", encode_properties(wrong))
            broker.state.storage.append(draft)
            await timed(wire, stage, str(number), 2)
        await eventually(lambda: delivered(broker) == len(bad), 4)
        assert await arrived(wire) == ["0", "1", "2", "3", "4"]
        assert caplog.text.count("record of the timer topic skipped") == len(bad)


@pytest.mark.spec("Y14")
@in_virtual_time
async def test_a_message_that_this_broker_would_refuse_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(timer_roll_window_slot=10)
        wire = await stage.connect(broker)
        due = stage.clock.time_ms() + 30_000
        # Of another program: no room for what a second round in the wheel adds.
        text = (
            f"a\x01{32_705 * 'x'}\x02TIMER_OUT_MS\x01{due}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        )
        broker.state.storage.append(Draft(TIMER_TOPIC, 0, b"bad", text.encode()))
        await timed(wire, stage, "soon", 3)
        await timed(wire, stage, "late", 40)
        await stage.clock.sleep(60)
        assert await arrived(wire) == ["soon", "late"]
        assert caplog.text.count("timer message skipped") == 1


@pytest.mark.spec("Y16")
@pytest.mark.parametrize("is_in_wheel", [False, True])
@in_virtual_time
async def test_a_full_disk_delays_timers_and_loses_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_in_wheel: bool
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, mapped_file_size_timer_log=1 << 16)
        wire = await stage.connect(broker)
        for number in range(5):
            await timed(wire, stage, str(number), 2)
        if is_in_wheel:
            await stage.clock.sleep(0.5)
        files.disk.free_bytes = 0
        await stage.clock.sleep(10)
        assert delivered(broker) == 0
        files.disk.free_bytes = None
        await eventually(lambda: delivered(broker) == 5, 100, interval=1.0)
        assert await arrived(wire) == ["0", "1", "2", "3", "4"]
    # Ten tries a second must not fill the log as well.
    assert caplog.text.count("tried again") <= 3


@pytest.mark.parametrize("seed", range(4))
def test_after_a_power_failure_every_acknowledged_message_arrives(
    tmp_path: Path, seed: int
) -> None:
    async def run() -> None:
        chance = Random(seed)
        disk = SimulatedDisk()
        store = {"flush_disk_type": SYNC_FLUSH}
        small: dict[str, Any] = {"mapped_file_size_timer_log": 4096, "timer_roll_window_slot": 20}
        async with Stage(tmp_path) as stage:
            files = FaultyFiles(disk, chance)
            broker = await stage.broker(store=store, files=files, **small)
            wire = await stage.connect(broker)
            for number in range(40):
                await timed(wire, stage, str(number), chance.uniform(0.5, 30))
                await stage.clock.sleep(chance.uniform(0, 0.4))
            await stage.clock.sleep(chance.uniform(0, 10))
            after = disk.after_machine_crash(chance)
            await broker.stop()
            broker = await stage.broker(
                "broker-b", store=store, files=FaultyFiles(after, chance),
                root=tmp_path / "broker-a", **small,
            )  # fmt: skip
            wire = await stage.connect(broker)
            await stage.clock.sleep(45)
            assert set(await arrived(wire)) == set(map(str, range(40)))

    run_virtual(lambda _: run(), seed=seed)


@pytest.mark.spec("Y28")
@in_virtual_time
async def test_a_stopped_store_has_all_that_apache_continues_from(tmp_path: Path) -> None:
    """What Apache 5.5.0 reads at its start; ``make interop`` lets it deliver such a store."""
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(mapped_file_size_timer_log=1 << 16)
        wire = await stage.connect(broker)
        for seconds in (1, 2, 100, 100, 200):
            await timed(wire, stage, str(seconds), seconds)
        await eventually(lambda: delivered(broker) == 2, 5)
        await stage.clock.sleep(3)
        pending = [
            record
            for record in await all_records(wire, TIMER_TOPIC)
            if record.body in (b"100", b"200")
        ]
        read_from = stage.clock.time_ms() - 2000
        await broker.stop()
    root = tmp_path / "broker-a"
    page = (root / "config" / "timercheck").read_bytes()
    numbers = [int.from_bytes(page[at : at + 8], "big") for at in (0, 8, 16, 24)]
    # Both offsets are behind the last message: a smaller one would have it delivered again.
    assert numbers[1:] == [5 * 52, 5, 5]
    assert read_from <= numbers[0] <= read_from + 3000
    segments = sorted((root / "timerlog").iterdir())
    assert [path.stat().st_size for path in segments] == [1 << 16]
    log = segments[0].read_bytes()
    wheel = (root / "timerwheel").read_bytes()
    linked: list[int] = []
    for record in pending:
        slot_ms = int(properties(record)["TIMER_OUT_MS"])
        at = slot_ms // 1000 % 1_209_600 * SLOT_BYTES
        assert int.from_bytes(wheel[at : at + 8], "big") == slot_ms // 1000
        position = int.from_bytes(wheel[at + 16 : at + 24], "big")
        while position >= 0:
            unit = log[position : position + 52]
            linked.append(int.from_bytes(unit[28:36], "big"))
            position = int.from_bytes(unit[4:12], "big", signed=True)
    assert set(linked) == {record.log_position for record in pending}


# A store of Apache's

GOLDEN_STORE = {
    "mapped_file_size_commit_log": 65_536,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
STOPPED_MS = 1_794_793_105_555
PENDING_DUE_MS = 1_794_879_432_000


@pytest.mark.spec("Y27")
def test_the_timers_of_a_store_of_apache(tmp_path: Path) -> None:
    with tarfile.open(VECTORS / "store-5.5.0.tar.gz") as archive:
        archive.extractall(tmp_path, **SAFE_EXTRACTION)
    root = tmp_path / "store"

    async def run() -> None:
        async with Stage(tmp_path) as stage:
            settings: dict[str, Any] = {"root": root, "store": GOLDEN_STORE}
            broker = await stage.broker(**settings)
            assert broker.state.timers.pending == 1
            end = broker.state.storage.max_offset("golden-one", 0)
            await stage.clock.sleep(20)
            assert broker.state.storage.max_offset("golden-one", 0) == end
            await broker.stop()
            await stage.clock.sleep((PENDING_DUE_MS - stage.clock.time_ms()) / 1000 - 30)
            broker = await stage.broker(**settings)
            await stage.clock.sleep(29.9)
            assert broker.state.storage.max_offset("golden-one", 0) == end
            await stage.clock.sleep(0.5)
            wire = await stage.connect(broker)
            record = (await all_records(wire, "golden-one"))[-1]
            assert properties(record)["KEYS"] == "timer-1"
            assert record.store_timestamp >= PENDING_DUE_MS
            await stage.clock.sleep(10)
            assert broker.state.storage.max_offset("golden-one", 0) == end + 1

    run_virtual(lambda _: run(), start=STOPPED_MS / 1000 + 1)
