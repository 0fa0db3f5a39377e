"""Stores to read: Apache's own with what is in them, and a way to read without Spark around it."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.columns import ALL
from penstock.spark.options import parse_read
from penstock.spark.path import path_partitions, read_path

VECTORS = Path(__file__).parents[2] / "vectors"
# Python before 3.11.4 knows no filters, and later ones warn where none is named.
SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
Row = dict[str, Any]


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], tuple[Path, list[Row]]]:
    """Unpack a store that Apache RocketMQ wrote: its root, and its messages by the manifest."""

    def unpack(version: str) -> tuple[Path, list[Row]]:
        with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
            # The timer wheel is 38 MB that nobody reads.
            members = [member for member in archive if not member.name.endswith("timerwheel")]
            archive.extractall(tmp_path / version, members, **SAFE_EXTRACTION)
        with gzip.open(VECTORS / f"store-{version}.manifest.jsonl.gz", "rt") as lines:
            rows = [json.loads(line) for line in lines]
        return tmp_path / version / "store", [row for row in rows if row["kind"] == "message"]

    return unpack


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
