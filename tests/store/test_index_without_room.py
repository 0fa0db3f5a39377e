"""An index that could not be written is completed by the next start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.test_faults import FailingFiles

from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.files import Buffer
from penstock.store.note import load_state
from penstock.store.segments import OS_FILES
from penstock.store.tools.verify import verify

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=8000,
    max_hash_slot_num=10,
    max_index_num=40,
)
MESSAGES = 60
"""More than one index file of this shape has room for."""


def close(store: MessageStore) -> None:
    store.close()


def die(store: MessageStore) -> None:
    """As a killed process leaves it, some time after its last thorough flush."""
    store.mark_flushed(store.flush(thorough=True))
    store.flush(thorough=True)
    store.abandon()


def draft(number: int) -> Draft:
    return Draft("orders", 0, b"body", f"KEYS\x01k-{number}\x02".encode(), born_timestamp=1)


def lost_keys(store: MessageStore, count: int = MESSAGES) -> list[int]:
    return [n for n in range(count) if len(store.query("orders", f"k-{n}").slices) != 1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("end", [close, die])
@pytest.mark.parametrize("indexed", [0, 1, 39, 50])
def test_the_next_start_adds_the_keys_that_had_no_room(
    root: Path, flush: str, end: Callable[[MessageStore], None], indexed: int
) -> None:
    config = replace(CONFIG, flush_disk_type=flush)
    files = FailingFiles()
    store = MessageStore(root, config, files=files)
    store.open()
    for number in range(indexed):
        store.append(draft(number))
        store.write()
        store.mark_flushed(store.flush())
    for number in range(indexed, MESSAGES):
        store.append(draft(number))
    files.no_room_in = "index"
    store.write()
    store.mark_flushed(store.flush())
    end(store)
    with MessageStore.open_readonly(root, config) as reader:
        assert lost_keys(reader) == []
    with MessageStore(root, config) as again:
        assert lost_keys(again) == []
        assert again.max_offset("orders", 0) == MESSAGES
    assert verify("store", str(root)).damages == []
    with MessageStore(root, config) as again:
        assert again.recovery is not None
        assert again.recovery.kind == "clean", "nothing is missing any more"


def test_starts_without_room_for_the_index_do_not_forget_what_it_lacks(root: Path) -> None:
    files = FailingFiles()
    store = MessageStore(root, CONFIG, files=files)
    store.open()
    store.append(draft(0))
    files.no_room_in = "index"
    store.write()
    store.close()
    for _ in range(2):
        store = MessageStore(root, CONFIG, files=files)
        store.open()
        assert store.is_disk_full
        store.close()
    with MessageStore(root, CONFIG) as again:
        assert lost_keys(again, 1) == []


def test_room_found_while_running_ends_the_note(root: Path) -> None:
    files = FailingFiles()
    store = MessageStore(root, CONFIG, files=files)
    store.open()
    store.append(draft(0))
    files.no_room_in = "index"
    store.write()
    store.flush(thorough=True)
    noted = load_state(OS_FILES, str(root))
    assert noted is not None
    assert noted.index_stopped_at == 0
    files.no_room_in = ""
    store.clean()
    assert lost_keys(store, 1) == []
    store.flush(thorough=True)
    noted = load_state(OS_FILES, str(root))
    assert noted is not None
    assert noted.index_stopped_at == -1
    store.close()


def test_a_note_of_an_earlier_version_is_still_believed(root: Path) -> None:
    with MessageStore(root, CONFIG) as store:
        store.append(draft(0))
    note = root / "penstock.state"
    written = json.loads(note.read_text())
    for name in ("checksum", "index_stopped_at", "queue_ends", "queue_record", "run"):
        del written[name]
    written["version"] = 1
    note.write_text(json.dumps(written))
    (root / "penstock.queues").unlink()
    for kind in ("checked", "clean"):
        # Once everything is looked at, since that note did not say where queues end.
        with MessageStore(root, CONFIG) as again:
            assert again.recovery is not None
            assert again.recovery.kind == kind
            assert again.max_offset("orders", 0) == 1


def test_a_header_is_never_stored_to_before_it_has_room(root: Path) -> None:
    """A store to a hole of a full disk kills the process."""

    class Watching(FailingFiles):
        places: set[int] = set()  # noqa: RUF012 - one test's own

        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            written = super().write(descriptor, buffers, position)
            if "index" in self.paths[descriptor]:
                self.places.add(position)
            return written

    # Slots of several pages, so that a key hardly ever lies on the header's.
    config = replace(CONFIG, max_hash_slot_num=50_000)
    files = Watching()
    store = MessageStore(root, config, files=files)
    store.open()
    store.append(draft(0))
    files.no_room_in = "index"
    store.write()
    files.no_room_in = ""
    store.clean()
    assert lost_keys(store, 1) == []
    assert 0 in files.places, "keys were added to a file whose header has no room"
    store.close()
