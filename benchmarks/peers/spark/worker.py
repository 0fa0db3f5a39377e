"""Measures Spark in its own process: four sides, in turn.

Started by `run` with one line of JSON on stdin; every figure is printed as one line of JSON on
stdout, so that results before a failure are not lost. Penstock's broker, Kafka's and Spark
share the machine; Spark has two cores.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.plan import rotated
from benchmarks.peers.servers.kafka import Kafka as KafkaServer
from benchmarks.peers.spark.plan import IDLE, ROWS, SCAN, SINK, STREAM, SparkPlan
from benchmarks.peers.spark.sides import SINK_TOPIC, Kafka, Ours, Parquet, Side
from benchmarks.peers.worker import Figures, print_line
from benchmarks.processes import tree_cpu_seconds
from benchmarks.spark_broker import next_batch, serving, wait_for
from benchmarks.spark_path import BODY_BYTES, QUEUES, fill, scan
from benchmarks.spark_path import read as read_path
from pyspark.sql import SparkSession

from penstock import Admin
from penstock.spark.jvm import jvm_of
from penstock.spark.session_setup.tuned_session import session

STREAM_SECONDS: Final = 600
Cpu = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A Spark session and its measurements."""

    spark: SparkSession
    plan: SparkPlan
    directory: Path
    servers: Mapping[str, Cpu]
    """Returns the CPU time of a side's server, if it has one."""
    _streams: Iterator[int] = field(default_factory=itertools.count)
    _sunk: dict[str, int] = field(default_factory=dict)

    def run(self, sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
        """Run all rounds of all rows, each side the first in another round; yield the results."""
        for number in range(-self.plan.unrecorded, self.plan.rounds):
            for row in ROWS:
                for side in rotated([side for side in sides if row in side.rows], number):
                    about = {"row": row, "side": side.name}
                    try:
                        figures = self._measure(row, side)
                    except Exception as error:  # a failure must not affect the other sides
                        self._stop_streams()
                        why = str(error).strip().partition("\n")[0]
                        yield {**about, "why": f"{type(error).__name__} {why}"}
                        continue
                    if number >= 0:
                        yield {**about, "figures": figures}

    def _measure(self, row: str, side: Side) -> Figures:
        measure = {
            SCAN: self._scan,
            STREAM: self._stream,
            SINK: self._sink,
            IDLE: self._idle,
        }[row]
        return measure(side)

    def _stop_streams(self) -> None:
        for query in self.spark.streams.active:
            query.stop()

    def _checkpoint(self) -> str:
        return str(self.directory / f"checkpoint-{next(self._streams)}")

    def _costs(self, side: Side, rows: int, work: Callable[[], float]) -> Figures:
        """Rows per second over the time that ``work`` returns, and the CPU time per row."""
        java: Any = jvm_of(self.spark)
        jvm = int(java.java.lang.ProcessHandle.current().pid())
        served = self.servers.get(side.name, lambda: 0.0)
        before = served(), tree_cpu_seconds(jvm)
        seconds = work()
        return {
            "per_second": rows / seconds,
            "spark_microseconds": (tree_cpu_seconds(jvm) - before[1]) / rows * 1e6,
            "server_microseconds": (served() - before[0]) / rows * 1e6,
        }

    def _scan(self, side: Side) -> Figures:
        frame = side.read()
        rows = frame.count()
        # The topic also contains idle rows of earlier rounds.
        assert rows >= self.plan.messages, f"{rows} rows of {self.plan.messages}"
        return self._costs(side, rows, lambda: scan(frame))

    def _stream(self, side: Side) -> Figures:
        """Whole triggers, planning and checkpoint included."""
        frame = side.stream(self.plan.a_batch)
        query = (
            frame.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        if not query.awaitTermination(STREAM_SECONDS):
            query.stop()
            raise TimeoutError(f"not finished after {STREAM_SECONDS} s")
        batches = [one for one in query.recentProgress if one.numInputRows]
        rows = sum(one.numInputRows for one in batches)
        assert rows >= self.plan.messages, f"{rows} rows of {self.plan.messages}"
        # The first batch starts workers, once per stream; the last is only the remainder.
        counted = [one for one in batches[1:] if one.numInputRows > self.plan.a_batch // 2]
        spent = sum(one.durationMs["triggerExecution"] for one in counted)
        return {"per_second": sum(one.numInputRows for one in counted) / spent * 1000}

    def _sink(self, side: Side) -> Figures:
        rows = self.plan.written
        frame = self.spark.range(0, rows, 1, 2).selectExpr(
            f"CAST(lpad(CAST(id AS string), {BODY_BYTES}, 'x') AS binary) AS body"
        )

        def write() -> float:
            began = time.perf_counter()
            side.write(frame)
            return time.perf_counter() - began

        figures = self._costs(side, rows, write)
        found = side.written()
        wanted = self._sunk[side.name] = self._sunk.get(side.name, 0) + rows
        assert found >= wanted, f"{found} rows of {wanted}"
        return figures

    def _idle(self, side: Side) -> Figures:
        """Send one message at a time, the next when the batch of the previous one is done."""
        frame = side.stream(None)
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        wait_for(query, lambda progress: True)
        done, ends, times = -1, [], []
        for number in range(self.plan.warm_up + self.plan.idle):
            sent = time.perf_counter()
            side.send()
            progress = next_batch(query, done)
            done = progress.batchId
            if number >= self.plan.warm_up:
                ends.append((time.perf_counter() - sent) * 1000)
                spent = progress.durationMs
                times.append(spent["triggerExecution"] - spent["latestOffset"])
        query.stop()
        # Our source waits inside its request for the latest offset until there is a message.
        return {"batch_ms": middle(times), "send_to_end_ms": middle(ends)}


def middle(values: Sequence[float]) -> float:
    """The median of one round."""
    return sorted(values)[len(values) // 2]


@contextlib.contextmanager
def sides(
    bench_directory: Path, plan: SparkPlan, jars: Sequence[str]
) -> Iterator[tuple[SparkSession, list[Side], dict[str, Cpu]]]:
    """All sides, filled with the same rows; with Kafka if its jars are available."""
    data = bench_directory / "data"
    store = data / "broker-a"
    fill(store, plan.messages)
    config = {"spark.driver.memory": "4g"} | ({"spark.jars": ",".join(jars)} if jars else {})
    with contextlib.ExitStack() as stack:
        namesrv, broker = stack.enter_context(serving(data))
        with Admin(namesrv=namesrv) as admin:
            admin.create_topic(SINK_TOPIC, QUEUES)
        kafka = None
        if jars:
            server = KafkaServer(partitions=QUEUES)
            server.prepare()
            kafka = stack.enter_context(server.run(bench_directory / "kafka", fsync=False))
        spark = session("penstock-bench", master="local[2,2]", config=config)
        spark.sparkContext.setLogLevel("OFF")
        rows = read_path(spark, store, ("queue_id", "offset", "store_timestamp", "body"))
        parquet = Parquet(spark, bench_directory / "parquet")
        parquet.fill(rows, plan.batches)
        ours = Ours(spark, namesrv)
        made: list[Side] = [ours, Ours(spark, namesrv, store), parquet]
        cpu: dict[str, Cpu] = {ours.name: broker.cpu_seconds}
        if kafka is not None:
            theirs = Kafka(spark, kafka.addresses["kafka"])
            theirs.fill(rows)
            made.append(theirs)
            cpu[theirs.name] = kafka.cpu_seconds
        for side in made:
            stack.callback(side.close)
        yield spark, made, cpu


def main() -> None:
    """Read the request, run it, print the results."""
    request = json.loads(sys.stdin.readline())
    plan = SparkPlan(**request["plan"])
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as made:
        with sides(Path(made), plan, request["jars"]) as (spark, compared, cpu):
            for line in Bench(spark, plan, Path(made), cpu).run(compared):
                print_line(line)
        spark.stop()
        print_line({"done": True})


if __name__ == "__main__":
    main()
