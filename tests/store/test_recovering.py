"""Opening a store after every kind of end: clean, killed, without power, damaged, by others."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, StoreDamaged, StoreError
from penstock.protocol.records.codec import decode_record, decode_records
from penstock.store import OS_FILES, Draft, MessageStore, OsFiles, ReadStatus, StoreConfig
from penstock.store.log_scan import LogScan
from penstock.store.note import load_state, save_state

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)


class AfterPowerLoss(OsFiles):
    """The same files after the machine was started anew."""

    def boot_id(self) -> str:
        return "another boot"


def fill(store: MessageStore, make_draft: MakeDraft, count: int, size: int = 300) -> None:
    """Messages with keys, in two queues, over several segments."""
    first = store.max_offset("orders", 0) * 2
    for number in range(first, first + count):
        body = number.to_bytes(4, "big") + bytes(size)
        store.append(make_draft("orders", number % 2, body, KEYS=f"k-{number}"))
    store.write()


def check(store: MessageStore, count: int) -> None:
    """All messages of ``fill`` are there once, in order, with queue entry and index entry."""
    for queue_id in (0, 1):
        offset = 0
        while offset < store.max_offset("orders", queue_id):
            result = store.read("orders", queue_id, offset)
            for record in decode_records(b"".join(result.slices)):
                assert int.from_bytes(record.body[:4], "big") == offset * 2 + queue_id
                offset += 1
    for number in range(count):
        (hit,) = store.query("orders", f"k-{number}").slices
        assert int.from_bytes(decode_record(hit).body[:4], "big") == number
    total = store.max_offset("orders", 0) + store.max_offset("orders", 1)
    assert total == count
    assert len(list(store.commit_log.scan(store.min_position))) == count


def log_file(store: MessageStore, number: int = 0) -> Path:
    return Path(store.root) / "commitlog" / f"{number * 4096:020d}"


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_after_a_clean_stop_nothing_is_scanned(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.close()
    assert not (Path(store.root) / "abort").exists()
    store = open_store()
    assert (Path(store.root) / "abort").read_text() == str(os.getpid())
    assert store.recovery is not None
    assert (store.recovery.kind, store.recovery.records) == ("clean", 0)
    assert store.statistics().loaded_queues == 0, "queues are loaded when they are used"
    check(store, 40)
    fill(store, make_draft, 10)
    check(store, 50)


@pytest.mark.parametrize("flushes", ["not at all", "the log", "everything"])
@pytest.mark.parametrize("files", [OsFiles(), AfterPowerLoss()])
def test_a_killed_process_loses_nothing_that_was_written(
    open_store: OpenStore, make_draft: MakeDraft, flushes: str, files: OsFiles
) -> None:
    # With another boot id the same bytes must be found without trusting queues and index.
    store = open_store()
    fill(store, make_draft, 40)
    if flushes != "not at all":
        store.flush(thorough=flushes == "everything")
    fill(store, make_draft, 26)
    store.abandon()
    store = open_store(files=files)
    assert store.recovery is not None
    assert store.recovery.kind == "crash"
    check(store, 66)
    fill(store, make_draft, 14)
    store.close()
    check(open_store(), 80)


def test_what_was_only_staged_is_gone_with_the_process(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.append(make_draft("orders", 0))
    store.abandon()
    check(open_store(), 4)


def test_recovery_starts_where_the_last_full_flush_ended(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.flush(thorough=True)
    position = store.max_position
    fill(store, make_draft, 2)
    store.abandon()
    recovery = open_store().recovery
    assert recovery is not None
    assert (recovery.start, recovery.records) == (position, 2)


@pytest.mark.parametrize("cut", [1, 4, 40, 88, 100, 200])
def test_a_torn_last_record_is_cut_off(
    open_store: OpenStore, make_draft: MakeDraft, cut: int
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    end = store.max_position
    fill(store, make_draft, 1)
    size = store.max_position - end
    store.abandon()
    overwrite(log_file(store), end + cut, bytes(size - cut))
    store = open_store(files=AfterPowerLoss())
    assert store.recovery is not None
    assert store.recovery.end == end
    check(store, 4)
    fill(store, make_draft, 1)
    check(store, 5)


def test_a_record_torn_in_its_properties_is_cut_off(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    # The checksum covers the body only; zeros where text should be tell.
    store = open_store()
    fill(store, make_draft, 3)
    end = store.max_position
    fill(store, make_draft, 1)
    store.abandon()
    overwrite(log_file(store), store.max_position - 3, bytes(3))
    store = open_store(files=AfterPowerLoss())
    assert store.recovery is not None
    assert (store.recovery.end, store.recovery.damage) == (
        end, "properties that were written in part",
    )  # fmt: skip


def test_a_record_behind_a_torn_one_does_not_come_back_later(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    end = store.max_position
    fill(store, make_draft, 4)
    store.abandon()
    overwrite(log_file(store), end + 100, b"\xff")
    store = open_store(files=AfterPowerLoss())
    check(store, 4)
    # A new record of the same size ends exactly where the dropped ones start.
    fill(store, make_draft, 1)
    store.abandon()
    check(open_store(), 5)


def test_damage_before_the_last_flush_is_refused_with_file_and_position(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.flush(thorough=True)
    last = store.commit_log.last_record
    fill(store, make_draft, 2)
    store.abandon()
    # Let the note know a flush that the queues had no part in.
    state = load_state(OS_FILES, store.root)
    assert state is not None
    assert state.queue_position == store.flushed_position
    save_state(OS_FILES, store.root, replace(state, queue_position=0, queue_record=-1))
    overwrite(log_file(store, 1), 150, b"\xff")
    with pytest.raises(StoreDamaged, match=r"commitlog/00000000000000004096 at \d+ .*position"):
        open_store()
    assert last > 4096
    salvaged = open_store(replace(SMALL, truncate_damaged_log=True))
    assert salvaged.max_position < last


def test_a_zero_segment_prepared_ahead_is_no_damage(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.abandon()
    log_file(store, 1).write_bytes(bytes(4096))
    check(open_store(), 4)
    assert not log_file(store, 1).exists()


def test_a_last_segment_without_a_byte_is_deleted(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.abandon()
    log_file(store, 1).touch()
    check(open_store(), 4)
    assert not log_file(store, 1).exists()


@pytest.mark.parametrize("kind", ["short", "long"])
def test_a_segment_of_another_size_is_refused(
    open_store: OpenStore, make_draft: MakeDraft, kind: str
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.close()
    size = 1000 if kind == "short" else 5000
    os.truncate(log_file(store, 1), size)
    with pytest.raises(StoreDamaged, match=f"00000000000000004096 has {size} bytes"):
        open_store()


def test_a_short_queue_file_is_refused(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    store.close()
    os.truncate(Path(store.root) / "consumequeue/orders/0/00000000000000000200", 100)
    store = open_store()
    with pytest.raises(StoreDamaged, match="orders/0/00000000000000000200 has 100 bytes"):
        store.read("orders", 0, 0)
    assert store.read("orders", 1, 0).status is ReadStatus.FOUND


def empty_it(queue: Path) -> None:
    os.truncate(queue / "00000000000000000200", 0)


def fill_it_with_another_queue(queue: Path) -> None:
    for path in queue.iterdir():
        path.write_bytes((queue.parent / "1" / path.name).read_bytes())


def fill_it_with_far_places(queue: Path) -> None:
    entry = struct.pack(">qiq", 1 << 62, 300, 0)
    (queue / "00000000000000000000").write_bytes(entry * 10)
    (queue / "00000000000000000200").unlink()


@pytest.mark.parametrize("damage", [empty_it, fill_it_with_another_queue, fill_it_with_far_places])
def test_a_queue_that_is_not_as_a_clean_stop_left_it_is_made_again(
    open_store: OpenStore, make_draft: MakeDraft, damage: Callable[[Path], None]
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.close()
    damage(Path(store.root) / "consumequeue/orders/0")
    # To take it for a shorter queue would hide messages, and number new ones like old ones.
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "rebuilt"
    check(store, 30)
    store.close()
    check(open_store(), 30)


@pytest.mark.parametrize("damage", [empty_it, fill_it_with_another_queue, fill_it_with_far_places])
def test_a_queue_damaged_after_the_start_is_refused_and_left_alone(
    open_store: OpenStore, make_draft: MakeDraft, damage: Callable[[Path], None]
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.close()
    store = open_store()
    queue = Path(store.root) / "consumequeue/orders/0"
    damage(queue)
    before = {path.name: path.read_bytes() for path in queue.iterdir()}
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="penstock store repair"):
            store.read("orders", 0, 0)
        with pytest.raises(StoreDamaged, match="penstock store repair"):
            store.append(make_draft("orders", 0))
    assert store.read("orders", 1, 0).status is ReadStatus.FOUND
    assert {path.name: path.read_bytes() for path in queue.iterdir()} == before
    store.close()
    check(open_store(), 30)


def test_a_link_to_nowhere_does_not_hide_the_files_beside_it(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 20)
    store.close()
    for directory in ("commitlog", "consumequeue/orders", "consumequeue/orders/0", "index"):
        (Path(store.root) / directory / "nowhere").symlink_to("is not there")
    check(open_store(), 20)


def test_a_directory_in_the_place_of_a_segment_is_refused(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.close()
    log_file(store, 0).unlink()
    log_file(store, 0).mkdir()
    with pytest.raises(StoreDamaged, match="00000000000000000000 is a directory"):
        open_store()


@pytest.mark.parametrize("topic", ["t" * 256, "\u00fc" * 200, "..", "a/b", "\0", ""])
def test_a_topic_that_can_name_no_directory_has_no_queue(open_store: OpenStore, topic: str) -> None:
    store = open_store()
    assert (store.min_offset(topic, 0), store.max_offset(topic, 0)) == (0, 0)
    assert store.earliest_store_time(topic, 0) == -1
    assert store.read(topic, 0, 0).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_missing_segment_in_the_middle_is_refused(
    open_store: OpenStore, make_draft: MakeDraft, is_clean: bool
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.flush(thorough=True)
    if is_clean:
        store.close()
    else:
        store.abandon()
    log_file(store, 1).unlink()
    with pytest.raises(StoreDamaged, match="commitlog"):
        open_store()
    assert log_file(store, 2).exists(), "nothing is removed when a store is refused"


@pytest.mark.parametrize(
    "name", ["00000000000000000000.gz", "readme", "123", "0000000000000000409x"]
)
def test_a_foreign_file_among_the_segments_is_refused(
    open_store: OpenStore, tmp_path: Path, name: str
) -> None:
    directory = tmp_path / "store/commitlog"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(b"who knows")
    with pytest.raises(StoreDamaged, match="is not a segment"):
        open_store()


def test_queues_without_a_log_are_not_taken_for_a_new_store(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.close()
    shutil.rmtree(Path(store.root) / "commitlog")
    with pytest.raises(StoreDamaged, match="has no segment, but 2 queues"):
        open_store()
    fresh = open_store(replace(SMALL, discard_queues_without_log=True))
    assert fresh.max_offset("orders", 0) == 0
    assert list(fresh.queues()) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_queues_and_index_deleted_together_are_made_again(
    open_store: OpenStore, make_draft: MakeDraft, is_clean: bool
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.flush(thorough=True)
    if is_clean:
        store.close()
    else:
        store.abandon()
    shutil.rmtree(Path(store.root) / "consumequeue")
    shutil.rmtree(Path(store.root) / "index")
    check(open_store(), 40)


def test_a_queue_that_lost_flushed_entries_is_made_again(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    store.flush(thorough=True)
    fill(store, make_draft, 2)
    store.abandon()
    for path in sorted((Path(store.root) / "consumequeue/orders/0").iterdir())[1:]:
        path.unlink()
    check(open_store(), 62)


def test_without_checkpoint_and_note_everything_is_found(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.close()
    (Path(store.root) / "checkpoint").unlink()
    (Path(store.root) / "penstock.state").unlink()
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "checked"
    check(store, 40)


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version": 1}', b"\xff" * 100])
def test_a_note_that_cannot_be_read_is_ignored(
    open_store: OpenStore, make_draft: MakeDraft, garbage: bytes
) -> None:
    store = open_store()
    fill(store, make_draft, 10)
    store.close()
    (Path(store.root) / "penstock.state").write_bytes(garbage)
    check(open_store(), 10)


def test_the_note_is_not_believed_once_another_program_wrote(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 10)
    store.close()
    kept = (Path(store.root) / "penstock.state").read_bytes()
    other = open_store()
    fill(other, make_draft, 10)
    other.close()
    # The other program knows nothing of our note; it stays as we left it.
    (Path(store.root) / "penstock.state").write_bytes(kept)
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "checked"
    check(store, 20)


def test_a_copy_of_a_store_is_checked_and_complete(
    open_store: OpenStore, make_draft: MakeDraft, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.close()
    shutil.copytree(store.root, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = open_store(root=tmp_path / "copy")
    assert copy.recovery is not None
    assert copy.recovery.kind == "checked"
    check(copy, 40)


def test_sizes_are_adopted_and_others_refused(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    fill(store, make_draft, 40)
    store.close()
    for other in (
        replace(SMALL, mapped_file_size_commit_log=8192),
        replace(SMALL, mapped_file_size_consume_queue=400),
        replace(SMALL, max_hash_slot_num=20),
        replace(SMALL, max_index_num=80),
    ):
        with pytest.raises(ConfigError, match="were made with"):
            open_store(other)
    adopted = open_store(StoreConfig())
    assert adopted.commit_log.segment_size == 4096
    assert adopted.queue_table.segment_bytes == 200
    check(adopted, 40)


def test_a_deleted_topic_stays_deleted_after_a_crash(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 10)
    store.append(make_draft("bills"))
    assert store.delete_topic("orders") == 2
    assert store.read("orders", 0, 0).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    again = store.append(make_draft("orders", 0, b"new"))
    store.write()
    assert again.queue_offset == 0
    store.abandon()
    store = open_store(files=AfterPowerLoss())
    assert store.max_offset("orders", 0) == 1
    assert store.max_offset("orders", 1) == 0
    assert sorted(store.queues()) == [("bills", 0), ("orders", 0)]
    (record,) = decode_records(b"".join(store.read("orders", 0, 0).slices))
    assert record.body == b"new"
    assert store.delete_topic("never") == 0


def test_the_index_of_full_files_survives_and_the_rest_is_made_again(
    open_store: OpenStore, make_draft: MakeDraft, clock: Any
) -> None:
    store = open_store()
    fill(store, make_draft, 100, size=10)
    store.flush(thorough=True)
    names = sorted(path.name for path in (Path(store.root) / "index").iterdir())
    assert len(names) == 3
    store.abandon()
    # A file that was not full is not trusted after a power loss.
    overwrite(Path(store.root) / "index" / names[2], 0, bytes(80))
    clock.now += 5
    store = open_store(files=AfterPowerLoss())
    check(store, 100)
    assert store.recovery is not None
    assert store.recovery.reindexed >= 22


def test_the_index_of_a_killed_process_is_taken_as_it_is(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    store.flush(thorough=True)
    fill(store, make_draft, 2)
    names = sorted(path.name for path in (Path(store.root) / "index").iterdir())
    store.abandon()
    store = open_store()
    assert store.recovery is not None
    assert (store.recovery.records, store.recovery.reindexed) == (2, 0)
    assert sorted(path.name for path in (Path(store.root) / "index").iterdir()) == names
    check(store, 62)


def test_recovery_that_is_killed_half_way_is_taken_up_again(
    open_store: OpenStore, make_draft: MakeDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    store.abandon()
    parsed = 0

    def dies(self: LogScan, *place: Any) -> Any:
        nonlocal parsed
        parsed += 1
        if parsed == 30:
            raise KeyboardInterrupt
        return original(self, *place)

    original = LogScan._parse
    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.index_builder._PORTION", 8)
        patch.setattr(LogScan, "_parse", dies)
        with pytest.raises(KeyboardInterrupt):
            open_store(files=AfterPowerLoss())
    check(open_store(files=AfterPowerLoss()), 60)


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a directory should be")
    with pytest.raises(StoreError, match="cannot be opened"):
        MessageStore(tmp_path / "store").open()


def test_an_empty_store_takes_kilobytes(tmp_path: Path) -> None:
    with MessageStore(tmp_path / "store") as store:
        store.append(Draft("orders", 0, b"hello", b"UNIQ_KEY\x01id\x02"))
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "store").rglob("*"))
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*"))
    assert size > 1 << 30
    assert used < 200_000


def test_segments_behind_a_gap_are_kept_aside(open_store: OpenStore, make_draft: MakeDraft) -> None:
    """A dead machine may forget a name and keep the next one; its messages were not flushed."""
    store = open_store()
    fill(store, make_draft, 40)
    store.abandon()
    lost = log_file(store, 2).read_bytes()
    log_file(store, 1).unlink()
    store = open_store(files=AfterPowerLoss())
    assert not log_file(store, 2).exists()
    kept = [path.read_bytes() for path in (Path(store.root) / "penstock.cut").iterdir()]
    assert any(part and lost.startswith(part[:100]) for part in kept)


def test_a_key_is_found_after_the_clock_was_set_back(
    open_store: OpenStore, make_draft: MakeDraft, clock: Any
) -> None:
    store = open_store()
    store.append(make_draft(KEYS="before"))
    store.write()
    clock.now -= 600_000
    store.append(make_draft(KEYS="after"))
    store.write()
    (hit,) = store.query("orders", "after", begin_ms=clock.now, end_ms=clock.now).slices
    assert decode_record(hit).queue_offset == 1
