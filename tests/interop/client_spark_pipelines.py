"""Spark pipelines on a real cluster: dead letters are redriven, topics archived."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from tests.interop.client_lab import PATIENCE, Lab, same, texts, wait_for
from tests.interop.client_spark_handling import NOW, RETRY_PATIENCE, started
from tests.interop.client_spark_lab import Notes, spark_session

from penstock import DeadLetter, Message, StoredMessage
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.dead_letters import dead_letters
from penstock.spark.pipelines.redrive import redrive


def spark_redrive(lab: Lab) -> str:
    """Dead letters as a table with reasons; repaired, redriven once, handled."""
    topic, group, notes = lab.topic(), lab.name("group"), Notes(lab.place)
    lab.send(topic, texts(6))
    lab.read_all(topic, 6)

    def handler(message: StoredMessage) -> None:
        notes.add(message, time.time())
        if message.body in (b"m-1", b"m-4"):
            raise DeadLetter(f"no {message.body.decode()}")

    started(lab, topic, handler, trigger=NOW).awaitTermination(int(PATIENCE))
    spark, namesrv = spark_session(), lab.cluster.namesrv

    def letters() -> DataFrame:
        return dead_letters(spark, group, namesrv=namesrv)

    wait_for(lambda: letters().count() == 2, lambda: f"{letters().count()} dead letters of 2")
    rows = [(bytes(row.body), row.reason_type, row.reason) for row in letters().collect()]
    want = [(f"m-{n}".encode(), "DeadLetter", f"no m-{n}") for n in (1, 4)]
    same(want, sorted(rows), "dead letters with reasons")
    fixed = letters().selectExpr("* EXCEPT (body)", "CONCAT(body, '-fixed') AS body")
    audit = Path(lab.place) / "audit"
    result = redrive(fixed, group=group, audit=audit, namesrv=namesrv)
    same(2, result.redriven, "redriven")
    again = redrive(
        dead_letters(spark, group, settled=True, namesrv=namesrv),
        group=group,
        audit=audit,
        namesrv=namesrv,
    )
    same(0, again.redriven, "redriven a second time")
    # Any client of the group receives the redriven messages.
    push, seen = lab.collect(topic, group)
    seen.wait_for(["m-1-fixed", "m-4-fixed"], RETRY_PATIENCE)
    push.stop()
    seen.check_once(["m-1-fixed", "m-4-fixed"])
    same({topic}, {message.topic for message in seen.messages}, "topics of the redriven messages")
    return "2 dead letters with reasons; repaired, sent once, consumed with their original topic"


def spark_archive(lab: Lab) -> str:
    """A topic as Parquet in several runs, each message once."""
    topic, target = lab.topic(), Path(lab.place) / "archive"
    producer, spark = lab.producer(), spark_session()
    total = 0
    for count in (200, 0, 50):
        for number in range(total, total + count):
            message = Message(topic, f"m-{number}".encode(), keys=[f"k-{number}"])
            producer.send(message)
        total += count
        lab.read_all(topic, total)
        result = archive(spark, topic, target, namesrv=lab.cluster.namesrv)
        same((count, total), (result.archived, result.total), "rows of the run, and of the archive")
    rows = spark.read.parquet(str(target)).collect()
    same(Counter(texts(total)), Counter(bytes(row.body).decode() for row in rows), "bodies")
    places = {(row.broker, row.queue_id, row.offset): row for row in rows}
    for stored in lab.read(topic):
        row = places[stored.queue.broker_name, stored.queue.queue_id, stored.queue_offset]
        same((stored.body, list(stored.keys)), (bytes(row.body), row["keys"]), "row")
    return f"{total} messages in three runs, each once and in its position"
