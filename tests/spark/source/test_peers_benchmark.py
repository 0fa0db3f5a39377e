"""The rows that are compared with Spark's Kafka connector: ours and Parquet's run without Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.peers.spark.plan import BROKER, IDLE, PARQUET, PATH, SCAN, SINK, STREAM, SparkPlan
from benchmarks.peers.spark.sides import Side
from benchmarks.peers.spark.worker import Bench, sides
from pyspark.sql import DataFrame, SparkSession

SMALL = SparkPlan(1, 0, messages=400, batches=2, written=100, warm_up=0, idle=1)


class Broken(Side):
    """A side that cannot be read."""

    name = "broken"
    rows = (SCAN,)

    def read(self) -> DataFrame:
        raise OSError("no such topic\nand a long trace")

    def stream(self, a_batch: int | None) -> DataFrame:
        return self.read()


@pytest.mark.timeout(400)
def test_every_side_tells_its_rows_and_one_that_breaks_tells_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    with sides(tmp_path, SMALL, []) as (session, made, cpu):
        assert session is spark
        lines = list(Bench(spark, SMALL, tmp_path, cpu).run([Broken(spark), *made]))
    assert lines.pop(0) == {"row": SCAN, "side": "broken", "why": "OSError no such topic"}
    assert [(line["row"], line["side"]) for line in lines] == [
        *((SCAN, side) for side in (BROKER, PATH, PARQUET)),
        *((STREAM, side) for side in (BROKER, PATH, PARQUET)),
        *((SINK, side) for side in (BROKER, PARQUET)),
        *((IDLE, side) for side in (BROKER, PATH)),
    ]
    for line in lines:
        assert line["figures"]["batch_ms" if line["row"] == IDLE else "per_second"] > 0
    assert not spark.streams.active
