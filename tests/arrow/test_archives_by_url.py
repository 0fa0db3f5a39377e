"""Archives in a storage: a server that speaks S3, read through Arrow's own file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.source.archives import archive_rows, compact, rows_of
from tests.support.s3_server import serving_s3

import penstock.arrow
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.model import MessageQueue
from penstock.spark.pipelines.files import shown_url
from penstock.spark.pipelines.readable_files import open_readable
from penstock.spark.source.archive_index import ArchiveIndex
from penstock.spark.source.options import parse_read
from penstock.spark.source.ranges import Range
from penstock.spark.source.seam_driver import SeamTask


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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://AKIA:se%2Fcret@bucket/orders", "s3://***@bucket/orders"),
        ("s3a://AKIA:sec/ret@bucket/orders", "s3a://***@bucket/orders"),
        (
            "abfs://:secret@account.dfs.core.windows.net/a",
            "abfs://***@account.dfs.core.windows.net/a",
        ),
        ("abfs://container@account.dfs.core.windows.net/a", None),
        ("hdfs://namenode:8020/data/day@noon:1", None),
        ("/data/a:b@c", None),
        ("a.b: cannot parse 's3://k:s@bucket'", "a.b: cannot parse 's3://***@bucket'"),
    ],
)
def test_credentials_of_a_url_are_not_shown(url: str, shown: str | None) -> None:
    assert shown_url(url) == (url if shown is None else shown)


def test_an_error_and_a_repr_show_no_credentials() -> None:
    url = "ftp://user:secret@host/orders"
    with pytest.raises(InvalidArgument) as caught:
        offsets(url)
    assert "secret" not in str(caught.value)
    assert "host/orders" in str(caught.value)
    options = parse_read({"namesrv": "a:1", "topic": "orders", "archive": "s3://k:secret@b/o"})
    assert "secret" not in repr(options)
    task = SeamTask("s3://k:secret@b/o", [(Range(MessageQueue("orders", "a", 0), 0, 5),)])
    assert "secret" not in repr(task)


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
