"""Telling a Spark session of the format."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from penstock.spark.source.data_source import PenstockSource
from penstock.spark.source.group_progress import ProgressListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOISY_LOGGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Make ``format("penstock")`` known to a session, and mirror its streams to their groups.

    Installed packages are found by Spark itself; what this adds is the mirror of every finished
    batch, and tasks for all cores of a local session. Calling it again changes nothing.
    """
    if spark in _registered:
        return
    _expect_replacement(spark)
    spark.dataSource.register(_for_session(local_cores(spark)))
    spark.streams.addListener(ProgressListener())
    _registered.add(spark)


def activate(spark: SparkSession) -> None:
    """Let this thread write to formats that were registered.

    A read asks its own session for them, a write asks the session of the thread it is made in, and
    only the thread that made the session has one.
    """
    jvm = getattr(spark, "_jvm", None)  # a session on Spark Connect has none
    if jvm is not None:
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _expect_replacement(spark: SparkSession) -> None:
    """Spark warns that a format it found by itself is replaced, which is what we are here for."""
    jvm = getattr(spark, "_jvm", None)  # a session on Spark Connect has none
    if jvm is not None:
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_NOISY_LOGGER, log4j.Level.ERROR)


def local_cores(spark: SparkSession) -> int | None:
    """How many tasks a local session runs at once; None on a cluster, where that may change."""
    if not (spark.conf.get("spark.master", "") or "").startswith("local"):
        return None
    context = getattr(spark, "_sc", None)  # a session on Spark Connect has none
    return None if context is None else int(context.defaultParallelism)


def _for_session(cores: int | None) -> type[PenstockSource]:
    """The source with what this session knows.

    Spark sends a class that no module has by value, so what stands in it reaches the workers; what
    it inherits is sent by name, and keeps its connections there.
    """
    return type(PenstockSource.__name__, (PenstockSource,), {"cores": cores})
