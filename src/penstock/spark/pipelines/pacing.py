"""Limits the rate of a job.

Rows pass through a task in small portions, each when it is due. Few tasks share the rate, so that
their sum is right for any number of executors, and each keeps the order of its rows.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RATE_OF_ONE_TASK = 50_000.0
"""Messages a second that one task can always send."""
PORTIONS_A_SECOND = 10
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def check_rate(rate: float | None) -> None:
    """Refuse a rate that is not a positive number."""
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise InvalidArgument(f"rate {rate}", expected="more than 0 messages a second, or None")


class Pace:
    """Waits until the next rows are due; up to one second of lost time is made up."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due: float | None = None

    def wait(self, count: int) -> None:
        """Return when ``count`` more rows may pass."""
        now = self._clock()
        due = now if self._due is None else max(self._due, now - 1.0)
        self._due = due + count / self._rate
        if due > now:
            self._sleep(due - now)


def portion(rate: float) -> int:
    """The number of rows that pass at once."""
    return max(1, min(10_000, int(rate / PORTIONS_A_SECOND)))


class Paced:
    """For ``mapInArrow``: passes batches on in portions, at a rate."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pace = Pace(self._rate)
        size = portion(self._rate)
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                part = batch.slice(start, size)
                pace.wait(part.num_rows)
                yield part


def paced(rows: DataFrame, rate: float | None) -> DataFrame:
    """The same rows, no faster than ``rate`` a second."""
    if rate is None:
        return rows
    tasks = math.ceil(rate / RATE_OF_ONE_TASK)
    return rows.coalesce(tasks).mapInArrow(Paced(rate / tasks), rows.schema)


@contextlib.contextmanager
def small_batches(spark: SparkSession, rate: float | None) -> Iterator[None]:
    """Make Spark pass rows to a sink in portions of a rate, not in thousands."""
    if rate is None:
        yield
        return
    before = str(spark.conf.get(_ARROW_ROWS))
    spark.conf.set(_ARROW_ROWS, str(portion(rate)))
    try:
        yield
    finally:
        spark.conf.set(_ARROW_ROWS, before)
