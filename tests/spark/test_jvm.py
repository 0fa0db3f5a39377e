"""The private names of PySpark that we use, all in one module, and what they are used for."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.jvm import (
    activate,
    analyzed_plan,
    hadoop_configuration,
    has_ended,
    is_connected,
    java_array,
    jvm_of,
    running_context,
)

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
PRIVATE = re.compile(r"(?<![\w.])(?!self|cls)\w+\._[a-z]\w*|[\"']_(?:j\w+|sc)[\"']")


def test_private_names_of_pyspark_are_in_one_module() -> None:
    found = {
        path.name
        for package in ("spark", "columnar", "cli")
        for path in (PACKAGE / package).rglob("*.py")
        for name in PRIVATE.findall(path.read_text(encoding="utf-8"))
        if not name.endswith(("._replace", "._asdict"))
    }
    assert found == {"jvm.py"}


@pytest.mark.timeout(120)
def test_the_jvm_answers(spark: SparkSession) -> None:
    assert is_connected()
    assert not has_ended(spark)
    assert running_context() is spark.sparkContext
    assert jvm_of(spark).java.lang.Math.abs(-7) == 7
    assert list(java_array(spark, jvm_of(spark).java.lang.String, ["a", "b"])) == ["a", "b"]
    assert hadoop_configuration(spark).get("fs.defaultFS")
    assert "Range" in analyzed_plan(spark.range(3)).toString()


@pytest.mark.timeout(120)
def test_a_thread_gets_the_session_it_is_given(spark: SparkSession) -> None:
    found: list[bool] = []

    def look() -> None:
        activate(spark)
        found.append(jvm_of(spark).org.apache.spark.sql.SparkSession.getActiveSession().isDefined())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [True]


def test_a_session_of_spark_connect_has_no_jvm() -> None:
    class Remote:
        pass

    assert jvm_of(Remote()) is None  # type: ignore[arg-type]
    assert analyzed_plan(Remote()) is None  # type: ignore[arg-type]
    assert not has_ended(Remote())  # type: ignore[arg-type]
    activate(Remote())  # type: ignore[arg-type]
