"""What the Spark tests share: one session, since starting Spark takes longer than most tests."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.spark.session_setup.tuned_session import session
from penstock.testing.embedded import Embedded, embedded

_HERE = Path(__file__).parent
VECTORS = _HERE.parent / "vectors"
# Python before 3.11.4 knows no filters, and later ones warn where none is named.
SAFE_EXTRACTION: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compiling less well, on one thread, pays for tests: they end before better code would."""

# Spark's loggers rewrite the format of every handler they are given. pytest hands its own to those
# that do not propagate, so one error of a query would turn the logs of all later tests to JSON.
del PySparkLogger.addHandler


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The tuned local session on two cores; a task that fails is tried once more."""
    options = {"spark.driver.extraJavaOptions": QUICK_JAVA}
    started = session("penstock-tests", master="local[2,2]", config=options)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for Sparks that start in processes of their own."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)


@pytest.fixture
def mq() -> Iterator[Embedded]:
    """A name server and a broker of the test's own, on real sockets that executors can reach."""
    with embedded() as running:
        yield running


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], tuple[Path, list[dict[str, Any]]]]:
    """Unpack a store that Apache RocketMQ wrote: its root, and its messages by the manifest."""

    def unpack(version: str) -> tuple[Path, list[dict[str, Any]]]:
        with tarfile.open(VECTORS / f"store-{version}.tar.gz") as archive:
            # The timer wheel is 38 MB and not needed.
            members = [member for member in archive if not member.name.endswith("timerwheel")]
            archive.extractall(tmp_path / version, members, **SAFE_EXTRACTION)
        with gzip.open(VECTORS / f"store-{version}.manifest.jsonl.gz", "rt") as lines:
            rows = [json.loads(line) for line in lines]
        return tmp_path / version / "store", [row for row in rows if row["kind"] == "message"]

    return unpack
