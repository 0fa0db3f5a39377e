"""A consumer group on Spark: each message handled, retried or a dead letter, and none lost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import DeadLetter, Message, Producer, RetryLater
from penstock.client.middleware import HandlerCall, Middleware
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue, StoredMessage
from penstock.spark.handlers.consume import consume, reading_retries
from penstock.spark.source.options import parse_read
from penstock.spark.source.positions import Positions
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually as sometime

NOW = {"availableNow": True}


def eventually(condition: Callable[[], object], timeout: float = 60) -> None:
    asyncio.run(sometime(condition, timeout, interval=0.2))


class Notes:
    """What handlers on executors saw: a line each in a file that all of them append to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, message: StoredMessage) -> None:
        line = {
            "topic": message.topic,
            "body": message.body.decode(),
            "times": message.reconsume_times,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "tag": message.tag,
            "keys": list(message.keys),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    @property
    def bodies(self) -> list[str]:
        return [line["body"] for line in self.read()]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def stopping() -> Iterator[Callable[[StreamingQuery], StreamingQuery]]:
    queries: list[StreamingQuery] = []

    def later(query: StreamingQuery) -> StreamingQuery:
        queries.append(query)
        return query

    yield later
    for query in queries:
        query.stop()


def produce(mq: Embedded, topic: str, bodies: list[str], queues: int = 4) -> None:
    mq.admin.create_topic(topic, queues=queues)
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number, body in enumerate(bodies):
            queue = MessageQueue(topic, "broker-a", number % queues)
            message = Message(topic, body.encode(), tag="even", keys=[f"k{number}"])
            producer.send(message, queue=queue)


def dead_letters(spark: SparkSession, mq: Embedded, group: str) -> dict[str, dict[str, str]]:
    frame = spark.read.format("penstock").option("namesrv", mq.namesrv)
    rows = frame.option("topic", f"%DLQ%{group}").load().collect()
    return {bytes(row.body).decode(): row.properties for row in rows}


def dead_now(spark: SparkSession, mq: Embedded) -> dict[str, dict[str, str]]:
    if "%DLQ%billing" not in mq.admin.topics(internal=True):
        return {}
    return dead_letters(spark, mq, "billing")


def source(mq: Embedded, topic: str = "orders", **options: str) -> dict[str, str]:
    return {"namesrv": mq.namesrv, "topic": topic, "startingOffsets": "earliest", **options}


def test_every_message_is_handled_and_the_group_stands_behind_the_last(
    spark: SparkSession, mq: Embedded, notes: Notes, tmp_path: Path
) -> None:
    produce(mq, "orders", [str(number) for number in range(100)])
    query = consume(source(mq), notes.add, group="billing", checkpoint=tmp_path / "cp", trigger=NOW)
    query.awaitTermination()
    seen = notes.read()
    assert Counter(line["body"] for line in seen) == Counter(str(n) for n in range(100))
    assert {(line["topic"], line["tag"], line["times"]) for line in seen} == {("orders", "even", 0)}
    assert all(line["keys"] == [f"k{line['body']}"] for line in seen)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 100

    def is_settled() -> bool:
        lags = [lag for lag in mq.admin.group_lag("billing") if lag.topic == "orders"]
        return sum(lag.committed for lag in lags) == 100

    eventually(is_settled)


@pytest.mark.parametrize("after_sql", [False, True])
def test_middleware_runs_on_executors_around_each_handler_call(
    spark: SparkSession, mq: Embedded, notes: Notes, tmp_path: Path, after_sql: bool
) -> None:
    produce(mq, "orders", [str(number) for number in range(20)])
    path = tmp_path / "calls"

    class Counting(Middleware):
        def before_handle(self, call: HandlerCall) -> None:
            call.skip = call.messages[0].body == b"3"

        def after_handle(self, call: HandlerCall) -> None:
            with path.open("a") as file:
                file.write(f"{call.group} {call.attempt} {call.outcome}\n")

    stream: Any = source(mq)
    if after_sql:
        stream = spark.readStream.format("penstock").options(**stream).load()
    consume(
        stream,
        notes.add,
        group="billing",
        checkpoint=tmp_path / "cp",
        trigger=NOW,
        middleware=(Counting(),),
    ).awaitTermination()
    assert Counter(notes.bodies) == Counter(str(number) for number in range(20) if number != 3)
    assert Counter(path.read_text().splitlines()) == {"billing 1 SUCCESS": 20}


def test_a_failure_is_retried_and_the_handlers_word_makes_dead_letters(
    spark: SparkSession,
    mq: Embedded,
    notes: Notes,
    tmp_path: Path,
    stopping: Callable[[StreamingQuery], StreamingQuery],
) -> None:
    produce(mq, "orders", ["fine", "once", "never", "odd", "quiet"])

    def handler(message: StoredMessage) -> object:
        notes.add(message)
        body = message.body.decode()
        if body == "once" and message.reconsume_times == 0:
            raise RetryLater("1s", "not yet")
        if body == "never":
            raise DeadLetter("no such customer")
        if body == "quiet":
            raise SystemExit(3)
        return "what is this" if body == "odd" else None

    stopping(
        consume(source(mq), handler, group="billing", checkpoint=tmp_path / "cp", max_retries=0)
    )
    eventually(lambda: len(notes.bodies) >= 5)
    # With no retries at all, everything that fails is a dead letter at once, but once.
    eventually(lambda: set(dead_now(spark, mq)) == {"once", "never", "odd", "quiet"})
    found = dead_letters(spark, mq, "billing")
    assert found["never"]["PENSTOCK_REASON_TYPE"] == "DeadLetter"
    assert found["never"]["PENSTOCK_REASON_MESSAGE"] == "no such customer"
    assert found["never"]["PENSTOCK_REASON_ATTEMPT"] == "1"
    assert found["never"]["RETRY_TOPIC"] == "orders"
    assert found["quiet"]["PENSTOCK_REASON_TYPE"] == "SystemExit"
    assert found["odd"]["PENSTOCK_REASON_TYPE"] == "RETURNNULL"
    assert "spark-" in found["odd"]["PENSTOCK_REASON_HOST"]


def test_a_retried_message_comes_again_under_its_own_topic_until_its_last_retry(
    spark: SparkSession,
    mq: Embedded,
    notes: Notes,
    tmp_path: Path,
    stopping: Callable[[StreamingQuery], StreamingQuery],
) -> None:
    produce(mq, "orders", ["fine", "once", "never"])

    def handler(message: StoredMessage) -> None:
        notes.add(message)
        if message.body == b"never":
            raise RetryLater("1s", "still closed")
        if message.body == b"once" and message.reconsume_times == 0:
            raise RetryLater(1)

    stopping(
        consume(source(mq), handler, group="billing", checkpoint=tmp_path / "cp", max_retries=2)
    )
    eventually(lambda: "never" in dead_now(spark, mq))
    calls = [(line["body"], line["times"], line["topic"]) for line in notes.read()]
    assert sorted(calls) == sorted(
        [
            ("fine", 0, "orders"),
            ("once", 0, "orders"),
            ("once", 1, "orders"),
            *(("never", times, "orders") for times in range(3)),
        ]
    )
    reason = dead_letters(spark, mq, "billing")["never"]
    assert reason["PENSTOCK_REASON_MESSAGE"] == "still closed"
    assert reason["PENSTOCK_REASON_ATTEMPT"] == "3"


def test_an_ordered_queue_waits_for_its_message(
    spark: SparkSession, mq: Embedded, notes: Notes, tmp_path: Path
) -> None:
    produce(mq, "orders", [str(number) for number in range(40)], queues=2)

    def handler(message: StoredMessage) -> None:
        notes.add(message)
        if message.body == b"7" and message.reconsume_times < 2:
            raise RetryLater(1, "again")
        if message.body == b"8":
            raise DeadLetter("bad")

    consume(
        source(mq),
        handler,
        group="billing",
        checkpoint=tmp_path / "cp",
        ordered=True,
        trigger=NOW,
    ).awaitTermination()
    seen = notes.read()
    for queue in range(2):
        of_queue = [(line["offset"], line["times"]) for line in seen if line["queue"] == queue]
        assert of_queue == sorted(of_queue), "nothing overtakes"
    assert [line["times"] for line in seen if line["body"] == "7"] == [0, 1, 2]
    assert Counter(notes.bodies) == Counter([*map(str, range(40)), "7", "7"])
    eventually(lambda: set(dead_now(spark, mq)) == {"8"})


def test_a_topic_that_gained_a_queue_does_not_stop_a_restart_with_offsets(
    spark: SparkSession, mq: Embedded, notes: Notes, tmp_path: Path
) -> None:
    produce(mq, "orders", [str(number) for number in range(8)], queues=2)
    given = source(mq, startingOffsets='{"orders": {"broker-a": {"0": 1, "1": -2}}}')

    def run() -> None:
        consume(
            given, notes.add, group="billing", checkpoint=tmp_path / "cp", trigger=NOW
        ).awaitTermination()

    run()
    assert sorted(notes.bodies) == sorted("1234567")
    produce(mq, "orders", ["8", "9", "10"], queues=3)
    run()
    assert sorted(map(int, notes.bodies)) == list(range(1, 11))


def test_tags_and_the_group_choose_what_is_handled(
    spark: SparkSession, mq: Embedded, notes: Notes, tmp_path: Path
) -> None:
    mq.admin.create_topic("orders", queues=2)
    with Producer(group="p", namesrv=mq.namesrv) as producer:
        for number in range(20):
            tag = "Aa" if number % 2 else "BB"  # Both have the same hash.
            producer.send(Message("orders", b"%d" % number, tag=tag))
    for _ in range(2):
        # The second time there is a group, and nothing new for it: not even a checkpoint helps.
        consume(
            {"namesrv": mq.namesrv, "topic": "orders", "tags": "Aa"},
            notes.add,
            group="billing",
            checkpoint=tmp_path / f"cp{len(notes.bodies)}",
            trigger=NOW,
        ).awaitTermination()

        def stands() -> bool:
            lags = [lag for lag in mq.admin.group_lag("billing") if lag.topic == "orders"]
            return sum(lag.committed for lag in lags) == 20

        eventually(stands)
    assert sorted(map(int, notes.bodies)) == list(range(1, 20, 2))


@pytest.mark.parametrize("pattern", ["(?i)orders.*", "(?x)(?i) orders .*", "[oO]rders-[12]"])
def test_a_pattern_finds_its_topics_and_the_retries_of_the_group_alone(
    mq: Embedded, pattern: str
) -> None:
    for topic in ("orders-1", "Orders-2", "stock", "%RETRY%Billing", "%RETRY%orders"):
        mq.admin.create_topic(topic, queues=1)
    given = {"namesrv": mq.namesrv, "group": "billing", "subscribepattern": pattern}
    options = parse_read({**given, **reading_retries(parse_read(given))})
    found = {queue.topic for queue in Positions(options).queues()}
    assert found == {"orders-1", "Orders-2", "%RETRY%billing"}


def test_a_stream_after_sql_is_handled_and_retried_too(
    spark: SparkSession,
    mq: Embedded,
    notes: Notes,
    tmp_path: Path,
    stopping: Callable[[StreamingQuery], StreamingQuery],
) -> None:
    produce(mq, "orders", [f"{number}" for number in range(20)])
    stream = spark.readStream.format("penstock").options(**source(mq)).load()

    def handler(message: StoredMessage) -> None:
        notes.add(message)
        if message.body == b"3" and message.reconsume_times == 0:
            raise RetryLater(1)
        if message.body == b"4":
            raise DeadLetter("bad")

    kept = stream.where("CAST(CAST(body AS string) AS int) < 10")
    stopping(consume(kept, handler, group="billing", checkpoint=tmp_path / "cp"))
    eventually(lambda: len(notes.bodies) >= 11)
    assert Counter(notes.bodies) == Counter([*map(str, range(10)), "3"])
    assert [line["topic"] for line in notes.read() if line["body"] == "3"] == ["orders"] * 2
    assert [line["times"] for line in notes.read() if line["body"] == "3"] == [0, 1]
    eventually(lambda: set(dead_now(spark, mq)) == {"4"})
    assert dead_now(spark, mq)["4"]["PENSTOCK_REASON_MESSAGE"] == "bad"
    assert dead_now(spark, mq)["4"]["KEYS"] == "k4"
    lags = [lag for lag in mq.admin.group_lag("billing") if lag.topic == "orders"]
    # Messages that SQL filtered out at the end of a queue are not committed.
    assert [lag.committed for lag in sorted(lags, key=lambda lag: lag.queue_id)] == [3, 3, 2, 2]


def test_what_cannot_keep_the_contract_is_refused(
    spark: SparkSession, mq: Embedded, tmp_path: Path
) -> None:
    mq.admin.create_topic("orders", queues=1)
    stream = spark.readStream.format("penstock").options(**source(mq)).load()

    def handler(message: StoredMessage) -> None: ...

    def refused(words: str, what: Any = stream, call: Any = handler, **how: Any) -> None:
        with pytest.raises(InvalidArgument, match=words):
            consume(what, call, **{"group": "billing", "checkpoint": tmp_path / "cp", **how})

    refused("without order", ordered=True)
    refused("without broker", stream.drop("broker"))
    refused("%RETRY%billing", stream.selectExpr("*", "1 AS x").withColumn("body", _upper()))
    refused("not a stream", spark.read.format("penstock").options(**source(mq)).load())
    refused(
        "from elsewhere",
        spark.readStream.format("rate")
        .load()
        .selectExpr("'t' AS topic", "'b' AS broker", "1 AS queue_id", "value AS offset"),
    )
    refused("a message and a context", call=lambda a, b, c: None)
    lock = threading.Lock()
    refused("cannot be sent to executors: .*lock", call=lambda message: lock.locked())
    refused("checkpoint None", source(mq), checkpoint=None)
    refused("checkpoint ''", source(mq), checkpoint="")
    loaded = spark.readStream.format("penstock").options(**source(mq, group="other")).load()
    refused("'other'", loaded)
    refused("option path", {"path": str(tmp_path)})
    refused("option archive", {**source(mq), "archive": str(tmp_path)})
    refused("option archive", {**source(mq), "Archive": str(tmp_path)})
    refused("option group", {**source(mq), "group": "other"})
    refused("option group is 'Billing'", {**source(mq), "group": "Billing"})
    refused("option ordered", {**source(mq), "ordered": "True"})
    refused("unknown option", {**source(mq), "topics": "orders"})
    refused("group", source(mq), group="no spaces")
    refused("max_retries", source(mq), max_retries=-1)
    refused("as middleware", source(mq), middleware=(print,))
    refused("coroutine function", source(mq), middleware=(_Async(),))


class _Async(Middleware):
    async def before_handle(self, call: HandlerCall) -> None: ...


def _upper() -> Any:
    from pyspark.sql import functions as F

    return F.upper(F.col("body").cast("string")).cast("binary")
