"""Single cases of dying machines and failing disks, each once a bug: the model found them all.

A case runs over many seeds, since what a dying machine keeps is chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.support.faulty_files import Crashed, FaultyFiles, SimulatedDisk

from penstock.errors import FlushFailed, StoreError
from penstock.store import ASYNC_FLUSH, SYNC_FLUSH, Draft, MessageStore, StoreConfig
from penstock.store.checkpoint import load_flushed
from penstock.store.index_files import IndexShape
from penstock.store.key_index import KeyIndex
from penstock.store.segments import OS_FILES, SegmentMaps

ROOT = "/data/broker-a"
SEEDS = range(60)
NOW = 1_700_000_000_000
BIG = 800  # one message a segment


def config(flush_disk_type: str = ASYNC_FLUSH) -> StoreConfig:
    return StoreConfig(
        mapped_file_size_commit_log=1024,
        mapped_file_size_consume_queue=80,
        max_hash_slot_num=3,
        max_index_num=9,
        flush_disk_type=flush_disk_type,
        file_reserved_hours=1,
    )


class Machine:
    """A machine with one store on it."""

    def __init__(self, seed: int, flush_disk_type: str = ASYNC_FLUSH) -> None:
        self.random = Random(seed)
        self.now = NOW
        self.config = config(flush_disk_type)
        self.disk = SimulatedDisk(now_ns=lambda: self.now * 1_000_000)
        files = FaultyFiles(self.disk)
        files.make_dir("/data")
        files.sync_dir("/")
        self.open()

    def open(self) -> MessageStore:
        self.files = FaultyFiles(self.disk, self.random)
        self.store = MessageStore(
            ROOT,
            self.config,
            time_ms=lambda: self.now,
            monotonic=lambda: self.now / 1000,
            files=self.files,
        )
        self.store.open()
        return self.store

    def send(self, count: int = 1, *, topic: str = "orders", size: int = BIG) -> None:
        for number in range(count):
            key = f"UNIQ_KEY\x01{topic}-{number}\x02".encode()
            self.store.append(Draft(topic, 0, b"x" * size, key))
        self.store.write()

    def kill(self) -> MessageStore:
        """End the process, start another."""
        self.files.is_dead = True
        self.store.abandon()
        self.disk = self.disk.after_process_crash()
        return self.open()

    def cut_power(self) -> MessageStore:
        """End the machine, start it again."""
        self.files.is_dead = True
        self.store.abandon()
        self.disk = self.disk.after_machine_crash(self.random)
        return self.open()

    @property
    def count(self) -> int:
        return self.store.max_offset("orders", 0)


def each_seed(case: Callable[[Machine], None], flush_disk_type: str = ASYNC_FLUSH) -> None:
    for seed in SEEDS:
        machine = Machine(seed, flush_disk_type)
        case(machine)
        machine.files.is_dead = True
        machine.store.abandon()


def test_the_first_flushed_message_of_a_new_store_survives_with_its_directory() -> None:
    def case(machine: Machine) -> None:
        machine.send()
        machine.store.mark_flushed(machine.store.flush())
        machine.cut_power()
        assert machine.count == 1

    each_seed(case, SYNC_FLUSH)


def test_a_forgotten_first_segment_does_not_let_the_log_start_later() -> None:
    def case(machine: Machine) -> None:
        machine.send(10)
        machine.cut_power()
        assert machine.store.min_position == 0
        assert machine.store.min_offset("orders", 0) == 0

    each_seed(case)


def test_removed_segments_do_not_come_back_around_a_gap() -> None:
    def case(machine: Machine) -> None:
        machine.send(12)
        machine.store.flush(thorough=True)
        machine.now += 2 * 3_600_000
        machine.store.request_clean()
        assert len(machine.store.clean()) > 3
        machine.cut_power()
        assert machine.count == 12

    each_seed(case)


def test_an_index_entry_is_found_again_after_a_power_cut() -> None:
    def case(machine: Machine) -> None:
        for number in range(30):
            machine.send(size=number)
            if number % 7 == 0:
                machine.store.flush(thorough=True)
        machine.store.flush()
        machine.cut_power()
        assert len(machine.store.query("orders", "orders-0").slices) == 30

    each_seed(case)


def test_a_crash_during_recovery_loses_no_queue_entry() -> None:
    for operation in range(40):
        for seed in range(6):
            machine = Machine(seed)
            machine.send(5)
            machine.store.close()
            machine.open()
            machine.files.crash_after = 0
            with pytest.raises(Crashed):
                machine.send(5)
            machine.disk = machine.disk.after_process_crash()
            machine.store.abandon()
            machine.files = FaultyFiles(machine.disk, machine.random)
            machine.files.crash_after = operation
            machine.store = MessageStore(ROOT, machine.config, files=machine.files)
            try:
                machine.store.open()
            except Crashed:
                machine.kill()
            assert 5 <= machine.count <= 10
            machine.files.is_dead = True
            machine.store.abandon()


def test_a_log_whose_records_are_all_gone_goes_on_where_it_was() -> None:
    machine = Machine(0)
    machine.send()
    end = machine.store.max_position
    machine.store.flush(thorough=True)
    # The blank is written, the segment behind it made, and then there is no room.
    machine.disk.free_bytes = 8
    with pytest.raises(StoreError):
        machine.send()
    machine.disk.free_bytes = None
    machine.store.clean()
    machine.send()
    machine.store.flush(thorough=True)
    machine.now += 2 * 3_600_000
    machine.store.request_clean()
    machine.store.clean()
    for _ in range(3):
        machine.kill()
        assert machine.store.max_position > end
        assert machine.count == 2


def test_a_sync_that_fails_inside_a_write_makes_the_store_refuse() -> None:
    machine = Machine(0)
    for _ in range(40):
        machine.store.append(Draft("orders", 0, b"x" * BIG))
    machine.files.failing_syncs = 1
    with pytest.raises(FlushFailed):
        machine.store.write()
    assert machine.store.refusal
    with pytest.raises(StoreError):
        machine.send()
    with pytest.raises(FlushFailed):
        machine.store.flush()
    machine.kill()
    machine.send()
    assert machine.count == 1


def test_one_write_to_more_segments_than_are_kept_open_can_be_undone() -> None:
    machine = Machine(0)
    machine.send(2)
    machine.disk.free_bytes = 20 * BIG
    for _ in range(40):
        machine.store.append(Draft("orders", 0, b"x" * BIG))
    with pytest.raises(StoreError):
        machine.store.write()
    machine.disk.free_bytes = None
    machine.store.clean()
    machine.send()
    machine.store.flush(thorough=True)
    machine.kill()
    assert machine.count == 3


def test_a_topic_deleted_at_the_second_try_stays_deleted() -> None:
    def case(machine: Machine) -> None:
        machine.send(3)
        machine.store.flush(thorough=True)
        machine.files.failing_syncs = 1
        with pytest.raises(StoreError):
            machine.store.delete_topic("orders")
        assert machine.store.refusal
        machine.kill()
        machine.store.delete_topic("orders")
        machine.cut_power()
        assert machine.count == 0

    each_seed(case)


def test_messages_sent_after_a_lost_end_are_not_taken_for_deleted_ones() -> None:
    def case(machine: Machine) -> None:
        machine.send(5, topic="bills")
        machine.store.delete_topic("orders")
        machine.cut_power()  # the log may end before the deletion now
        machine.send(2)
        machine.store.flush(thorough=True)
        machine.cut_power()
        assert machine.count == 2

    each_seed(case)


def test_a_disk_too_full_for_a_note_does_not_make_deleted_topics_come_back() -> None:
    machine = Machine(0)
    machine.send(3)
    machine.store.delete_topic("orders")
    machine.store.close()
    machine.disk.free_bytes = 0
    machine.open()
    assert machine.store.is_disk_full
    machine.disk.free_bytes = None
    machine.kill()
    assert machine.count == 0
    assert machine.store.is_writable


def test_a_clock_that_goes_back_costs_no_time(tmp_path: Path) -> None:
    index = KeyIndex(OS_FILES, str(tmp_path / "index"), IndexShape(3, 9), SegmentMaps(OS_FILES, 4))
    year_ms = 365 * 24 * 3_600_000
    for number in range(40):
        index.add([number], number, NOW - number * year_ms)
    assert list(index.headers) == sorted(index.headers)
    assert len(index.headers) == 5
    index.close()


def test_flushing_and_appending_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The flush thread runs against appends, rolling files, retention and deletions."""
    store = MessageStore(tmp_path / "store", config())
    store.open()
    is_done = threading.Event()
    failures: list[BaseException] = []

    def flush_all_the_time() -> None:
        try:
            while not is_done.is_set():
                store.flush(thorough=True)
        except BaseException as error:  # raised by the test below
            failures.append(error)

    thread = threading.Thread(target=flush_all_the_time)
    thread.start()
    try:
        for number in range(3_000):
            key = f"UNIQ_KEY\x01{number}\x02KEYS\x01a b c\x02".encode()
            store.append(Draft(f"topic-{number % 5}", number % 3, b"x" * 100, key))
            if number % 4 == 0:
                store.write()
            if number % 100 == 0:
                store.delete_topic(f"topic-{number % 7}")
            if number % 250 == 0:
                store.clean()
    finally:
        is_done.set()
        thread.join()
    assert failures == []
    store.close()
    with MessageStore(tmp_path / "store") as again:
        assert again.recovery is not None
        assert again.recovery.kind == "clean"


