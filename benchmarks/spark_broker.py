"""How fast Spark reads from a broker over loopback: a scan, a saturated stream, an idle stream.

A broker serves a topic of two queues with 200-byte bodies. The scan writes offset, time and body to
``noop``, compared with a scan of the same rows from the store directory without a broker. The
stream reads a million messages per batch until it has caught up. The idle stream gets one message
at a time; the reported time is that of its micro-batch, without the wait for the message.

    python -m benchmarks.spark_broker [--full | --tiny]
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, at_most, median, ratio
from benchmarks.processes import ServerProcess, tree_cpu_seconds
from benchmarks.script import main
from benchmarks.spark_path import BODY_BYTES, LEAN, MESSAGES, QUEUES, TOPIC, fill, jvm_pid, scan
from benchmarks.spark_path import read as read_path
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Admin, Message, Producer
from penstock.columnar.schema import ALL
from penstock.spark.session_setup.tuned_session import session

SCAN_TARGET: Final = 800_000
STREAM_TARGET: Final = 700_000
IDLE_TARGET_MS: Final = 100
STREAM_BATCH: Final = 1_000_000
WARM_UP_BATCHES: Final = 40
"""Micro-batches before the first measured one: the JVM compiles frequent code."""
IDLE_BATCHES: Final = 40
PATIENCE_SECONDS: Final = 120.0


def run(effort: Effort = QUICK) -> Figures:
    """Rows per second from the broker, and milliseconds of a micro-batch with one message."""
    spark = session("penstock-bench", master="local[2,2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    count = effort.scaled(2 * MESSAGES if effort is FULL else MESSAGES)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        data = Path(directory) / "data"
        fill(data / "broker-a", count)
        with serving(data) as (namesrv, broker):
            figures: Figures = {
                "benchmark": "spark_broker",
                "rows": count,
                "body_bytes": BODY_BYTES,
                "cores": 2,
                "scan": _scans(spark, namesrv, data / "broker-a", count, effort, broker),
                "scan_all_columns": _scan_rate(spark, namesrv, ALL, count),
                "stream": _stream(spark, namesrv, count, Path(directory) / "stream", effort),
                "idle": _idle(spark, namesrv, Path(directory) / "idle", effort),
            }
    figures["targets"] = [
        at_least("rows a second from the broker", SCAN_TARGET, figures["scan"]["rows_per_second"]),
        at_least(
            "rows a second of a saturated stream",
            STREAM_TARGET,
            figures["stream"]["rows_per_second"],
        ),
        at_most("ms of an idle micro-batch", IDLE_TARGET_MS, figures["idle"]["batch_ms"]),
    ]
    return figures


@contextlib.contextmanager
def serving(data: Path) -> Iterator[tuple[str, ServerProcess]]:
    """``penstock up`` on a store that already contains the topic."""
    ports = ["--nameserver-port", "0", "--broker-port", "0"]
    broker = ServerProcess(["-m", "penstock", "up", "--data", str(data), *ports])
    try:
        namesrv = broker.ready_line.partition("namesrv=")[2].split()[0]
        with Admin(namesrv=namesrv) as admin:
            admin.create_topic(TOPIC, QUEUES)
        yield namesrv, broker
    finally:
        broker.stop()


def _read(spark: SparkSession, namesrv: str, columns: tuple[str, ...]) -> DataFrame:
    options = {"namesrv": namesrv, "topic": TOPIC, "columns": ",".join(columns)}
    return spark.read.format("penstock").options(**options).load()


def _scans(
    spark: SparkSession,
    namesrv: str,
    store: Path,
    count: int,
    effort: Effort,
    broker: ServerProcess,
) -> Figures:
    ours, path = _read(spark, namesrv, LEAN), read_path(spark, store, LEAN)
    for frame in (ours, path):
        assert frame.count() == count
        scan(frame)
    rates: dict[str, list[float]] = {"broker": [], "path": []}
    jvm = jvm_pid(spark)
    served = working = 0.0
    for _ in range(effort.rounds):
        rates["path"].append(count / scan(path))
        before = broker.cpu_seconds(), tree_cpu_seconds(jvm)
        rates["broker"].append(count / scan(ours))
        served += broker.cpu_seconds() - before[0]
        working += tree_cpu_seconds(jvm) - before[1]
    million = effort.rounds * count / 1e6
    return {
        "columns": list(LEAN),
        "rows_per_second": median(rates["broker"]),
        "best_rows_per_second": round(max(rates["broker"])),
        "path_rows_per_second": median(rates["path"]),
        # On a busy machine the cost of a row is more reliable than the rate.
        "cpu_seconds_per_million_rows": {
            "broker": round(served / million, 3),
            "spark": round(working / million, 3),
        },
        **ratio(rates["broker"], rates["path"]),
    }


def _scan_rate(spark: SparkSession, namesrv: str, columns: tuple[str, ...], count: int) -> Figures:
    frame = _read(spark, namesrv, columns)
    scan(frame)
    return {"rows_per_second": median([count / scan(frame) for _ in range(3)])}


def _load_stream(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    given = {"namesrv": namesrv, "topic": TOPIC, "columns": ",".join(LEAN), **options}
    return spark.readStream.format("penstock").options(**given).load()


def _stream(
    spark: SparkSession, namesrv: str, count: int, checkpoint: Path, effort: Effort
) -> Figures:
    """The rate of whole triggers, including planning and checkpoint."""
    batch = effort.scaled(STREAM_BATCH)
    rates: list[float] = []
    for number in range(2 if effort.rounds > 1 else 1):
        df = _load_stream(
            spark, namesrv, startingOffsets="earliest", maxOffsetsPerTrigger=str(batch)
        )
        query = (
            df.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"{checkpoint}-{number}")
            .start()
        )
        assert query.awaitTermination(int(PATIENCE_SECONDS))
        progress = [one for one in query.recentProgress if one.numInputRows == batch]
        assert sum(one.numInputRows for one in query.recentProgress) == count
        rates += [batch * 1000 / one.durationMs["triggerExecution"] for one in progress]
    # The first batch of a query starts workers, once per stream.
    steady = rates[1:] if len(rates) > 1 else rates
    return {
        "rows_a_batch": batch,
        "batches": len(steady),
        "rows_per_second": median(steady),
        "best_rows_per_second": round(max(steady)),
    }


def _idle(spark: SparkSession, namesrv: str, checkpoint: Path, effort: Effort) -> Figures:
    """Send one message at a time, the next when the batch of the previous one is done."""
    warm_up = effort.scaled(WARM_UP_BATCHES)
    df = _load_stream(spark, namesrv)
    query = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    done = -1
    ends: list[float] = []
    times: list[float] = []
    phases: dict[str, list[float]] = {}
    wait_for(query, lambda progress: True)
    with Producer("bench", namesrv=namesrv) as producer:
        for number in range(warm_up + effort.scaled(IDLE_BATCHES)):
            sent = time.perf_counter()
            producer.send(Message(TOPIC, b"x" * BODY_BYTES))
            progress = next_batch(query, done)
            done = progress.batchId
            if number >= warm_up:
                ends.append((time.perf_counter() - sent) * 1000)
                spent = progress.durationMs
                times.append(spent["triggerExecution"] - spent["latestOffset"])
                for phase, ms in spent.items():
                    phases.setdefault(phase, []).append(ms)
    query.stop()
    return {
        "batches": len(times),
        "batch_ms": median(times, 1),
        "send_to_progress_ms": median(ends, 1),
        # Its latestOffset is mainly the wait for the message.
        "phases_ms": {phase: median(values, 1) for phase, values in sorted(phases.items())},
    }


def next_batch(query: StreamingQuery, done: int) -> StreamingQueryProgress:
    """The next batch that contains messages."""
    return wait_for(query, lambda progress: progress.numInputRows > 0 and progress.batchId > done)


def wait_for(
    query: StreamingQuery, condition: Callable[[StreamingQueryProgress], bool]
) -> StreamingQueryProgress:
    """The first progress that satisfies the condition; raises the error of a failed stream."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        progress = query.lastProgress
        if progress is not None and condition(progress):
            return progress
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError("the stream made no progress")
        time.sleep(0.005)


if __name__ == "__main__":
    main(run)
