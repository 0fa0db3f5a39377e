"""How fast Spark scans a store directory, compared with what a Python source can reach at most.

A store of two queues is written with 200-byte bodies and the properties that a Java producer sends;
again as ready-made Arrow batches of the same shape (`benchmarks.ready_batches`), which show the
limit; and as uncompressed Parquet, which Spark reads without a Python process. Each has two files,
as two tasks read the store.
All are scanned alternately, after the JVM has compiled the code: a scan is a write to ``noop``.
Rates are rows per second of wall-clock time on two cores, with everything in the page cache; the
CPU time of the JVM and its workers is more reliable on a busy machine.

    python -m benchmarks.spark_path [--full | --tiny]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.processes import tree_cpu_seconds
from benchmarks.ready_batches import FORMAT, ReadyBatches, write_ready
from benchmarks.script import main
from pyspark.sql import DataFrame, SparkSession

import penstock.arrow
from penstock import MessageQueue
from penstock.columnar.schema import ALL
from penstock.spark.jvm import jvm_of
from penstock.spark.session_setup.tuned_session import session
from penstock.store import Draft, MessageStore, StoreConfig

MESSAGES: Final = 2_000_000
BODY_BYTES: Final = 200
QUEUES: Final = 2
TOPIC: Final = "orders"
LEAN: Final = ("offset", "store_timestamp", "body")
LEAN_TARGET: Final = 2_000_000
ALL_TARGET: Final = 800_000
LIMIT_TARGET: Final = 0.75
WARM_UPS: Final = 3
"""Scans of each kind before the first measured one."""
_WRITE_EVERY: Final = 512


def run(effort: Effort = QUICK) -> Figures:
    """Rows per second from the store and from the others, for three columns and for all."""
    spark = session("penstock-bench", master="local[2,2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadyBatches)
    # One file is one task. By default Spark splits files at 128 MB, with a short task at the end.
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(1 << 40))
    count = effort.scaled(MESSAGES if effort is FULL else MESSAGES // 2)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        store, parquet = Path(directory) / "broker-a", Path(directory) / "parquet"
        fill(store, count)
        (read(spark, store, ALL).write.option("compression", "none").parquet(str(parquet)))
        figures: Figures = {"rows": count, "body_bytes": BODY_BYTES, "cores": 2, "targets": []}
        for label, columns, target in (("lean", LEAN, LEAN_TARGET), ("all", ALL, ALL_TARGET)):
            frames = {
                "path": read(spark, store, columns),
                "limit": _ready(spark, store, columns, Path(directory) / label),
                "parquet": spark.read.parquet(str(parquet)).select(*columns),
            }
            for frame in frames.values():
                _check(frame, count)
            found = figures[label] = {
                "columns": list(columns),
                **_compared(spark, frames, count, effort),
            }
            reached = found["rows_per_second"]
            figures["targets"].append(
                at_least(f"rows a second from the path, {label}", target, reached)
            )
            if label == "lean":
                name = f"path to the limit of a Python source, {label}"
                figures["targets"].append(at_least(name, LIMIT_TARGET, found["to_limit"]["ratio"]))
    return figures


def _compared(
    spark: SparkSession, frames: Mapping[str, DataFrame], count: int, effort: Effort
) -> Figures:
    """The frames, scanned alternately; the first one changes from round to round."""
    rates: dict[str, list[float]] = {name: [] for name in frames}
    spent: dict[str, list[float]] = {name: [] for name in frames}
    jvm = jvm_pid(spark)
    for number in range(-min(WARM_UPS, effort.rounds), effort.rounds):
        for name in sorted(frames, reverse=bool(number % 2)):
            before = tree_cpu_seconds(jvm)
            seconds = scan(frames[name])
            if number >= 0:
                rates[name].append(count / seconds)
                spent[name].append((tree_cpu_seconds(jvm) - before) / count * 1e6)
    return {
        "rows_per_second": median(rates["path"]),
        "limit_rows_per_second": median(rates["limit"]),
        "parquet_rows_per_second": median(rates["parquet"]),
        "tasks": {name: frame.rdd.getNumPartitions() for name, frame in frames.items()},
        "cpu_seconds_per_million_rows": {name: median(each, 2) for name, each in spent.items()},
        "to_limit": ratio(rates["path"], rates["limit"]),
        "to_parquet": ratio(rates["path"], rates["parquet"]),
    }


def _ready(
    spark: SparkSession, store: Path, columns: tuple[str, ...], directory: Path
) -> DataFrame:
    """The same rows in the same batches, one file for each queue."""
    directory.mkdir()
    files = []
    for number in range(QUEUES):
        # Of every other queue nothing: from its end, which is -1.
        start = {
            MessageQueue(TOPIC, store.name, q): 0 if q == number else -1 for q in range(QUEUES)
        }
        batches = penstock.arrow.read(store, topic=TOPIC, columns=columns, start=start)
        files.append(write_ready(directory / f"{number}.arrow", batches))
    reader = spark.read.format(FORMAT).schema(read(spark, store, columns).schema)
    return reader.option("files", ",".join(files)).load()


def jvm_pid(spark: SparkSession) -> int:
    """The root process of Spark's work."""
    return int(jvm_of(spark).java.lang.ProcessHandle.current().pid())


def fill(root: Path, count: int) -> None:
    """A store with ``count`` messages, spread over the queues."""
    host = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    with MessageStore(root, StoreConfig(message_index_enable=False)) as store:
        for number in range(count):
            properties = (
                f"KEYS\x01order-{number:08d}\x02"
                f"UNIQ_KEY\x017F0000014D0130946E094D98{number:08X}\x02"
                f"CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01created\x02"
            ).encode()
            store.append(
                Draft(
                    TOPIC,
                    number % QUEUES,
                    # All different: Parquet would store repeated values once.
                    os.urandom(BODY_BYTES),
                    properties,
                    born_timestamp=1_794_793_031_525,
                    born_host=host,
                    store_host=host,
                )
            )
            if number % _WRITE_EVERY == 0:
                store.write()
        store.write()


def read(spark: SparkSession, path: Path, columns: tuple[str, ...]) -> DataFrame:
    """The store as a table of these columns."""
    reader = spark.read.format("penstock").option("columns", ",".join(columns))
    return reader.option("topic", TOPIC).load(str(path))


def scan(frame: DataFrame) -> float:
    """The seconds that it takes to read everything."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _check(frame: DataFrame, count: int) -> None:
    found = frame.selectExpr("count(*)", "sum(length(body))").first()
    assert found is not None
    assert tuple(found) == (count, count * BODY_BYTES), found


if __name__ == "__main__":
    main(run)
