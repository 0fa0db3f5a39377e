"""Spark's source on a real cluster: planning, fetching and streaming, as the workers run them.

Spark itself would add a JVM but nothing on the wire, so the readers are called directly.
"""

from __future__ import annotations

import threading
import time

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.interop.client_lab import Lab, check, same, wait_for

from penstock import Message
from penstock.spark.source.options import parse_read
from penstock.spark.source.readers import BatchReader, StreamReader
from penstock.spark.source.stream_driver import read_offsets

Row = tuple[object, ...]
PLACE = ("topic", "broker", "queue_id", "offset")


def _options(lab: Lab, **options: str) -> dict[str, str]:
    return {"namesrv": lab.cluster.namesrv, **options}


def _batch(lab: Lab, columns: tuple[str, ...], **options: str) -> list[Row]:
    reader = BatchReader(parse_read(_options(lab, **options)), columns, 2)
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def _bodies(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[str]:
    return sorted(
        body.decode()
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for body in batch.column(0).to_pylist()
    )


def spark_batch(lab: Lab) -> str:
    """All rows once with all columns: many small pulls, tags, compressed and batched messages."""
    topic, producer = lab.topic(queues=3), lab.producer(compress_over=1000)
    sent = {}
    for number in range(400):
        size = 3000 if number % 50 == 0 else 20
        message = Message(
            topic, f"{number:0{size}}".encode(), tag="ab"[number % 2], keys=[f"k-{number}"]
        )
        receipt = producer.send(message)
        sent[(*receipt.queue, receipt.queue_offset)] = (message, receipt.msg_id)
    together = [Message(topic, f"batch {number}".encode()) for number in range(10)]
    producer.send_batch(together)
    rows = _batch(lab, (*PLACE, "msg_id", "keys", "tags", "body", "properties"), topic=topic)
    found = {row[:4]: row for row in rows}
    same(410, len(rows), "rows")
    same(410, len(found), "positions of rows")
    for place, (message, msg_id) in sent.items():
        row = found[place]
        same((msg_id, list(message.keys), message.tag, message.body), row[4:8], f"row of {place}")
    tagged = _batch(lab, ("body",), topic=topic, tags="b")
    same(200, len(tagged), "rows with tag b")
    cut = _batch(lab, ("offset",), topic=topic, startingTimestamp="2999-01-01T00:00:00Z")
    same([], cut, "rows after the last message")
    return "410 rows with ids, keys, tags and bodies; 200 by tag"


def spark_stream(lab: Lab) -> str:
    """A stream that begins at the end: limits, the long poll, and the progress of the group."""
    topic, group, producer = lab.topic(queues=2), lab.name("group"), lab.producer()
    lab.send(topic, ["before"], producer)
    options = _options(lab, topic=topic, group=group, pollTimeoutMs="10000")
    reader = StreamReader(parse_read(options), ("body",), 2)
    lab.on_close(reader.stop)
    # An Apache broker adds a message to its queue shortly after it accepts it.
    wait_for(
        lambda: sum(read_offsets(reader.initialOffset()).values()) == 1,
        lambda: f"the stream begins at {reader.initialOffset()}",
    )
    place = reader.initialOffset()
    seen: list[str] = []
    for number in range(3):
        timer = threading.Timer(0.3, lab.send, (topic, [f"m-{number}"], producer))
        timer.start()
        begun = time.monotonic()
        end = reader.latestOffset(place, ReadAllAvailable())
        waited = time.monotonic() - begun
        timer.join()
        check(waited < 9, f"the long poll took {waited:.1f} s to return a message")
        seen += _bodies(reader, place, end)
        place = end
    same(["m-0", "m-1", "m-2"], seen, "messages read by the stream")
    lab.send(topic, [f"n-{number:02}" for number in range(50)], producer)
    while len(seen) < 53:
        end = reader.latestOffset(place, ReadMaxRows(20))
        part = _bodies(reader, place, end)
        check(0 < len(part) <= 20, f"a batch of {len(part)} instead of 1 to 20")
        seen += part
        place = end
    same(53, len(set(seen)), "messages")
    # The group's offsets are committed when the next batch is requested; that batch is empty.
    idle = StreamReader(parse_read({**options, "pollTimeoutMs": "0"}), ("body",), 2)
    lab.on_close(idle.stop)
    idle.latestOffset(place, ReadAllAvailable())
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: f"lag {lab.lag(group, topic)}")
    return "53 messages, 3 of them each by a long poll; no lag left"
