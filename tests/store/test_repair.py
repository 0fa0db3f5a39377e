"""``penstock store repair``: queues and index made again from the log, or a clear refusal."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.conftest import Golden
from tests.store.test_recovering import SMALL, MakeDraft, OpenStore, check, fill, overwrite

from penstock.errors import StoreDamaged, StoreLocked
from penstock.store import MessageStore, StoreConfig
from penstock.store.tools.repair import repair
from penstock.store.tools.verify import verify


def hurt_everything(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0000*"):
        overwrite(path, 0, b"\xff" * 23)
    for path in (root / "index").iterdir():
        overwrite(path, 40, b"\x7f" * 40)


@pytest.mark.parametrize("is_killed", [True, False])
def test_all_is_as_it_was(open_store: OpenStore, make_draft: MakeDraft, is_killed: bool) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    if is_killed:
        store.abandon()
    else:
        store.close()
    root = Path(store.root)
    hurt_everything(root)
    assert not verify("store", store.root).is_whole
    done = repair("broker-a", store.root)
    assert (done.records, done.queues, done.queue_entries) == (60, 2, 60)
    assert verify("store", store.root).is_whole
    store = open_store()
    check(store, 60)
    assert store.queue_table.segment_bytes == SMALL.mapped_file_size_consume_queue


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_it_removed_itself_is_no_error(
    open_store: OpenStore,
    make_draft: MakeDraft,
    caplog: pytest.LogCaptureFixture,
    is_killed: bool,
) -> None:
    store = open_store()
    fill(store, make_draft, 60)
    if is_killed:
        store.abandon()
    else:
        store.close()
    caplog.clear()
    repair("broker-a", store.root)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_queue_without_messages_keeps_its_place(
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
    assert store.min_offset("old", 0) == 15
    store.abandon()
    repair("broker-a", store.root)
    store = open_store()
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (15, 15)


def test_a_store_in_use_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(StoreLocked, match="stop the broker first"):
        repair("broker-a", store.root)
    assert store.is_writable


def test_a_damaged_log_is_refused_and_nothing_removed(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.close()
    log = Path(store.root) / "commitlog"
    overwrite(log / "00000000000000004096", 600, b"\xff")
    with pytest.raises(StoreDamaged, match=r"the log itself is damaged: .*4096 at \d+"):
        repair("broker-a", store.root)
    (log / "00000000000000004096").unlink()
    for path in sorted(log.iterdir())[1:]:
        path.unlink()
    with pytest.raises(StoreDamaged, match="but was on the disk up to"):
        repair("broker-a", store.root)
    assert len(list((Path(store.root) / "consumequeue").rglob("0000*"))) > 2


def test_verify_reports_a_log_that_lost_its_end(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    fill(store, make_draft, 30)
    store.close()
    max((Path(store.root) / "commitlog").iterdir()).unlink()
    assert any(
        "but was on the disk up to" in damage.what for damage in verify("s", store.root).damages
    )


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_store_of_apache_is_repaired(golden: Callable[[str], Golden], version: str) -> None:
    store = golden(version)
    ends = {
        (queue["topic"], queue["queueId"]): queue["maxOffset"]
        for queue in store.queues
        if queue["maxOffset"]
    }
    shutil.rmtree(store.root / "index")
    repair("broker-a", str(store.root))
    with MessageStore.open_readonly(store.root, StoreConfig()) as opened:
        for key, end in ends.items():
            assert opened.max_offset(*key) == end, key
