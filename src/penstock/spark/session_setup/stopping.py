"""Ends the session of a program that exits without stopping it.

Otherwise Python is gone before Spark. The JVM then finds the workers of its queries, its listeners
and its accumulators ended, and prints a stack trace for each, although nothing failed.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.jvm import JVM_ERRORS, has_ended

_STOP_TIMEOUT: Final = "10s"
"""A program does not hang for a query that cannot be interrupted."""


def stop_at_exit(spark: SparkSession) -> None:
    """Stop the queries of a session, and the session, when the program exits."""
    session = weakref.ref(spark)

    def stop() -> None:
        running = session()
        if running is not None:
            stop_session(running)

    atexit.register(stop)


def stop_session(spark: SparkSession) -> None:
    """Stop the running queries of a session, and the session, unless it was stopped before."""
    if has_ended(spark):
        return
    # The JVM may be gone as well, by the same Ctrl-C.
    with contextlib.suppress(*JVM_ERRORS):
        active = spark.streams.active
        if active:
            spark.conf.set("spark.sql.streaming.stopTimeout", _STOP_TIMEOUT)
        for query in active:
            with contextlib.suppress(PySparkException):
                query.stop()
        spark.stop()
