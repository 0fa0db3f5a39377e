"""How Spark comes to know the format."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from tests.spark.source.brokers import create, numbered, produce

import penstock.spark
import pyspark_penstock
from penstock.spark import register
from penstock.spark.jvm import jvm_of
from penstock.spark.session_setup.registration import _for_session, _registered
from penstock.spark.source.data_source import PenstockSource
from penstock.testing.embedded import Embedded


def test_an_installed_package_is_found_without_registering(
    spark: SparkSession, mq: Embedded
) -> None:
    create(mq.namesrv, "orders", 3)
    produce(mq.namesrv, numbered("orders", range(30)))
    # A session of its own has no formats but those Spark finds by itself.
    fresh = spark.newSession()
    df = fresh.read.format("penstock").options(namesrv=mq.namesrv, topic="orders").load()
    assert df.rdd.getNumPartitions() == 3, "the number of cores is not known"
    assert df.count() == 30
    register(fresh)
    df = fresh.read.format("penstock").options(namesrv=mq.namesrv, topic="orders").load()
    assert df.rdd.getNumPartitions() == 1, "so few messages are one task"
    assert df.count() == 30


def test_registering_twice_changes_nothing(spark: SparkSession) -> None:
    register(spark)
    before = len(_registered)
    register(spark)
    assert len(_registered) == before


def test_spark_does_not_warn_of_what_registering_is_for(spark: SparkSession) -> None:
    register(spark)
    name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    logger = jvm_of(spark).org.apache.logging.log4j.LogManager.getLogger(name)
    assert not logger.isWarnEnabled()
    assert logger.isErrorEnabled()


def test_what_a_session_knows_travels_with_the_class() -> None:
    pickled = cloudpickle.dumps(_for_session(6))  # type: ignore[no-untyped-call]
    copy = cloudpickle.loads(pickled)
    assert copy.cores == 6
    assert copy.name() == "penstock"
    assert issubclass(copy, PenstockSource), "what it inherits is this process's own"


def test_the_package_that_spark_looks_at_is_light_and_harmless() -> None:
    assert pyspark_penstock.DefaultSource is PenstockSource
    with pytest.raises(AttributeError, match="no attribute 'OtherSource'"):
        _ = pyspark_penstock.OtherSource
    code = (
        "import sys, pyspark_penstock\n"
        "assert not any(name.startswith(('penstock', 'pyarrow')) for name in sys.modules)\n"
        # Spark asks every such module for its source; one that fails would hide the others.
        "sys.modules['pyarrow'] = None\n"
        "assert not hasattr(pyspark_penstock, 'DefaultSource')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_neither_the_client_nor_the_package_load_spark() -> None:
    code = (
        "import sys, penstock, penstock.spark\n"
        "assert 'register' in dir(penstock.spark)\n"
        "assert not {'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = penstock.spark.nonsense
