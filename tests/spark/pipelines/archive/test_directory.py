"""An archive whose run dies: at every single operation on a file, and then goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.archive.directory import (
    ArchiveDirectory,
    data_paths,
    load,
    load_existing,
    opened,
)
from penstock.spark.pipelines.archive.state import DataFile, State, state_name, to_json
from penstock.spark.pipelines.files import DirectoryBusy, LocalFiles
from penstock.spark.pipelines.spans import Span

ENOUGH = 200


class PowerCut(BaseException):
    """What a killed process does next: nothing, no ``except`` and no ``finally`` of ours."""


class FailingFiles(LocalFiles):
    """A directory whose user dies before the n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self._left = changes

    def _change(self) -> None:
        if self._left <= 0:
            raise PowerCut
        self._left -= 1

    def create(self, path: str, data: bytes) -> None:
        self._change()
        super().create(path, data)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)


class InterruptedFiles(LocalFiles):
    """A directory whose user presses Ctrl-C when the second file is moved."""

    moved = 0

    def move(self, source: str, target: str) -> None:
        self.moved += 1
        if self.moved == 2:
            raise KeyboardInterrupt
        super().move(source, target)


def stage(archive: ArchiveDirectory, root: Path, texts: list[str]) -> list[str]:
    """Files written aside, as Spark does it."""
    staging = archive.new_staging()
    paths = []
    for number, text in enumerate(texts):
        path = root / staging / f"part-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        paths.append(f"{staging}/{path.name}")
    return paths


def add(archive: ArchiveDirectory, root: Path) -> None:
    """The next three messages of the queue, one a file."""
    start = archive.state.next_offsets.get(("a", 0), 0)
    version = archive.state.version + 1
    texts = [str(start + number) for number in range(3)]
    moves = [
        (path, f"day=2026-11-16/part-{version}-{number}.parquet")
        for number, path in enumerate(stage(archive, root, texts))
    ]
    new = [DataFile(target, "2026-11-16", 1, 1, 0, 0) for _, target in moves]
    archive.commit(archive.state.after_chunk([Span("a", 0, start, start + 3)], new, moves))


def compact(archive: ArchiveDirectory, root: Path) -> None:
    """All messages into one file."""
    texts = [(root / file.path).read_text() for file in archive.state.files]
    (path,) = stage(archive, root, [" ".join(texts)])
    target = f"day=2026-11-16/part-{archive.state.version + 1}-0.parquet"
    new = [DataFile(target, "2026-11-16", sum(f.rows for f in archive.state.files), 1, 0, 0)]
    archive.commit(archive.state.after_compaction(archive.state.files, new, [(path, target)]))


def visible(root: Path) -> list[int]:
    """What any reader of the directory finds."""
    found = " ".join(path.read_text() for path in root.glob("day=*/*.parquet"))
    return sorted(map(int, found.split()))


def committed(files: LocalFiles, root: Path) -> list[int]:
    """What a reader finds that follows the state."""
    state = load(files)
    if state is None:
        return []
    found = " ".join((root / path).read_text() for path in data_paths(files, state).values())
    return sorted(map(int, found.split()))


def run(files: LocalFiles, root: Path) -> None:
    """Two chunks and a compaction."""
    with opened(files, "orders") as archive:
        add(archive, root)
        add(archive, root)
        compact(archive, root)


def test_a_run_that_dies_at_any_change_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    for changes in range(ENOUGH):
        root = tmp_path / str(changes)
        try:
            run(FailingFiles(root, changes), root)
        except PowerCut:
            died = True
        else:
            died = False
        files = LocalFiles(root)
        before = committed(files, root)
        assert before == list(range(len(before))), f"after {changes} changes"
        # No reader ever sees a message twice, and after the next run all see the same.
        assert len(visible(root)) == len(set(visible(root)))
        with opened(files, "orders") as archive:
            assert visible(root) == before
            reached = archive.state.next_offsets.get(("a", 0), 0)
            assert reached == len(before)
            add(archive, root)
        assert visible(root) == committed(files, root) == list(range(len(before) + 3))
        if not died:
            assert changes > 10
            return
    pytest.fail("the run never came to its end")


def test_what_a_dead_run_left_aside_is_removed(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with opened(files, "orders") as archive:
        stage(archive, tmp_path, ["7", "8"])
    assert files.names("_penstock/staging") == []


def test_a_run_that_is_interrupted_amid_its_moves_keeps_what_was_not_moved_yet(
    tmp_path: Path,
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        opened(InterruptedFiles(tmp_path), "orders") as archive,
    ):
        add(archive, tmp_path)
    files = LocalFiles(tmp_path)
    assert committed(files, tmp_path) == [0, 1, 2]
    with opened(files, "orders"):
        assert visible(tmp_path) == [0, 1, 2]
    assert files.names("_penstock/staging") == []


def test_nothing_is_deleted_while_what_takes_its_place_is_missing(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with opened(files, "orders") as archive:
        add(archive, tmp_path)
    state = load_existing(files)
    (path,) = stage(ArchiveDirectory(files, state), tmp_path, ["0 1 2"])
    target = "day=2026-11-16/part-2-0.parquet"
    new = [DataFile(target, "2026-11-16", 3, 1, 0, 0)]
    after = state.after_compaction(state.files, new, [(path, target)])
    files.create(state_name(after.version), to_json(after))
    files.delete(path)
    with pytest.raises(StoreDamaged, match=target), opened(files, "orders"):
        pytest.fail("it was let in")
    assert visible(tmp_path) == [0, 1, 2]


def test_only_one_run_at_a_time_works_on_an_archive(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with (
        opened(files, "orders"),
        pytest.raises(DirectoryBusy, match=r"another run works in .* try: wait"),
        opened(LocalFiles(tmp_path), "orders"),
    ):
        pytest.fail("two runs were let in")


def test_where_nothing_can_be_locked_the_second_commit_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    one, other = ArchiveDirectory(files, State("orders")), ArchiveDirectory(files, State("orders"))
    add(one, tmp_path)
    with pytest.raises(DirectoryBusy, match=r"another run committed .* run it again"):
        add(other, tmp_path)
    assert visible(tmp_path) == [0, 1, 2]


def test_an_archive_keeps_to_its_topic(tmp_path: Path) -> None:
    with opened(LocalFiles(tmp_path), "orders") as archive:
        add(archive, tmp_path)
    with (
        pytest.raises(InvalidArgument, match="holds topic 'orders', not 'payments'"),
        opened(LocalFiles(tmp_path), "payments"),
    ):
        pytest.fail("another topic was let in")


def test_a_directory_of_another_program_is_not_taken_for_an_archive(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with (
        pytest.raises(InvalidArgument, match=r"not an archive, but holds 'thesis\.txt'"),
        opened(LocalFiles(tmp_path), "orders"),
    ):
        pytest.fail("it was let in")
    assert (tmp_path / "thesis.txt").exists()


def test_a_missing_file_is_reported_and_not_archived_over(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with opened(files, "orders") as archive:
        add(archive, tmp_path)
        gone = archive.state.files[1].path
    files.delete(gone)
    with pytest.raises(StoreDamaged, match=gone), opened(files, "orders"):
        pytest.fail("it was let in")


def test_a_damaged_state_stops_everything(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    with opened(files, "orders") as archive:
        add(archive, tmp_path)
    (tmp_path / state_name(1)).write_text("{")
    with pytest.raises(StoreDamaged, match="cannot be read"), opened(files, "orders"):
        pytest.fail("it was let in")


def test_no_archive_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no archive in .* penstock spark archive"):
        load_existing(LocalFiles(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
