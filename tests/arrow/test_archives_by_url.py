"""Archives in a storage: a server that speaks S3, read through Arrow's own file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.source.archives import archive_rows, compact, rows_of
from tests.support.s3_server import serving_s3

import penstock.arrow
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.readable_files import open_readable
from penstock.spark.source.archive_index import ArchiveIndex


def offsets(source: str, **arguments: object) -> list[int]:
    rows = penstock.arrow.read(source, columns=["offset"], **arguments)  # type: ignore[arg-type]
    found: list[int] = rows.read_all()["offset"].to_pylist()
    return found


def test_an_archive_in_a_storage_is_read_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [rows_of(range(5)), rows_of(range(5, 9))]
    archive = archive_rows(tmp_path / "bucket" / "orders", parts)
    with serving_s3(tmp_path, monkeypatch) as storage:
        assert offsets("s3://bucket/orders") == list(range(9))
        # The name that Hadoop has for the same.
        assert offsets("s3a://bucket/orders/") == list(range(9))
        storage.read.clear()
        assert offsets("s3://bucket/orders", start="2026-11-16T00:00:06+00:00") == [6, 7, 8]
        assert {Path(key).name for key in storage.read if key.endswith(".parquet")} == {
            "part-1.parquet"
        }
        index = ArchiveIndex(storage.url("bucket/orders"))
        compact(archive, rows_of(range(9)))
        assert index.reload()
        assert not index.reload()
        assert index.columns(index.files[0].path, ["offset"]).num_rows == 9


def test_what_is_wrong_in_a_storage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_rows(tmp_path / "bucket" / "orders", [rows_of(range(5))])
    with serving_s3(tmp_path, monkeypatch):
        with pytest.raises(NotFound, match="there is no archive in s3://bucket/none"):
            offsets("s3://bucket/none")
        files = open_readable("s3://bucket/orders")
        with pytest.raises(FileNotFoundError):
            files.parquet("day=2026-11-16/gone.parquet")
        (archive / "day=2026-11-16" / "part-0.parquet").write_bytes(b"no Parquet at all, really")
        with pytest.raises(
            StoreDamaged, match=r"s3://bucket/orders/day=2026-11-16/part-0\.parquet"
        ):
            offsets("s3://bucket/orders")
    with pytest.raises(InvalidArgument, match=r"'ftp://host/orders' cannot be opened.*s3://"):
        offsets("ftp://host/orders")