def test_an_index_file_without_a_key_hides_no_older_one(tmp_path: Path) -> None:
    """The process was killed before the first key, so its header is all zeros."""
    root = tmp_path / "store"
    store = MessageStore(root, config(), time_ms=lambda: NOW)
    store.open()
    for number in range(4):
        store.append(Draft("orders", 0, b"body", f"UNIQ_KEY\x01id-{number}\x02".encode()))
    store.write()
    store.abandon()
    (newest,) = (root / "index").iterdir()
    empty = newest.with_name("29990101000000000")
    empty.write_bytes(bytes(newest.stat().st_size))
    with MessageStore.open_readonly(root) as reader:
        assert len(reader.query("orders", "id-1", begin_ms=NOW, end_ms=NOW).slices) == 1
    with MessageStore(root, config()) as again:
        assert len(again.query("orders", "id-1", begin_ms=NOW, end_ms=NOW).slices) == 1
        assert again.key_index is not None
        assert again.key_index.end_position > 0
    assert not empty.exists()


def test_what_vouches_for_flushed_messages_is_on_the_disk_itself() -> None:
    def case(machine: Machine) -> None:
        machine.send()
        machine.store.flush(thorough=True)
        machine.send()
        machine.store.flush(thorough=True)
        end = machine.store.flushed_position
        after = machine.disk.after_machine_crash(machine.random)
        found = load_flushed(FaultyFiles(after), ROOT)
        assert found is not None
        assert found.position == end

    each_seed(case)
