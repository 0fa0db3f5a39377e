"""An archive as a table of Delta Lake, read by another implementation of Delta; without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.spark.source.archives import archive_rows, compact, rows_of

from penstock.errors import StoreDamaged
from penstock.spark.pipelines.archive.delta_log import DELTA_LOG, update_delta
from penstock.spark.pipelines.archive.directory import load_existing, opened
from penstock.spark.pipelines.files import DirectoryBusy, LocalFiles, open_files


def make_delta(directory: Path) -> None:
    with opened(open_files(directory), "orders") as archive:
        archive.make_tables(delta=True)


def offsets(directory: Path, version: int | None = None) -> list[int]:
    table = DeltaTable(directory, version=version)
    found: list[int] = table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)


def test_the_table_has_the_rows_of_the_archive_at_every_version(tmp_path: Path) -> None:
    first, second = rows_of(range(5)), rows_of(range(5, 8))
    archive_rows(tmp_path, [first])
    make_delta(tmp_path)
    assert offsets(tmp_path) == list(range(5))
    make_delta(tmp_path)  # again: nothing happens
    assert DeltaTable(tmp_path).version() == 1
    archive_rows(tmp_path, [second])
    assert offsets(tmp_path) == list(range(8))
    assert offsets(tmp_path, version=0) == []
    compact(tmp_path, pa.concat_tables([first, second]))
    table = DeltaTable(tmp_path)
    assert offsets(tmp_path) == list(range(8))
    assert len(table.file_uris()) == 1
    assert [entry["operation"] for entry in table.history()] == [
        "OPTIMIZE",
        "WRITE",
        "WRITE",
        "CREATE TABLE",
    ]


def test_days_and_times_choose_files(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(3)), rows_of(range(3, 6))])
    make_delta(tmp_path)
    table = DeltaTable(tmp_path)
    assert len(table.file_uris(file_pruning_predicate=[("day", "=", "2026-11-16")])) == 2
    assert table.file_uris(file_pruning_predicate=[("day", "=", "2026-11-17")]) == []
    statistics = table.get_add_actions(flatten=True)
    found = pa.table(statistics).to_pylist()
    assert sorted(row["num_records"] for row in found) == [3, 3]
    times = table.to_pyarrow_table(columns=["store_timestamp"])["store_timestamp"].to_pylist()
    assert min(row["min.store_timestamp"] for row in found) <= min(times)
    assert max(row["max.store_timestamp"] for row in found) >= max(times)


class NoLog(LocalFiles):
    """A directory whose user dies before it writes to the log of Delta."""

    def create(self, path: str, data: bytes) -> None:
        if path.startswith(DELTA_LOG):
            raise KeyboardInterrupt
        super().create(path, data)


def test_a_killed_run_is_caught_up_by_the_next(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(3))])
    make_delta(tmp_path)
    with pytest.raises(KeyboardInterrupt), opened(NoLog(tmp_path), "orders") as archive:
        archive.commit(archive.state.after_chunk((), (), ()))
    assert DeltaTable(tmp_path).version() == 1
    with opened(open_files(tmp_path), "orders"):
        pass
    assert DeltaTable(tmp_path).version() == 2
    assert offsets(tmp_path) == list(range(3))


def test_a_log_that_another_program_changed_is_refused(tmp_path: Path) -> None:
    archive_rows(tmp_path, [rows_of(range(3))])
    make_delta(tmp_path)

    class Late(LocalFiles):
        def names(self, path: str) -> list[str]:
            return super().names(path)[:1]  # as it was before the other program wrote

    state = load_existing(open_files(tmp_path))
    with pytest.raises(DirectoryBusy, match="another program wrote version 1"):
        update_delta(Late(tmp_path), state)
    (tmp_path / DELTA_LOG / f"{0:020d}.json").unlink()
    with pytest.raises(StoreDamaged, match="not all from 0"):
        update_delta(open_files(tmp_path), state)
