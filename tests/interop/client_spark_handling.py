"""Handlers on Spark executors as a consumer group of a real cluster."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from tests.interop.client_lab import PATIENCE, Lab, check, same, texts, wait_for
from tests.interop.client_spark_lab import Call, Notes, spark_session, table

from penstock import DeadLetter, Message, RetryLater, StoredMessage
from penstock.client.consuming.listeners import HandlerFunction
from penstock.spark.handlers.consume import consume

RETRY_PATIENCE = 80.0
NOW = {"availableNow": True}


def started(lab: Lab, topic: str, handler: HandlerFunction, **options: Any) -> StreamingQuery:
    """A query that handles a topic from its first message, with the scenario's group."""
    spark_session()  # creates the session with the settings of this run
    read = {"namesrv": lab.cluster.namesrv, "topic": topic, "startingOffsets": "earliest"}
    place = Path(lab.place) / "checkpoint"
    query = consume(read, handler, group=lab.name("group"), checkpoint=place, **options)
    lab.on_close(query.stop)
    return query


def _is_running(query: StreamingQuery) -> bool:
    """True; fails at once with the reason if the query has ended."""
    check(query.isActive, f"the query ended: {query.exception()}")
    return True


def dead_properties(lab: Lab) -> dict[str, dict[str, str]]:
    """The properties of the group's dead letters, as read by Spark."""
    name = f"%DLQ%{lab.name('group')}"
    if name not in lab.admin.topics(internal=True):
        return {}
    return {bytes(row.body).decode(): row.properties for row in table(lab, name).collect()}


def spark_consume(lab: Lab) -> str:
    """Each message once; offsets are committed only when every outcome is known."""
    topic, notes, gate = lab.topic(), Notes(lab.place), Path(lab.place) / "gate"
    sent = lab.send(topic, texts(100))
    lab.read_all(topic, 100)

    def handler(message: StoredMessage) -> None:
        notes.add(message, time.time())
        while message.body == b"m-50" and not gate.exists():
            time.sleep(0.02)

    def committed() -> int:
        rows = lab.admin.group_lag(lab.name("group"), topic=topic)
        return sum(max(row.committed, 0) for row in rows if row.topic == topic)

    query = started(lab, topic, handler)
    wait_for(
        lambda: _is_running(query) and "m-50" in notes.bodies,
        lambda: f"{len(notes.bodies)} handled, but not the one that waits",
    )
    check(len(notes.bodies) > 1, "the message that waits was the first")
    same(0, committed(), "committed while a message is in its handler")
    gate.touch()
    wait_for(lambda: len(notes.bodies) == 100, lambda: f"{len(notes.bodies)} handled")
    wait_for(lambda: committed() == 100, lambda: f"{committed()} of 100 committed")
    query.stop()
    same(Counter(sent), Counter(notes.bodies), "handled messages")
    same({(0, topic)}, {(call.times, call.topic) for call in notes.read()}, "attempts and topics")
    # The next member of the group continues there, even without Spark and its checkpoint.
    push, seen = lab.collect(topic)
    after = lab.send(topic, texts(5, "after"))
    seen.wait_for(after)
    push.stop()
    seen.check_once(after)
    return "100 messages, none committed before all were handled; a push consumer continues"


def spark_consume_retries(lab: Lab) -> str:
    """Send-backs with a level or the broker's choice, and dead letters with reasons."""
    topic, notes, producer = lab.topic(), Notes(lab.place), lab.producer()
    for body in ("fine", "once", "later", "never", "poison"):
        message = Message(topic, body.encode(), keys=[f"k-{body}"], properties={"colour": "red"})
        producer.send(message)
    lab.read_all(topic, 5)

    def handler(message: StoredMessage) -> None:
        notes.add(message, time.time())
        body, times = message.body, message.reconsume_times
        if body == b"once" and times == 0:
            raise RetryLater(1, "not yet")
        if body == b"later" and times == 0:
            raise RetryLater("5s", "much later")
        if body == b"never":
            raise RetryLater(1) if times == 0 else ValueError("no such account")
        if body == b"poison":
            raise DeadLetter("cannot be parsed")

    query = started(lab, topic, handler, max_retries=1)
    want = {"fine": [0], "once": [0, 1], "later": [0, 1], "never": [0, 1], "poison": [0]}

    def attempts() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for call in notes.read():
            found.setdefault(call.body, []).append(call.times)
        return found

    wait_for(
        lambda: _is_running(query) and attempts() == want and len(dead_properties(lab)) == 2,
        lambda: f"attempts {attempts()}, dead letters {sorted(dead_properties(lab))}",
        RETRY_PATIENCE,
    )
    wait_for(lambda: lab.lag(lab.name("group"), topic) == 0, lambda: "the group still has lag")
    query.stop()
    same(want, attempts(), "attempts")
    same({topic}, {call.topic for call in notes.read()}, "topics seen by the handler")
    waits = {body: _waited(notes.read(), body) for body in ("once", "never", "later")}
    for body, level in (("once", 1.0), ("never", 1.0), ("later", 5.0)):
        check(waits[body] >= level - 0.05, f"{body} redelivered after {waits[body]:.2f} s: early")
    letters = dead_properties(lab)
    for body, kind, text, attempt in (
        ("never", "ValueError", "no such account", "2"),
        ("poison", "DeadLetter", "cannot be parsed", "1"),
    ):
        found = letters[body]
        reason = [found.get(f"PENSTOCK_REASON_{what}") for what in ("TYPE", "MESSAGE", "ATTEMPT")]
        same([kind, text, attempt], reason, f"reason of {body}")
        same(
            (f"k-{body}", "red"),
            (found.get("KEYS"), found.get("colour")),
            f"keys and property of {body}",
        )
    return "levels 1 and 2, never early; two dead letters with type, text and attempt"


