"""Files that change while no broker runs: nothing acknowledged is lost without a word."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.conftest import Clock
from tests.store.test_recovering import (
    SMALL,
    AfterPowerLoss,
    MakeDraft,
    OpenStore,
    check,
    fill,
    log_file,
    overwrite,
)

from penstock.errors import StoreDamaged
from penstock.protocol.records.codec import decode_record
from penstock.store import OS_FILES, MessageStore
from penstock.store.consume_queue import UNIT
from penstock.store.note import load_state
from penstock.store.tools.verify import verify

SALVAGE = replace(SMALL, truncate_damaged_log=True)


def flip(path: Path, position: int) -> None:
    """Change one bit, as a disk does: the time of the last change stays."""
    before = path.stat()
    data = path.read_bytes()
    overwrite(path, position, bytes([data[position] ^ 0x40]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


# The log, after a clean stop


def remove(path: Path, older: bytes) -> None:
    path.unlink()


def clear(path: Path, older: bytes) -> None:
    path.write_bytes(bytes(len(older)))


def put_older_copy_back(path: Path, older: bytes) -> None:
    path.write_bytes(older)


@pytest.mark.parametrize("hurt", [remove, clear, put_older_copy_back])
def test_a_last_segment_that_is_not_as_a_clean_stop_left_it_is_refused(
    open_store: OpenStore, make_draft: MakeDraft, hurt: Callable[[Path, bytes], None]
) -> None:
    store = open_store()
    fill(store, make_draft, 38)
    last = Path(store.root) / "commitlog" / f"{store.commit_log.bases[-1]:020d}"
    older = last.read_bytes()
    fill(store, make_draft, 2)
    store.close()
    assert f"{store.commit_log.bases[-1]:020d}" == last.name
    hurt(last, older)
    log = Path(store.root) / "commitlog"
    before = content(log)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"records up to log position .* penstock store exp"):
            open_store()
        assert content(log) == before, "a refused start changes nothing"
    assert open_store(SALVAGE).is_writable


def test_a_log_that_is_gone_with_all_queues_is_refused(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    store.close()
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(Path(store.root) / name)
    with pytest.raises(StoreDamaged, match="has no segment; expected the log up to position"):
        open_store()
    assert open_store(replace(SMALL, discard_queues_without_log=True)).max_position == 0


def test_the_last_record_is_looked_at_after_a_clean_stop(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 8)
    last = store.commit_log.last_record
    store.close()
    flip(log_file(store, last // 4096), last % 4096 + 120)
    with pytest.raises(StoreDamaged, match="a body that does not have its checksum"):
        open_store()


# The log, after the death of a process or a machine


def test_damage_with_whole_records_behind_it_is_refused_after_a_kill(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.abandon()
    flip(log_file(store, 1), 600)
    log = Path(store.root) / "commitlog"
    before = content(log)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"commitlog/00000000000000004096 at .*whole ones"):
            open_store()
        assert content(log) == before
    store = open_store(SALVAGE)
    assert store.recovery is not None
    end, kept = store.recovery.end, store.recovery.kept
    assert 4096 < end < 4096 + 600
    # What was cut is there as it was, to the last byte.
    assert Path(kept[0]).name == f"{end:020d}"
    assert before["00000000000000004096"][end - 4096 :].startswith(Path(kept[0]).read_bytes())
    assert Path(kept[1]).read_bytes() == before["00000000000000008192"].rstrip(b"\0")


def test_zeros_with_whole_records_behind_them_are_refused_after_a_kill(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.abandon()
    overwrite(log_file(store, 1), 0, bytes(1024))
    with pytest.raises(StoreDamaged, match="the log ends here"):
        open_store()


def test_a_torn_last_record_is_kept_aside(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    end = store.max_position
    fill(store, make_draft, 1)
    store.abandon()
    overwrite(log_file(store), end + 100, bytes(store.max_position - end - 100))
    torn = log_file(store).read_bytes()[end:].rstrip(b"\0")
    store = open_store()
    check(store, 4)
    assert store.recovery is not None
    assert [Path(path).read_bytes() for path in store.recovery.kept] == [torn]
    assert not any(log_file(store).read_bytes()[end:]), "a part that was cut must not come back"
    store.close()
    # Twice at the same place: the first is not overwritten.
    overwrite(log_file(store), end, b"\1")
    store = open_store()
    assert store.recovery is not None
    assert [Path(path).name for path in store.recovery.kept] == [f"{end:020d}.1"]


def test_what_a_dead_machine_wrote_out_of_order_is_cut_and_kept(
    open_store: OpenStore, make_draft: MakeDraft, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    fill(store, make_draft, 4)
    end = store.max_position
    fill(store, make_draft, 4)
    store.abandon()
    overwrite(log_file(store), end + 10, b"\xff")
    store = open_store(files=AfterPowerLoss())
    check(store, 4)
    assert store.recovery is not None
    assert len(store.recovery.kept) == 1
    assert "whole_records_cut=3" in caplog.text


def test_what_a_flush_made_sure_of_is_not_cut_after_a_power_loss(
    open_store: OpenStore, make_draft: MakeDraft, clock: Clock
) -> None:
    # The note is a minute old, the checkpoint a second.
    store = open_store()
    fill(store, make_draft, 30)
    clock.now += 1_000
    store.flush()
    state = load_state(OS_FILES, store.root)
    assert state is not None
    assert state.flushed_position < 4096
    store.abandon()
    flip(log_file(store, 1), 600)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="which were on the disk"):
            open_store(files=AfterPowerLoss())
    assert open_store(SALVAGE, files=AfterPowerLoss()).max_position < 4096 + 600


def test_what_was_given_up_is_not_asked_for_again(
    open_store: OpenStore, make_draft: MakeDraft, clock: Clock
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    clock.now += 1_000
    store.flush()
    store.abandon()
    flip(log_file(store, 1), 600)
    open_store(SALVAGE).abandon()
    store = open_store()
    assert store.recovery is not None
    assert (store.recovery.kind, store.recovery.kept) == ("crash", [])


@pytest.mark.parametrize("is_killed", [True, False])
def test_no_flipped_bit_of_the_note_loses_a_message(
    open_store: OpenStore, make_draft: MakeDraft, tmp_path: Path, is_killed: bool
) -> None:
    store = open_store()
    fill(store, make_draft, 12)
    store.flush(thorough=True)
    fill(store, make_draft, 12)
    if is_killed:
        store.abandon()
    else:
        store.close()
    note = (Path(store.root) / "penstock.state").read_bytes()
    numbers = [at for at, byte in enumerate(note) if chr(byte).isdigit()]
    for at in numbers[:: max(1, len(numbers) // 12)]:
        copy = tmp_path / f"copy-{at}"
        shutil.copytree(store.root, copy)
        (copy / "penstock.state").write_bytes(note[:at] + bytes([note[at] ^ 1]) + note[at + 1 :])
        opened = open_store(root=copy)
        check(opened, 24)
        opened.abandon()


# Queues and index


def remove_last_file(queue: Path) -> None:
    max(queue.iterdir()).unlink()


def clear_last_file(queue: Path) -> None:
    max(queue.iterdir()).write_bytes(bytes(200))


def cut_last_entry(queue: Path) -> None:
    last = max(queue.iterdir())
    used = len(last.read_bytes().rstrip(b"\0"))
    overwrite(last, (used - 1) // 20 * 20, bytes(20))


@pytest.mark.parametrize("hurt", [remove_last_file, clear_last_file, cut_last_entry, shutil.rmtree])
def test_a_queue_that_lost_its_end_is_made_again_from_the_log(
    open_store: OpenStore,
    make_draft: MakeDraft,
    caplog: pytest.LogCaptureFixture,
    hurt: Callable[[Path], None],
) -> None:
    store = open_store()
    fill(store, make_draft, 50)
    store.close()
    hurt(Path(store.root) / "consumequeue/orders/1")
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "rebuilt"
    assert "queues=[('orders', 1)]" in caplog.text
    check(store, 50)
    fill(store, make_draft, 2)
    store.close()
    check(open_store(), 52)
    assert verify("store", store.root).damages == []


def test_a_lost_queue_goes_on_at_its_place_even_if_all_its_messages_were_deleted(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    for _ in range(15):
        store.append(make_draft("old", 0))
    store.write()
    fill(store, make_draft, 40)
    store.flush(thorough=True)
    for path in (Path(store.root) / "commitlog").iterdir():
        os.utime(path, (1_600_000_000, 1_600_000_000))
    store.request_clean()
    store.clean()
    assert store.min_position >= 4096
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (15, 15)
    store.close()
    for _ in range(2):
        shutil.rmtree(Path(store.root) / "consumequeue/old")
        store = open_store()
        assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (15, 15)
        store.close()
    store = open_store()
    assert store.append(make_draft("old", 0)).queue_offset == 15
    store.write()
    store.abandon()
    store = open_store()
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (15, 16)
    assert store.read("old", 0, 15).count == 1


def index_files(store: MessageStore) -> list[Path]:
    return sorted((Path(store.root) / "index").iterdir())


def lose_all(files: list[Path]) -> None:
    for path in files:
        path.unlink()


def lose_newest(files: list[Path]) -> None:
    files[-1].unlink()


def lose_one(files: list[Path]) -> None:
    files[-2].unlink()


def clear_newest(files: list[Path]) -> None:
    files[-1].write_bytes(bytes(files[-1].stat().st_size))


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("hurt", [lose_all, lose_newest, lose_one, clear_newest])
def test_lost_index_files_are_made_again(
    open_store: OpenStore,
    make_draft: MakeDraft,
    hurt: Callable[[list[Path]], None],
    is_killed: bool,
) -> None:
    store = open_store()
    fill(store, make_draft, 100, size=10)
    store.flush(thorough=True)
    assert len(index_files(store)) == 3
    if is_killed:
        store.abandon()
    else:
        store.close()
    hurt(index_files(store))
    store = open_store()
    check(store, 100)
    store.close()
    assert verify("store", store.root).damages == []


@pytest.mark.parametrize("hurt", [lose_all, lose_newest, lose_one])
def test_verify_reports_lost_index_files(
    open_store: OpenStore, make_draft: MakeDraft, hurt: Callable[[list[Path]], None]
) -> None:
    store = open_store()
    fill(store, make_draft, 100, size=10)
    store.close()
    assert verify("store", store.root).damages == []
    hurt(index_files(store))
    assert any("index" in damage.file for damage in verify("store", store.root).damages)


def test_an_entry_about_another_record_does_not_end_a_queue_after_a_power_loss(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    # What is last in a queue's file must be about the record it points to.
    store = open_store()
    fill(store, make_draft, 8)
    store.flush(thorough=True)
    entry = store.entry("orders", 1, 0)
    assert entry is not None
    store.abandon()
    path = Path(store.root) / "consumequeue/orders/0/00000000000000000000"
    overwrite(path, 4 * 20, UNIT.pack(*entry))
    store = open_store(files=AfterPowerLoss())
    assert store.max_offset("orders", 0) == 4
    check(store, 8)
    (hit,) = store.query("orders", "k-6").slices
    assert decode_record(hit).queue_offset == 3


def test_entries_about_a_part_of_the_log_that_was_cut_are_cleared(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 6)
    store.flush(thorough=True)
    end = store.max_position
    fill(store, make_draft, 4)
    store.queue_table.persist()
    store.abandon()
    overwrite(log_file(store), end, bytes(4096 - end))
    store = open_store(files=AfterPowerLoss())
    check(store, 6)
    for queue_id in (0, 1):
        path = Path(store.root) / f"consumequeue/orders/{queue_id}/00000000000000000000"
        data = path.read_bytes()
        assert any(data[40:60])
        assert not any(data[60:]), "an entry of a message that is gone is still there"
