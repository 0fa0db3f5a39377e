"""The faulty files: the same as the real ones until something goes wrong, and then as promised."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.faulty_files import Crashed, FaultyFiles, SimulatedDisk

from penstock.store import OS_FILES, FileLayer
from penstock.store.files import PAGE_BYTES


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def files(disk: SimulatedDisk) -> FaultyFiles:
    return FaultyFiles(disk, Random(1))


def make_file(files: FaultyFiles, path: str = "/file", size: int = 64) -> int:
    """A file that lasts: its name and its length are on the disk."""
    descriptor = files.create(path, size)
    files.sync(descriptor)
    files.sync_dir("/")
    return descriptor


def content(disk: SimulatedDisk, path: str = "/file") -> bytes | None:
    """What a new process finds."""
    files = FaultyFiles(disk)
    entry = files.stat(path)
    if entry is None:
        return None
    return files.read(files.open(path), entry.size, 0)


def outcomes(disk: SimulatedDisk, path: str = "/file") -> set[bytes | None]:
    """What may be left of a file when the machine dies, over many deaths."""
    return {
        content(disk.after_process_crash().after_machine_crash(Random(seed)), path)
        for seed in range(1_000)
    }


# The same as real files


class Both:
    """Does everything twice, with real files and in memory, and compares."""

    def __init__(self, directory: Path) -> None:
        self.layers: list[tuple[FileLayer, str]] = [
            (OS_FILES, str(directory)),
            (FaultyFiles(SimulatedDisk()), "/root"),
        ]
        self.layers[1][0].make_dir("/root")

    def write(self, name: str, size: int, position: int, data: bytes) -> None:
        for files, root in self.layers:
            path = f"{root}/{name}"
            is_new = files.stat(path) is None
            descriptor = files.create(path, size) if is_new else files.open(path, write=True)
            position = min(position, size)
            assert files.write(descriptor, (data[:1], data[1:]), position) == len(data)
            files.sync(descriptor)
            files.close(descriptor)

    def clear(self, name: str, start: int, end: int) -> None:
        for files, root in self.layers:
            entry = files.stat(f"{root}/{name}")
            if entry is not None:
                descriptor = files.open(f"{root}/{name}", write=True)
                files.clear(descriptor, min(start, entry.size), min(end, entry.size))
                files.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        for files, root in self.layers:
            if files.stat(f"{root}/{old}") is not None:
                files.rename(f"{root}/{old}", f"{root}/{new}")
                files.sync_dir(root)

    def remove(self, name: str) -> None:
        for files, root in self.layers:
            files.remove(f"{root}/{name}")

    def seen(self) -> list[list[tuple[str, int, bytes, bytes]]]:
        views = []
        for files, root in self.layers:
            rows = []
            for entry in sorted(files.list_dir(root)):
                descriptor = files.open(f"{root}/{entry.name}")
                read = files.read(descriptor, 1 << 20, 0)
                mapped = bytes(files.map(descriptor, entry.size)) if entry.size else b""
                files.close(descriptor)
                rows.append((entry.name, entry.size, read, mapped))
            views.append(rows)
        return views


names = st.sampled_from(("a", "b", "c"))
steps = st.one_of(
    st.tuples(st.just("write"), names, st.integers(0, 200), st.integers(0, 200), st.binary()),
    st.tuples(st.just("clear"), names, st.integers(0, 200), st.integers(0, 200)),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("remove"), names),
)


@given(plan=st.lists(steps, max_size=12))
def test_without_faults_they_do_what_real_files_do(
    plan: list[tuple[str, *tuple[object, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    both = Both(tmp_path_factory.mktemp("real"))
    for action, *arguments in plan:
        getattr(both, action)(*arguments)
        real, simulated = both.seen()
        assert simulated == real


@pytest.mark.parametrize("is_real", [True, False])
def test_both_refuse_the_same_things(tmp_path: Path, is_real: bool) -> None:
    files: FileLayer = OS_FILES if is_real else FaultyFiles(SimulatedDisk())
    root = str(tmp_path) if is_real else "/root"
    files.make_dir(f"{root}/full")
    files.close(files.create(f"{root}/full/file", 10))
    with pytest.raises(FileExistsError):
        files.create(f"{root}/full/file", 10)
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/nothing")
    with pytest.raises(OSError, match="not empty"):
        files.remove_dir(f"{root}/full")
    descriptor = files.open(f"{root}/full/file")
    with pytest.raises(ValueError, match="greater than file size"):
        files.map(descriptor, 11)
    files.close(descriptor)
    with pytest.raises(OSError, match=r"[Bb]ad file|not open"):
        files.read(descriptor, 1, 0)
    assert files.list_dir(f"{root}/nowhere") == []
    assert files.stat(f"{root}/nowhere") is None
    files.remove(f"{root}/full/nothing")


def test_a_removed_file_stays_readable_for_who_has_it(files: FaultyFiles) -> None:
    descriptor = make_file(files)
    files.write(descriptor, (b"kept",), 0)
    view = files.map(descriptor, 64)
    files.remove("/file")
    assert bytes(view[:4]) == files.read(descriptor, 4, 0) == b"kept"


def test_a_lock_keeps_other_processes_out_until_its_owner_dies(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    token = files.lock("/lock")
    with pytest.raises(BlockingIOError):
        FaultyFiles(disk).lock("/lock")
    files.unlock(token)
    other = FaultyFiles(disk)
    other.lock("/lock")
    heir = FaultyFiles(disk.after_process_crash())
    heir.lock("/lock")


# The death of a process


def test_what_was_written_survives_the_process(disk: SimulatedDisk, files: FaultyFiles) -> None:
    descriptor = make_file(files)
    files.write(descriptor, (b"written",), 0)
    assert (content(disk.after_process_crash()) or b"").startswith(b"written")


def test_a_crash_strikes_at_the_chosen_change(files: FaultyFiles) -> None:
    descriptor = make_file(files)
    files.crash_after = 2
    files.write(descriptor, (b"one",), 0)
    files.read(descriptor, 3, 0)
    files.sync(descriptor)
    with pytest.raises(Crashed):
        files.write(descriptor, (b"three",), 8)
    with pytest.raises(Crashed):
        files.read(descriptor, 3, 0)
    files.close(descriptor)


def test_the_last_write_of_a_process_may_be_cut_at_any_byte() -> None:
    found: set[bytes] = set()
    for seed in range(100):
        disk = SimulatedDisk()
        files = FaultyFiles(disk, Random(seed))
        descriptor = make_file(files, size=4)
        files.crash_after = 0
        with pytest.raises(Crashed):
            files.write(descriptor, (b"ab", b"cd"), 0)
        found.add(content(disk.after_process_crash()) or b"")
    assert found == {b"\0\0\0\0", b"a\0\0\0", b"ab\0\0", b"abc\0", b"abcd"}


# The death of the machine


def test_what_was_synced_survives_the_machine(disk: SimulatedDisk, files: FaultyFiles) -> None:
    descriptor = make_file(files, size=4)
    files.write(descriptor, (b"safe",), 0)
    files.sync(descriptor)
    assert outcomes(disk) == {b"safe"}


def test_unsynced_writes_survive_whole_in_part_or_not_at_all_in_any_order(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    descriptor = make_file(files, size=4)
    files.write(descriptor, (b"ab",), 0)
    files.write(descriptor, (b"cd",), 2)
    found = outcomes(disk)
    assert {b"\0\0\0\0", b"ab\0\0", b"\0\0cd", b"abcd", b"a\0\0\0", b"a\0cd"} <= found
    for left in found:
        assert left is not None
        assert all(byte in (0, ord("abcd"[place])) for place, byte in enumerate(left))


def test_names_survive_the_machine_once_their_directory_is_synced(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    descriptor = files.create("/file", 4)
    files.sync(descriptor)
    assert outcomes(disk) == {None, bytes(4)}
    files.sync_dir("/")
    assert outcomes(disk) == {bytes(4)}
    files.remove("/file")
    assert outcomes(disk) == {None, bytes(4)}
    files.sync_dir("/")
    assert outcomes(disk) == {None}


def test_a_file_never_synced_may_have_no_length(disk: SimulatedDisk, files: FaultyFiles) -> None:
    files.create("/file", 4)
    files.sync_dir("/")
    assert outcomes(disk) == {b"", bytes(4)}


def test_a_directory_forgotten_takes_all_below_it_along(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    files.make_dir("/a/b")
    descriptor = files.create("/a/b/file", 4)
    files.sync(descriptor)
    files.sync_dir("/a/b")
    files.sync_dir("/a")
    assert outcomes(disk, "/a/b/file") == {None, bytes(4)}
    files.sync_dir("/")
    assert outcomes(disk, "/a/b/file") == {bytes(4)}


def test_a_rename_is_done_or_not(disk: SimulatedDisk, files: FaultyFiles) -> None:
    for name in ("old", "new"):
        descriptor = make_file(files, f"/{name}", size=4)
        files.write(descriptor, (f"{name}!".encode(),), 0)
        files.sync(descriptor)
    files.rename("/new", "/old")
    assert outcomes(disk, "/old") == {b"old!", b"new!"}


def test_stores_through_a_map_are_pages_to_be_synced(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    descriptor = make_file(files, size=2 * PAGE_BYTES)
    mapped = files.map_writable(descriptor, 2 * PAGE_BYTES)
    mapped.view[0:2] = b"ab"
    mapped.view[PAGE_BYTES : PAGE_BYTES + 2] = b"cd"
    heads = {
        (left[:2], left[PAGE_BYTES : PAGE_BYTES + 2]) for left in outcomes(disk) if left is not None
    }
    assert {(b"\0\0", b"\0\0"), (b"ab", b"\0\0"), (b"\0\0", b"cd"), (b"ab", b"cd")} <= heads
    assert (content(disk.after_process_crash()) or b"")[:2] == b"ab"
    mapped.sync()
    assert {(left or b"")[:2] for left in outcomes(disk)} == {b"ab"}
    mapped.close()
    assert files.open_files == 0


def test_a_machine_starts_with_a_new_boot_id_and_a_process_does_not(disk: SimulatedDisk) -> None:
    first = FaultyFiles(disk).boot_id()
    assert FaultyFiles(disk.after_process_crash()).boot_id() == first
    assert FaultyFiles(disk.after_machine_crash(Random(0))).boot_id() != first


# Refusals


def test_a_failed_sync_loses_what_a_later_one_does_not_bring_back() -> None:
    found: set[bytes | None] = set()
    for seed in range(50):
        disk = SimulatedDisk()
        files = FaultyFiles(disk, Random(seed))
        descriptor = make_file(files, size=4)
        files.write(descriptor, (b"lost",), 0)
        files.failing_syncs = 1
        with pytest.raises(OSError, match="input/output"):
            files.sync(descriptor)
        files.sync(descriptor)
        assert content(disk.after_process_crash()) == b"lost"
        found |= {content(disk.after_machine_crash(Random(seed)))}
    assert {bytes(4), b"lost"} <= found


def test_a_full_disk_takes_what_fits_and_refuses_the_rest(
    disk: SimulatedDisk, files: FaultyFiles
) -> None:
    descriptor = make_file(files)
    disk.free_bytes = 3
    assert files.write(descriptor, (b"abcdef",), 0) == 3
    with pytest.raises(OSError, match="no space") as refused:
        files.write(descriptor, (b"def",), 3)
    assert refused.value.errno == errno.ENOSPC
    disk.free_bytes = None
    assert files.write(descriptor, (b"def",), 3) == 3
    assert files.read(descriptor, 6, 0) == b"abcdef"


def test_short_writes_are_reported_and_never_empty(files: FaultyFiles) -> None:
    descriptor = make_file(files)
    files.short_writes = True
    sizes = {files.write(descriptor, (b"abcdef",), 0) for _ in range(100)}
    assert sizes == {1, 2, 3, 4, 5, 6}


def test_the_same_seed_gives_the_same_death(disk: SimulatedDisk, files: FaultyFiles) -> None:
    descriptor = make_file(files)
    for number in range(20):
        files.write(descriptor, (bytes([number + 1]) * 3,), number * 3)
    survivors = [
        content(disk.after_process_crash().after_machine_crash(Random(7))) for _ in range(2)
    ]
    assert survivors[0] == survivors[1]
