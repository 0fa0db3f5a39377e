"""What the Spark tests share: one session, since starting Spark takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.tuned_session import session
from penstock.testing.embedded import Embedded, embedded

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all of them in one process, which then has the one session."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The tuned local session on two cores."""
    # Compiling less well pays for tests: they end before the better code would.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    started = session("penstock-tests", master="local[2,4]", config=options)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture
def mq() -> Iterator[Embedded]:
    """A name server and a broker of the test's own, on real sockets that executors can reach."""
    with embedded() as running:
        yield running
