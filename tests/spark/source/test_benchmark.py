"""The source's benchmark runs and tells its figures; how good they are is not a test's business."""

from __future__ import annotations

import json

import pytest
from benchmarks.effort import TINY
from benchmarks.spark_broker import run
from pyspark.sql import SparkSession


@pytest.mark.timeout(400)
def test_the_benchmark_of_the_source_tells_its_figures_and_targets(spark: SparkSession) -> None:
    figures = run(TINY)
    assert json.loads(json.dumps(figures)) == figures
    assert [target["reached"] > 0 for target in figures["targets"]] == [True] * 3
    assert not spark.streams.active
