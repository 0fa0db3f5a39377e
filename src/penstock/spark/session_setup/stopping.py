"""Ends the streams of a program that exits without stopping them.

Otherwise their workers are ended under them, and each running query prints the failure as a stack
trace, although nothing failed.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.jvm import has_ended

_STOP_TIMEOUT: Final = "10s"
"""A program does not hang for a query that cannot be interrupted."""


def stop_streams_at_exit(spark: SparkSession) -> None:
    """Stop the running queries of a session when the program exits."""
    session = weakref.ref(spark)

    def stop() -> None:
        running = session()
        if running is not None:
            stop_streams(running)

    atexit.register(stop)


def stop_streams(spark: SparkSession) -> None:
    """Stop the running queries of a session, unless it was stopped."""
    if has_ended(spark):
        return
    # The JVM may be gone as well, by the same Ctrl-C.
    with contextlib.suppress(PySparkException, OSError):
        active = spark.streams.active
        if active:
            spark.conf.set("spark.sql.streaming.stopTimeout", _STOP_TIMEOUT)
        for query in active:
            with contextlib.suppress(PySparkException):
                query.stop()
