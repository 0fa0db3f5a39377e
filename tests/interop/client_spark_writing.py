"""Spark's sink on a real cluster: message content, target queues, and repeats after a restart."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from tests.interop.client_lab import Lab, Seen, check, same, texts, wait_for
from tests.interop.client_spark_lab import spark_session, table

from penstock import Message, MessageQueue
from penstock.spark.sink.deduplication import deduplicate

ROWS = 300


def _write(lab: Lab, frame: DataFrame, **options: str) -> None:
    frame.write.format("penstock").mode("append").options(
        namesrv=lab.cluster.namesrv, **options
    ).save()


def spark_sink(lab: Lab) -> str:
    """Rows in batches: each once, with body, keys, tag, properties and an id that finds it."""
    topic = lab.topic(queues=3)
    frame = spark_session().range(0, ROWS, 1, 2)
    rows = frame.selectExpr(
        "CONCAT('m-', id) AS body",
        "ARRAY(CONCAT('k-', id), 'shared') AS keys",
        "IF(id % 2 = 0, 'even', NULL) AS tags",
        "MAP('colour', CONCAT('c', id % 7), 'size', 'XL') AS properties",
    )
    _write(lab, rows, topic=topic, batchBytes="4096", messageIds="true")
    found = lab.read_all(topic, ROWS)
    same(set(texts(ROWS)), {message.body.decode() for message in found}, "bodies")
    for message in found:
        number = int(message.body[2:])
        same((f"k-{number}", "shared"), tuple(message.keys), f"keys of {number}")
        same("even" if number % 2 == 0 else None, message.tag, f"tag of {number}")
        same(f"c{number % 7}", message.properties.get("colour"), f"property of {number}")
        same("XL", message.properties.get("size"), f"second property of {number}")
    same(3, len({message.queue for message in found}), "queues with rows")
    same(ROWS, len({message.msg_id for message in found}), "ids")
    wait_for(
        lambda: bool(lab.admin.query(topic, f"k-{ROWS - 1}")), lambda: "the index is not up to date"
    )
    same([b"m-17"], [one.body for one in lab.admin.query(topic, "k-17")], "by key")
    one = found[5]
    assert one.msg_id is not None
    same(one.body, lab.admin.message(one.msg_id, topic=topic).body, "by unique id")
    # A broker filters by the hash of the tag, which it computes from the batch.
    consumer, seen, evens = lab.push(), Seen(), texts(ROWS)[::2]
    consumer.on(topic, tags="even")(seen.add)
    consumer.start()
    seen.wait_for(evens)
    consumer.stop()
    seen.check_once(evens)
    return f"{ROWS} rows with keys, tags and properties; by key, by id, and by tag to a consumer"


def spark_sink_topics(lab: Lab) -> str:
    """The column topic: three topics in one write, one of them created by its first message."""
    topics = [lab.topic("a"), lab.topic("b", queues=1), lab.name("new")]
    names = ", ".join(f"'{topic}'" for topic in topics)
    frame = spark_session().range(0, 90, 1, 2)
    big = "REPEAT('x', 2000000)"
    rows = frame.selectExpr(
        f"ELT(CAST(id % 3 AS int) + 1, {names}) AS topic",
        f"IF(id IN (6, 7), {big}, CONCAT('m-', id)) AS body",
    )
    _write(lab, rows)
    for place, topic in enumerate(topics):
        found = sorted(message.body for message in lab.read_all(topic, 30))
        wanted = [f"m-{number}".encode() for number in range(place, 90, 3) if number not in (6, 7)]
        wanted += [b"x" * 2_000_000] * (30 - len(wanted))
        same(Counter(sorted(wanted)), Counter(found), f"bodies in {topic}")
    return "30 rows each in three topics, one created by its first; some bodies of 2 MB"


def spark_sink_delay(lab: Lab) -> str:
    """The column delay, as text and as a level, with other rows that have none."""
    topic = lab.topic()
    frame = spark_session().range(0, 30, 1, 2).selectExpr("id", "CONCAT('m-', id) AS body")
    began = time.time()
    _write(lab, frame.selectExpr("body", "IF(id % 3 = 2, '5s', NULL) AS delay"), topic=topic)
    more = frame.selectExpr("CONCAT('n-', id) AS body", "IF(id % 3 = 1, 1, 0) AS delay")
    _write(lab, more, topic=topic)
    found = lab.read_all(topic, 60, 40)
    due = {("m", 2): 5.0, ("n", 1): 1.0}
    for message in found:
        prefix, _, number = message.body.decode().partition("-")
        waited = message.store_timestamp / 1000 - began
        early = waited < due.get((prefix, int(number) % 3), 0.0) - 0.05
        check(not early, f"{message.body!r} after {waited:.2f} s: early")
        same(topic, message.topic, "topic")
    bodies = Counter(message.body.decode() for message in found)
    same(Counter([*texts(30), *texts(30, "n")]), bodies, "bodies")
    return "10 rows each of levels 1 and 2 and 40 without, never early"


def spark_sink_queues(lab: Lab) -> str:
    """Sharding keys select a producer's queues, in order; keepQueue uses the row's queue."""
    topic, kept, producer = lab.topic(queues=5), lab.topic("kept", queues=3), lab.producer()
    keys = [f"order-{number}" for number in range(8)]
    for key in keys:
        producer.send(Message(topic, f"{key}/-1".encode(), sharding_key=key))
    frame = spark_session().range(0, 200, 1, 1)
    rows = frame.selectExpr(
        "CONCAT('order-', id % 8, '/', id) AS body", "CONCAT('order-', id % 8) AS sharding_key"
    )
    _write(lab, rows, topic=topic, batchBytes="1024")
    queues: dict[str, set[MessageQueue]] = {}
    order: dict[str, list[int]] = {}
    for message in lab.read_all(topic, 208):
        key, _, row = message.body.decode().partition("/")
        same(key, message.properties.get("__SHARDINGKEY"), "property __SHARDINGKEY")
        queues.setdefault(key, set()).add(message.queue)
        order.setdefault(key, []).append(int(row))
    for place, key in enumerate(keys):
        same(1, len(queues[key]), f"queues of {key}, including the producer's message")
        same([-1, *range(place, 200, 8)], order[key], f"order of {key}")
    # A copy of a topic with the same queues and offsets.
    queues_kept = lab.queues(kept)
    for number in range(30):
        queue = queues_kept[number * number % 3]
        producer.send(Message(kept, f"m-{number}".encode()), queue=queue)
    wait_for(lambda: len(lab.read(kept)) == 30, lambda: "not all messages have arrived")
    copy = lab.topic("copy", queues=3)
    originals = table(lab, kept).orderBy("queue_id", "offset").coalesce(1)
    _write(lab, originals, topic=copy, keepQueue="true")
    places = {
        one.body: (one.queue.broker_name, one.queue.queue_id, one.queue_offset)
        for one in lab.read_all(copy, 30)
    }
    for one in lab.read(kept):
        where = (one.queue.broker_name, one.queue.queue_id, one.queue_offset)
        same(where, places[one.body], f"position of {one.body!r} in the copy")
    return "8 keys in the same queues as a producer's, in order; a copy with the same positions"


def _undo_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as if the query died after the sink and before Spark's commit."""
    commits = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    last = max(commits, key=lambda file: int(file.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


def spark_sink_stream(lab: Lab) -> str:
    """A stream that died before its commit and sends its last batch again.

    Penstock's broker stores it once. Others store it twice, and deduplicate drops the repeats.
    """
    source, target = lab.topic("in", queues=3), lab.topic("out", queues=2)
    producer, checkpoint = lab.producer(), Path(lab.place) / "checkpoint"

    def run() -> None:
        reader = spark_session().readStream.format("penstock")
        reader = reader.options(namesrv=lab.cluster.namesrv, topic=source)
        stream = reader.option("startingOffsets", "earliest").load()
        writer = stream.writeStream.format("penstock").option("topic", target)
        writer = writer.options(namesrv=lab.cluster.namesrv, checkpointLocation=str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    first = lab.send(source, texts(40, "a"), producer)
    lab.read_all(source, 40)
    run()
    second = lab.send(source, texts(30, "b"), producer)
    lab.read_all(source, 70)
    run()
    stored = [message.body.decode() for message in lab.read_all(target, 70)]
    same(Counter([*first, *second]), Counter(stored), "messages written by the stream")
    _undo_last_commit(checkpoint)
    run()
    repeats = [] if lab.cluster.is_penstock else second
    # A broker shows messages in the order in which it stored them: repeats are before this one.
    last = lab.send(target, ["last"], producer)
    wanted = [*first, *second, *repeats, *last]
    stored = [message.body.decode() for message in lab.read_all(target, len(wanted))]
    same(Counter(wanted), Counter(stored), "after the restart")
    once = [bytes(row.body).decode() for row in deduplicate(table(lab, target)).collect()]
    same(Counter([*first, *second, *last]), Counter(once), "messages after deduplicate")
    return f"70 messages, 30 sent again after a restart, {len(repeats)} of them stored again"
