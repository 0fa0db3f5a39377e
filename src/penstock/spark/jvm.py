"""Spark's JVM, for what PySpark has no public name for.

This is the only module that uses private names of PySpark (all begin with one underscore), so a
new release of Spark can break this module and nothing else. What needs it:

- the formats of writes are looked up in the JVM's active session of the calling thread;
- a streaming DataFrame shows what it was read from only in the JVM's plan;
- Hadoop's file systems, with the session's credentials, are reachable only in the JVM;
- whether a JVM is being started, or runs, is known only to `SparkContext`'s class attributes, and
  whether a session was stopped to those of its context.

A session of Spark Connect has no JVM in reach; each function says what it does then.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

JVM_ERRORS: Final = (PySparkException, Py4JError, OSError)
"""What a call to a JVM raises that refuses it, or is gone."""


def jvm_of(spark: SparkSession) -> Any:
    """The session's JVM, whose packages are attributes; None over Spark Connect."""
    return getattr(spark, "_jvm", None)


def java_array(spark: SparkSession, kind: Any, items: list[Any]) -> Any:
    """A Java array of ``kind``."""
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(kind, len(items))
    for place, item in enumerate(items):
        array[place] = item
    return array


def hadoop_configuration(spark: SparkSession) -> Any:
    """The Hadoop configuration of a session that has a JVM."""
    return spark._jsc.hadoopConfiguration()


def activate(spark: SparkSession) -> None:
    """Let this thread write to registered formats; nothing to do over Spark Connect.

    A read looks them up in its own session, a write in the session of the calling thread, and only
    the thread that made the session has one.
    """
    jvm = jvm_of(spark)
    if jvm is not None:
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def analyzed_plan(frame: DataFrame) -> Any:
    """The analysed plan of a DataFrame; None over Spark Connect."""
    java = getattr(frame, "_jdf", None)
    return None if java is None else java.queryExecution().analyzed()


def running_context() -> SparkContext | None:
    """The Spark context of this process."""
    return SparkContext._active_spark_context


def is_connected() -> bool:
    """Whether this process has a connection to a JVM."""
    return SparkContext._gateway is not None


def has_ended(spark: SparkSession) -> bool:
    """Whether a session was stopped; unknown over Spark Connect, then False."""
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None
