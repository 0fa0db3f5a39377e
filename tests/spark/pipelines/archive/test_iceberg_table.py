"""An archive as a table of Iceberg in a catalog of SQLite; without Spark."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.source.archives import archive_rows, compact, rows_of

from penstock.errors import InvalidArgument, MissingPackage
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.archive.directory import opened
from penstock.spark.pipelines.archive.iceberg_table import create_iceberg
from penstock.spark.pipelines.files import LocalFiles, open_files

from ..conftest import Shop

_HOME = tempfile.TemporaryDirectory(prefix="penstock-iceberg-")
_CATALOG = "PYICEBERG_CATALOG__PENSTOCKTESTS__"
# pyiceberg reads its environment once, when it is imported.
os.environ[f"{_CATALOG}TYPE"] = "sql"
os.environ[f"{_CATALOG}URI"] = f"sqlite:///{_HOME.name}/catalog.db"
os.environ[f"{_CATALOG}WAREHOUSE"] = f"file://{_HOME.name}/warehouse"


def make_iceberg(directory: Path, name: str) -> None:
    with opened(open_files(directory), "orders") as target:
        target.make_tables(iceberg=f"penstocktests.{name}")


def read(name: str) -> tuple[list[int], int]:
    """The offsets of a table, and its number of files."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("penstocktests").load_table(name)
    rows: pa.Table = table.scan().to_arrow()
    assert rows["store_timestamp"].type == pa.timestamp("us", "UTC")
    return sorted(rows["offset"].to_pylist()), len(list(table.scan().plan_files()))


def test_the_table_has_the_rows_of_the_archive(tmp_path: Path) -> None:
    first, second = rows_of(range(5)), rows_of(range(5, 8))
    archive_rows(tmp_path, [first])
    make_iceberg(tmp_path, "shop.orders")
    assert read("shop.orders") == (list(range(5)), 1)
    make_iceberg(tmp_path, "shop.orders")  # again: nothing happens
    archive_rows(tmp_path, [second])
    assert read("shop.orders") == (list(range(8)), 2)
    compact(tmp_path, pa.concat_tables([first, second]))
    assert read("shop.orders") == (list(range(8)), 1)


def test_files_that_spark_writes_fit_the_table(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(6)
    name = "penstocktests.spark.orders"
    archive(spark, "orders", tmp_path, namesrv=shop.mq.namesrv, iceberg=name)
    offsets, files = read("spark.orders")
    assert len(offsets) == 6
    assert files == len(list(tmp_path.glob("day=*/*.parquet")))


def test_a_killed_run_is_caught_up_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_rows(tmp_path, [rows_of(range(3))])
    make_iceberg(tmp_path, "killed.orders")

    class NoMark(LocalFiles):
        def exists(self, path: str) -> bool:
            return not path.endswith("iceberg.json") and super().exists(path)

    with opened(NoMark(tmp_path), "orders") as target:
        target.commit(target.state.after_compaction(target.state.files, [], []))
    assert not list(tmp_path.glob("day=*/*.parquet"))
    with opened(open_files(tmp_path), "orders"):
        pass
    assert read("killed.orders") == ([], 0)


def test_what_is_no_table_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_rows(tmp_path / "a", [rows_of(range(3))])
    archive_rows(tmp_path / "b", [rows_of(range(3))])
    make_iceberg(tmp_path / "a", "mine.orders")
    with pytest.raises(InvalidArgument, match="is there already"):
        make_iceberg(tmp_path / "b", "mine.orders")
    with pytest.raises(InvalidArgument, match=r"is the Iceberg table 'penstocktests.mine.orders'"):
        make_iceberg(tmp_path / "a", "mine.others")
    with pytest.raises(InvalidArgument, match=r"expected CATALOG\.NAMESPACE\.TABLE"):
        create_iceberg(open_files(tmp_path / "b"), "orders")
    with pytest.raises(InvalidArgument, match="catalog 'nowhere' cannot be loaded"):
        create_iceberg(open_files(tmp_path / "b"), "nowhere.shop.orders")
    from pyiceberg.catalog import load_catalog

    load_catalog("penstocktests").drop_table("mine.orders")
    with pytest.raises(InvalidArgument, match="which is not in its catalog"):
        archive_rows(tmp_path / "a", [rows_of(range(3, 5))])
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(MissingPackage, match=r"penstock\[iceberg\]"):
        create_iceberg(open_files(tmp_path / "b"), "penstocktests.shop.orders")
