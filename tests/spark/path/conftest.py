"""Stores to read: Apache's own with what is in them, and a way to read without Spark around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.columns import ALL
from penstock.spark.options import parse_read
from penstock.spark.path import path_partitions, read_path

Row = dict[str, Any]


def scan(
    path: Path, columns: tuple[str, ...] = ALL, *, cores: int | None = None, **options: str
) -> list[Row]:
    """What the path source reads, with the same planning and reading as inside of Spark."""
    parsed = parse_read({"path": str(path), **options})
    rows = [
        row
        for task in path_partitions(parsed, cores)
        for batch in read_path(task, parsed, columns)
        for row in batch.to_pylist()
    ]
    for row in rows:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows


@pytest.fixture
def read() -> Callable[..., list[Row]]:
    return scan
