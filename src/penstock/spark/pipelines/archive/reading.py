"""Reads the rows of an archive, all or some files of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.spark.pipelines.archive.directory import data_paths, load_existing
from penstock.spark.pipelines.archive.gaps import check_gaps
from penstock.spark.pipelines.archive.state import DataFile, State
from penstock.spark.pipelines.files import Files, open_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DAY_MICROS = 86_400_000_000


def read_archive(
    spark: SparkSession,
    directory: str | os.PathLike[str],
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The rows of an archive, exactly those of its last commit.

    Unlike a plain read of the directory this is right at any time, even if a run was killed while
    it moved files. A run that compacts a day replaces its files: a frame made before fails then,
    and must be made again. With ``start_ms`` and ``end_ms`` (store time, exclusive) other files are
    not opened. Messages of that time that were gone before they could be archived are an error;
    with ``fail_on_data_loss=False`` they are left out with a warning.
    """
    from pyspark.sql import functions as F

    files = open_files(directory, spark)
    state = load_existing(files)
    check_gaps(state, str(files), start_ms, end_ms, fail_on_data_loss=fail_on_data_loss)
    rows = read_files(spark, files, state, overlapping(state.files, start_ms, end_ms))
    if start_ms is not None:
        rows = rows.where(F.unix_millis("store_timestamp") >= start_ms)
    if end_ms is not None:
        rows = rows.where(F.unix_millis("store_timestamp") < end_ms)
    return rows


def overlapping(
    files: Iterable[DataFile], start_ms: int | None, end_ms: int | None
) -> list[DataFile]:
    """The files that may hold rows of a time range, oldest first."""
    chosen = [
        file
        for file in files
        if (start_ms is None or file.to_ms >= start_ms)
        and (end_ms is None or file.from_ms < end_ms)
    ]
    return sorted(chosen, key=lambda file: (file.from_ms, file.path))


def read_files(
    spark: SparkSession, files: Files, state: State, chosen: Sequence[DataFile]
) -> DataFrame:
    """The rows of some files of an archive, from their current paths."""
    from penstock.spark.source.columns import spark_schema

    if not chosen:
        return spark.createDataFrame([], spark_schema())
    places = data_paths(files, state)
    return spark.read.schema(spark_schema()).parquet(
        *(f"{files.root}/{places[file.path]}" for file in chosen)
    )


def store_day() -> Column:
    """The day of store time in UTC, for any time zone of the session."""
    from pyspark.sql import functions as F

    days = F.floor(F.unix_micros("store_timestamp") / _DAY_MICROS)
    return F.date_from_unix_date(days.cast("int"))
