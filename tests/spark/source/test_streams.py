"""Streams through Spark itself: content, limits, mirroring, outages, restarts."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.spark.source.brokers import create, numbered, produce, running

from penstock import Admin, Message, MessageQueue
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded

pytestmark = pytest.mark.timeout(400)

SECONDS = 100
KILLED = Path(__file__).with_name("killed_stream.py")


def until(
    condition: Callable[[], bool], query: StreamingQuery | None = None, seconds: float = SECONDS
) -> None:
    """Wait for a state of the stream, unless it has died."""
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline
        time.sleep(0.05)


def load(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").options(namesrv=namesrv, **options).load()


def ints(df: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in df.select("body").collect())


def to_files(df: DataFrame, directory: Path) -> DataStreamWriter:
    """A stream to files up to what is there now, as far as its checkpoint has not got yet."""
    return (
        df.select("body")
        .writeStream.format("parquet")
        .option("path", str(directory / "output"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
    )


def lag(namesrv: str, group: str) -> int:
    with Admin(namesrv=namesrv) as admin:
        return sum(row.lag for row in admin.group_lag(group))


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[None]:
    """Stop what a test leaves running."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.parametrize("now", [True, False])
def test_a_stream_that_cannot_be_says_so_and_nothing_else(
    spark: SparkSession, mq: Embedded, tmp_path: Path, now: bool
) -> None:
    create(mq.namesrv, "orders", 1)
    trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    frame = load(spark, mq.namesrv, topic="orders", endingOffsets="latest")
    with pytest.raises(StreamingQueryException) as refused:
        to_files(frame, tmp_path).trigger(**trigger).start().awaitTermination(SECONDS)
    assert "endingTimestamp in a stream; expected no end" in str(refused.value)
    # What Spark's runner says where no reader is made hides the reason.
    assert "UnboundLocalError" not in str(refused.value)


@pytest.mark.usefixtures("queries")
def test_available_now_reads_everything_once_in_bounded_batches(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    for topic in ("orders", "payments", "empty"):
        create(mq.namesrv, topic, 2)
    produce(
        mq.namesrv,
        (
            Message(topic, b"%d" % (100 * i + n), tag="ab"[n % 2])
            for i, topic in enumerate(("orders", "payments"))
            for n in range(100)
        ),
    )
    options = {"subscribe": "orders,payments,empty", "startingOffsets": "earliest", "tags": "a"}
    # The listener cannot sign with these, so it leaves the mirror to the stream's own process.
    secrets = {"accessKey": "AK-secret", "secretKey": "SK-secret"}
    df = load(spark, mq.namesrv, group="audit", maxOffsetsPerTrigger="75", **options, **secrets)
    writer = df.writeStream.format("memory").queryName("bounded")
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(SECONDS)
    assert ints(spark.table("bounded")) == list(range(0, 200, 2))
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert sum(sizes) == 100
    assert max(sizes) <= 75
    written = [file.read_text("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    shown = "".join([*written, *(progress.json for progress in query.recentProgress)])
    assert "orders" in shown
    assert "-secret" not in shown
    # The last batch too: nothing is left to do for the group.
    until(lambda: lag(mq.namesrv, "audit") == 0)


@pytest.mark.usefixtures("queries")
def test_a_stream_outlives_a_broker_and_sees_new_queues(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(tmp_path / "data") as up:
        create(up.namesrv, "orders", 2)
        produce(up.namesrv, numbered("orders", [1000]))
        df = load(spark, up.namesrv, topic="orders", group="audit")
        query = (
            df.writeStream.format("memory")
            .queryName("outliving")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        table = spark.table("outliving")
        until(lambda: query.lastProgress is not None, query)
        produce(up.namesrv, numbered("orders", range(50)))
        until(lambda: len(ints(table)) == 50, query)
        up.kill()
        up.start()
        produce(up.namesrv, numbered("orders", range(50, 100)))
        until(lambda: len(ints(table)) == 100, query)
        create(up.namesrv, "orders", 3)
        added = MessageQueue("orders", "broker-a", 2)
        produce(up.namesrv, numbered("orders", range(100, 120)), added)
        until(lambda: len(ints(table)) == 120, query)
        assert ints(table) == list(range(120))
        until(lambda: lag(up.namesrv, "audit") == 0, query)
        query.stop()


@pytest.mark.usefixtures("queries")
def test_the_listener_shows_a_batch_whose_next_trigger_is_far_away(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    create(mq.namesrv, "orders", 2)
    produce(mq.namesrv, numbered("orders", range(30)))
    df = load(spark, mq.namesrv, topic="orders", group="audit", startingOffsets="earliest")
    query = (
        df.writeStream.format("noop")
        .trigger(processingTime="1 hour")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    until(lambda: sum(p.numInputRows for p in query.recentProgress) == 30, query)
    until(lambda: lag(mq.namesrv, "audit") == 0, query)
    query.stop()


@pytest.mark.usefixtures("queries")
def test_lost_messages_stop_a_restarted_stream_unless_it_may_go_on(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(20)))

    def run(**options: str) -> list[int]:
        df = load(spark, mq.namesrv, topic="orders", startingOffsets="earliest", **options)
        query = to_files(df, tmp_path).start()
        assert query.awaitTermination(SECONDS)
        return ints(spark.read.parquet(str(tmp_path / "output")))

    assert run() == list(range(20))
    mq.admin.delete_topic("orders")
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", [100, 101]))
    with pytest.raises(StreamingQueryException, match="was the topic deleted"):
        run()
    assert run(failOnDataLoss="false") == [*range(20), 100, 101]


@pytest.mark.usefixtures("queries")
@pytest.mark.crash
def test_a_killed_stream_goes_on_from_its_checkpoint_without_loss_or_repeat(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    create(mq.namesrv, "orders", 3)
    produce(mq.namesrv, numbered("orders", range(300)))
    marker, output, checkpoint = (tmp_path / name for name in ("marker", "output", "checkpoint"))
    arguments = [sys.executable, str(KILLED), mq.namesrv]
    arguments += map(str, (output, checkpoint, marker))
    with ChildProcess(arguments) as child:
        # The second batch hangs in a task that has read half of its messages.
        until(lambda: marker.exists() or not child.is_running, seconds=3 * SECONDS)
        assert child.is_running, child.output
        child.kill()
    written = spark.read.parquet(str(output))
    assert len(ints(written)) == 100, "one batch is committed, another was under way"
    produce(mq.namesrv, numbered("orders", range(300, 350)))
    df = load(spark, mq.namesrv, topic="orders", startingOffsets="earliest", group="audit")
    query = to_files(df, tmp_path).start()
    assert query.awaitTermination(SECONDS)
    seen = Counter(ints(spark.read.parquet(str(output))))
    assert seen == Counter(range(350))
    until(lambda: lag(mq.namesrv, "audit") == 0)
