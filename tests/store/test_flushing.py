"""What a flush may vouch for, while messages arrive and topics go."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.conftest import Clock
from tests.store.test_recovering import MakeDraft, OpenStore

from penstock.protocol.records.codec import decode_record
from penstock.store import OS_FILES, SYNC_FLUSH, MessageStore, OsFiles, StoreConfig
from penstock.store.checkpoint import load_flushed
from penstock.store.note import load_state

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=10,
    max_index_num=400,
)


class Interrupted(OsFiles):
    """Files whose syncs let something else happen first, once."""

    during_sync: Callable[[], None] | None = None
    during_sync_dir: Callable[[str], None] | None = None

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        action, self.during_sync = self.during_sync, None
        if action is not None:
            action()

    def sync_dir(self, path: str) -> None:
        if self.during_sync_dir is not None:
            self.during_sync_dir(path)
        super().sync_dir(path)


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_flush_does_not_vouch_for_what_came_while_it_ran(
    open_store: OpenStore, make_draft: MakeDraft, clock: Clock, is_sync: bool
) -> None:
    files = Interrupted()
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 16,
        flush_disk_type=SYNC_FLUSH if is_sync else "ASYNC_FLUSH",
    )
    store = open_store(config, files=files)
    store.append(make_draft(body=b"first"))
    store.write()
    end = store.max_position

    def append_more() -> None:
        store.append(make_draft(body=b"second"))
        store.write()

    files.during_sync = append_more
    clock.now += 61_000
    assert store.flush() == end
    assert store.max_position > end
    assert store.flushed_position == end
    flushed = load_flushed(OS_FILES, store.root)
    state = load_state(OS_FILES, store.root)
    assert flushed is not None
    assert state is not None
    assert flushed.position == end
    assert state.flushed_position == end
    assert state.queue_position <= end
    store.mark_flushed(end)
    visible = 1 if is_sync else 2
    assert store.max_offset("orders", 0) == visible


def test_a_topic_deleted_under_a_flush_does_not_fail_it(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    """The directories to be synced may go at any moment."""
    files = Interrupted()
    store = open_store(CONFIG, files=files)
    for topic in ("orders", "bills"):
        for queue_id in range(2):
            store.append(make_draft(topic, queue_id))
    store.write()

    def take_away(path: str) -> None:
        if path.endswith(("orders/0", "orders/1", "orders")):
            shutil.rmtree(Path(store.root) / "consumequeue/orders", ignore_errors=True)

    files.during_sync_dir = take_away
    store.flush(thorough=True)
    files.during_sync_dir = None
    assert store.is_writable
    store.append(make_draft("bills"))
    store.write()
    store.flush(thorough=True)


def test_files_of_a_topic_that_go_before_they_are_synced_do_not_fail_a_flush(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    files = Interrupted()
    store = open_store(CONFIG, files=files)
    store.append(make_draft())
    store.write()
    files.during_sync = lambda: shutil.rmtree(Path(store.root) / "consumequeue/orders", True)
    store.flush()
    store.queue_table.persist()
    files.during_sync = lambda: shutil.rmtree(Path(store.root) / "consumequeue/orders", True)
    store.flush(thorough=True)
    assert store.is_writable


def found_bodies(store: MessageStore, key: str) -> list[bytes]:
    return [decode_record(record).body for record in store.query("orders", key).slices]


def test_a_query_leaves_out_other_keys_with_the_same_hash(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    # Java's hash of both words is 2112.
    store = open_store(CONFIG)
    store.append(make_draft(body=b"one", KEYS="Aa"))
    store.append(make_draft(body=b"other", KEYS="BB"))
    store.append(make_draft(body=b"both", KEYS="BB Aa"))
    store.write()
    assert found_bodies(store, "Aa") == [b"one", b"both"]
    assert found_bodies(store, "BB") == [b"other", b"both"]
    assert found_bodies(store, "C#") == []


def test_the_clock_may_go_back_without_stopping_the_notes(
    open_store: OpenStore, make_draft: MakeDraft, tmp_path: Path
) -> None:
    seconds = 1000.0
    now = 1_700_000_000_000
    store = MessageStore(tmp_path / "back", CONFIG, time_ms=lambda: now, monotonic=lambda: seconds)
    with store:
        store.append(make_draft())
        store.write()
        now -= 6 * 3_600_000
        seconds += 61
        store.append(make_draft())
        store.write()
        store.flush()
        state = load_state(OS_FILES, store.root)
        assert state is not None
        assert state.flushed_position == store.max_position


def test_keys_of_a_file_that_is_not_full_are_not_vouched_for(
    open_store: OpenStore, make_draft: MakeDraft, clock: Clock
) -> None:
    """Apache's recovery believes an index file up to this time, and the newest one changes."""
    store = open_store(CONFIG)
    store.append(make_draft(KEYS="k"))
    store.write()
    store.flush(thorough=True)
    assert store.checkpoint.index_timestamp == 0
    for number in range(400):
        store.append(make_draft(KEYS=f"k{number}"))
    store.write()
    full_at = clock.now
    clock.now += 5000
    store.append(make_draft(KEYS="last"))
    store.write()
    store.flush(thorough=True)
    assert store.checkpoint.index_timestamp == full_at
