"""A directory that is taken away from an open store: noticed, and nothing of another one harmed."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StoreLocked, StoreLost
from penstock.store import Draft, MessageStore, OsFiles, StoreConfig

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=8000,
    max_hash_slot_num=10,
    max_index_num=40,
)


def remove_all(root: Path) -> None:
    shutil.rmtree(root)


def move_away(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def remove_lock(root: Path) -> None:
    (root / "lock").unlink()


def replace_lock(root: Path) -> None:
    (root / "lock").unlink()
    (root / "lock").write_bytes(b"lock")


def remove_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


@pytest.mark.parametrize("take", [remove_all, move_away, remove_lock, replace_lock, remove_log])
def test_a_flush_notices_that_the_directory_is_gone(
    open_store: OpenStore, make_draft: MakeDraft, take: Callable[[Path], None]
) -> None:
    store = open_store(CONFIG)
    store.append(make_draft())
    store.write()
    store.flush()
    take(Path(store.root))
    with pytest.raises(StoreLost, match="was removed or replaced while this broker used it"):
        store.flush()
    with pytest.raises(StoreLost):
        store.append(make_draft())
    assert not store.is_blocked, "this does not pass"


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("take", [remove_all, move_away])
def test_the_store_that_takes_the_place_is_not_touched(
    open_store: OpenStore, make_draft: MakeDraft, take: Callable[[Path], None]
) -> None:
    first = open_store(CONFIG)
    first.append(make_draft(KEYS="k"))
    first.write()
    first.flush(thorough=True)
    take(Path(first.root))
    second = open_store(CONFIG)
    second.append(make_draft(KEYS="k"))
    second.write()
    second.flush(thorough=True)
    before = snapshot(Path(second.root))
    # Enough for a page of queue entries, without a flush in between.
    for _ in range(25):
        first.append(make_draft(body=b"x" * 10))

    def go_on() -> None:
        for _ in range(100):
            first.append(make_draft(body=b"x" * 10))
            first.write()

    with pytest.raises(StoreLost):
        go_on()
    first.close()
    assert snapshot(Path(second.root)) == before


def test_a_removed_lock_file_lets_no_second_one_in(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    first = open_store(CONFIG)
    (Path(first.root) / "lock").unlink()
    with pytest.raises(StoreLocked, match="its directory is locked"):
        open_store(CONFIG)
    first.abandon()
    open_store(CONFIG)


def test_a_file_system_without_directory_locks_is_fine(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    store = open_store(CONFIG)
    assert store.is_writable
    store.close()


def test_files_are_for_their_owner_alone(open_store: OpenStore, make_draft: MakeDraft) -> None:
    store = open_store(CONFIG)
    store.append(make_draft(KEYS="k"))
    store.write()
    store.close()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in Path(store.root).rglob("*.*")}
    assert modes == {0o600}
    for path in [Path(store.root), *Path(store.root).rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_parents_of_a_store_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    OsFiles().make_dir(str(tmp_path / "a/b/c"))
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o700
