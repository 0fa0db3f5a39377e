"""Registering the format with a Spark session."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from penstock.spark.jvm import jvm_of
from penstock.spark.source.data_source import PenstockSource
from penstock.spark.source.group_progress import ProgressListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOISY_LOGGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Register ``format("penstock")`` with a session, and commit its streams' progress to groups.

    Spark finds the format of an installed package by itself; this adds a commit after every
    finished batch, and tasks for all cores of a local session. Calling it again changes nothing.
    """
    if spark in _registered:
        return
    _expect_replacement(spark)
    spark.dataSource.register(_for_session(local_cores(spark)))
    spark.streams.addListener(ProgressListener())
    _registered.add(spark)


def _expect_replacement(spark: SparkSession) -> None:
    """Silence Spark's warning that a format it found by itself is replaced: here that is meant."""
    jvm = jvm_of(spark)
    if jvm is not None:
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_NOISY_LOGGER, log4j.Level.ERROR)


def local_cores(spark: SparkSession) -> int | None:
    """The number of tasks a local session runs at once; None on a cluster, where it may change."""
    if not (spark.conf.get("spark.master", "") or "").startswith("local"):
        return None
    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    return None if context is None else int(context.defaultParallelism)


def _for_session(cores: int | None) -> type[PenstockSource]:
    """The source with what is known of this session.

    Spark sends a class that is in no module by value, so its attributes reach the workers; its base
    class is sent by name, and keeps its connections there.
    """
    return type(PenstockSource.__name__, (PenstockSource,), {"cores": cores, "has_listener": True})
