"""How fast Spark writes rows into topics of a broker in a process of its own.

Rows of 200 bytes are made by Spark on the fly and written twice, in turns: into a topic, and into a
Python writer that only counts them, which is what Spark itself costs. A row is a constant and its
number: padding it (``lpad``) took Spark three microseconds a row, as long as the broker needs to
store one. Broker and Spark share the two cores. Rates are rows per second of wall-clock time, until
the last row is confirmed.

    python -m benchmarks.spark_sink [--full | --tiny]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.processes import ServerProcess, broker
from benchmarks.script import main
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock import Admin
from penstock.spark.session_setup.tuned_session import session

ROWS: Final = 2_000_000
BODY_BYTES: Final = 200
TOPIC: Final = "bench-sink"
QUEUES: Final = 4
TARGET: Final = 300_000


class CountingSink(DataSource):
    """A sink that takes Arrow batches and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        return "penstock_bench_counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sum(batch.num_rows for batch in iterator)
        return WriterCommitMessage()


def run(effort: Effort = QUICK) -> Figures:
    """Rows per second into topics, beside a sink that keeps nothing."""
    spark = session("penstock-bench", master="local[2,2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CountingSink)
    count = effort.scaled(ROWS if effort is FULL else ROWS // 2)
    frame = spark.range(0, count, 1, 2).selectExpr(
        # Numbers of ten digits each, and a constant that Spark makes once.
        f"CAST(concat(repeat('x', {BODY_BYTES - 10}), 1000000000 + id) AS binary) AS body"
    )
    rates: dict[str, list[float]] = {"topic": [], "counting": []}
    with broker() as server:
        namesrv = nameserver(server)
        with Admin(namesrv=namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        into = {"namesrv": namesrv, "topic": TOPIC}
        written = 0
        # The first round warms Spark up, and does not count.
        for number in range(effort.rounds + 1):
            counting = count / write(frame, CountingSink.name(), {})
            topic = count / write(frame, "penstock", into)
            written += count
            if number:
                rates["counting"].append(counting)
                rates["topic"].append(topic)
        with Admin(namesrv=namesrv) as admin:
            stored = sum(part.count for part in admin.topic_stats(TOPIC))
        assert stored == written, f"{written} rows written, {stored} stored"
    return {
        "benchmark": "spark_sink",
        "rows": count,
        "body_bytes": BODY_BYTES,
        "cores": 2,
        "rows_per_second": median(rates["topic"]),
        "counting_rows_per_second": median(rates["counting"]),
        **ratio(rates["topic"], rates["counting"]),
        "targets": [at_least("rows a second into topics", TARGET, median(rates["topic"]))],
    }


def write(frame: DataFrame, sink: str, options: dict[str, str]) -> float:
    """How many seconds it takes to write everything."""
    started = time.perf_counter()
    frame.write.format(sink).mode("append").options(**options).save()
    return time.perf_counter() - started


def nameserver(server: ServerProcess) -> str:
    """The name server that ``penstock up`` said it runs."""
    return server.ready_line.partition("namesrv=")[2].split()[0]


if __name__ == "__main__":
    main(run)