def _waited(calls: list[Call], body: str) -> float:
    first, second = (call.moment for call in calls if call.body == body)
    return second - first


def spark_consume_ordered(lab: Lab) -> str:
    """In order: a queue waits for a failing message and continues after a dead letter."""
    topic, notes, producer = lab.topic(queues=2), Notes(lab.place), lab.producer()
    queues = lab.queues(topic)
    for number in range(40):
        message = Message(topic, f"m-{number}".encode())
        producer.send(message, queue=queues[number % 2])
    lab.read_all(topic, 40)

    def handler(message: StoredMessage) -> None:
        notes.add(message, time.time())
        if message.body == b"m-7" and message.reconsume_times < 2:
            raise RetryLater(1, "again")
        if message.body == b"m-8":
            raise DeadLetter("bad")

    query = started(lab, topic, handler, ordered=True, trigger=NOW)
    check(query.awaitTermination(int(PATIENCE)) is True, "not finished in time")
    calls = notes.read()
    same(Counter([*texts(40), "m-7", "m-7"]), Counter(notes.bodies), "calls")
    for queue in (0, 1):
        steps = [(call.offset, call.times) for call in calls if call.queue_id == queue]
        same(sorted(steps), steps, f"order of queue {queue}")
    wait_for(
        lambda: set(dead_properties(lab)) == {"m-8"},
        lambda: f"dead letters {sorted(dead_properties(lab))}",
    )
    same("bad", dead_properties(lab)["m-8"].get("PENSTOCK_REASON_MESSAGE"), "reason")
    wait_for(lambda: lab.lag(lab.name("group"), topic) == 0, lambda: "the group still has lag")
    return "2 queues of 20 in order; one message three times in place, one a dead letter"


def spark_consume_stream(lab: Lab) -> str:
    """A handler after SQL: rows become messages again; failed ones are fetched and sent back."""
    topic, notes = lab.topic(), Notes(lab.place)
    lab.send(topic, texts(40))
    lab.read_all(topic, 40)

    def handler(message: StoredMessage) -> None:
        notes.add(message, time.time())
        if message.body == b"m-3" and message.reconsume_times == 0:
            raise RetryLater(1)
        if message.body == b"m-4":
            raise DeadLetter("bad")

    reader = spark_session().readStream.format("penstock")
    reader = reader.options(namesrv=lab.cluster.namesrv, topic=topic, startingOffsets="earliest")
    kept = reader.load().where("LENGTH(body) = 3")
    place = Path(lab.place) / "checkpoint"
    query = consume(kept, handler, group=lab.name("group"), checkpoint=place)
    lab.on_close(query.stop)
    wait_for(
        lambda: _is_running(query) and len(notes.bodies) >= 11 and bool(dead_properties(lab)),
        lambda: f"calls {notes.bodies}, dead letters {sorted(dead_properties(lab))}",
        RETRY_PATIENCE,
    )
    query.stop()
    same(Counter([*texts(10), "m-3"]), Counter(notes.bodies), "calls")
    again = [(call.times, call.topic) for call in notes.read() if call.body == "m-3"]
    same([(0, topic), (1, topic)], again, "attempts of the failing message")
    same({"m-4"}, set(dead_properties(lab)), "dead letters")
    same("bad", dead_properties(lab)["m-4"].get("PENSTOCK_REASON_MESSAGE"), "reason")
    return "10 of 40 by SQL, one retried from its row, one a dead letter with its reason"
