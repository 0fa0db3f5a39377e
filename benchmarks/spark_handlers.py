"""How fast handlers on Spark executors process a topic.

A topic of two queues contains messages of 200 bytes. A group with a handler that does nothing
consumes it, once inside the read and once in the writer of a stream. For comparison a plain stream
writes body and position of each message to ``noop``: the cost of the source itself. Each takes one
micro-batch; the result is the time of that batch, including its commit.

    python -m benchmarks.spark_handlers [--full | --tiny]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.processes import broker
from benchmarks.script import main
from benchmarks.spark_sink import nameserver
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Admin
from penstock.model import StoredMessage
from penstock.spark.handlers.consume import consume
from penstock.spark.session_setup.tuned_session import session

MESSAGES: Final = 2_000_000
BODY_BYTES: Final = 200
TOPIC: Final = "bench-handlers"
QUEUES: Final = 2
COLUMNS: Final = "topic,broker,queue_id,offset,body"
NOW: Final = {"availableNow": True}
TARGET: Final = 300_000


def handler(message: StoredMessage) -> None:
    """Reads the message, as every handler does."""
    if not message.body:
        raise ValueError("no body")


def run(effort: Effort = QUICK) -> Figures:
    """Messages per second through a handler, compared with a stream without one."""
    spark = session("penstock-bench", master="local[2,2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("ERROR")
    count = effort.scaled(MESSAGES if effort is FULL else MESSAGES // 2)
    rates: dict[str, list[float]] = {"read": [], "writer": [], "plain": []}
    with (
        broker() as server,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory,
    ):
        namesrv = nameserver(server)
        fill(spark, namesrv, count)
        # The first round warms up Spark and does not count.
        for number in range(effort.rounds + 1):
            for name, start in _ways(spark, namesrv, Path(directory), number).items():
                rate = _rate(start(), count)
                if number:
                    rates[name].append(rate)
    return {
        "benchmark": "spark_handlers",
        "messages": count,
        "body_bytes": BODY_BYTES,
        "cores": 2,
        "in_the_read": {
            "messages_per_second": median(rates["read"]),
            **ratio(rates["read"], rates["plain"]),
        },
        "in_the_writer": {
            "messages_per_second": median(rates["writer"]),
            **ratio(rates["writer"], rates["plain"]),
        },
        "plain_rows_per_second": median(rates["plain"]),
        "targets": [at_least("messages a second through handlers", TARGET, median(rates["read"]))],
    }


def fill(spark: SparkSession, namesrv: str, count: int) -> None:
    """Write ``count`` messages to the topic, the same number in every queue."""
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    spark.range(0, count, 1, QUEUES).selectExpr(
        f"CAST(lpad(CAST(id AS string), {BODY_BYTES}, 'x') AS binary) AS body",
        "'broker-a' AS broker",
        f"CAST(id % {QUEUES} AS int) AS queue_id",
    ).write.format("penstock").mode("append").option("namesrv", namesrv).option(
        "topic", TOPIC
    ).option("keepQueue", "true").save()


def _ways(
    spark: SparkSession, namesrv: str, directory: Path, number: int
) -> dict[str, Callable[[], StreamingQuery]]:
    options = {"namesrv": namesrv, "topic": TOPIC, "startingOffsets": "earliest"}

    def stream() -> DataFrame:
        return spark.readStream.format("penstock").options(**options, columns=COLUMNS).load()

    def where(name: str) -> str:
        return str(directory / f"{name}-{number}")

    return {
        "read": lambda: consume(
            options, handler, group=f"read-{number}", checkpoint=where("read"), trigger=NOW
        ),
        "writer": lambda: consume(
            stream(), handler, group=f"writer-{number}", checkpoint=where("writer"), trigger=NOW
        ),
        "plain": lambda: (
            stream()
            .writeStream.format("noop")
            .option("checkpointLocation", where("plain"))
            .trigger(**NOW)
            .start()
        ),
    }


def _rate(query: StreamingQuery, count: int) -> float:
    """Messages per second of the non-empty micro-batches."""
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    rows = sum(batch["numInputRows"] for batch in batches)
    assert rows == count, f"{count} messages in the topic, {rows} handled"
    seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000
    return float(rows / seconds)


if __name__ == "__main__":
    main(run)
