"""Failures in our push consumer on a real broker: retries, dead letters and stored reasons."""

from __future__ import annotations

from collections import defaultdict

from tests.interop.client_lab import Lab, check, same, wait_for

from penstock import DeadLetter, Message, RetryLater, StoredMessage
from penstock.admin.reports import DeadLetterRow

RETRY_PATIENCE = 80.0
"""Seconds: a broker's first delayed retry, after the consumer has found its retry topic."""


def _poison(lab: Lab, topic: str) -> None:
    lab.producer().send(
        Message(topic, b"poison", keys=["k-1"], tag="bad", properties={"colour": "red"})
    )


def _dead_letter(lab: Lab, group: str) -> DeadLetterRow:
    found: list[DeadLetterRow] = []

    def there() -> bool:
        found[:] = lab.admin.dead_letters(group)
        return bool(found)

    wait_for(there, lambda: "no dead letter", RETRY_PATIENCE)
    same(1, len(found), "dead letters")
    return found[0]


def _check_letter(row: DeadLetterRow, topic: str, kind: str, reason: str, attempt: int) -> str:
    same(b"poison", row.message.body, "body")
    same("red", row.message.properties.get("colour"), "property")
    same(("k-1",), tuple(row.message.keys), "keys")
    same(topic, row.origin_topic, "origin topic")
    same((kind, reason), (row.reason_type, row.reason), "reason")
    same(attempt, row.attempt, "attempt")
    check(bool(row.host), "no host in the reason")
    return f"dead letter with {kind}({reason!r}), attempt {attempt}"


def retry_to_success(lab: Lab) -> str:
    topic, consumer = lab.topic(), lab.push()
    tries: dict[str, list[tuple[int, str]]] = defaultdict(list)

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        tries[message.body.decode()].append((message.reconsume_times, message.topic))
        if message.body == b"m-1" and message.reconsume_times < 2:
            raise RetryLater(1)

    consumer.start()
    lab.send(topic, ["m-0", "m-1", "m-2"])
    wait_for(lambda: len(tries["m-1"]) == 3, lambda: f"attempts {dict(tries)}", RETRY_PATIENCE)
    consumer.stop()
    same([(0, topic), (1, topic), (2, topic)], tries["m-1"], "attempts of the failing message")
    same([(0, topic)], tries["m-0"], "attempts of another message")
    lab.check_no_lag(lab.name("group"), topic)
    return "attempts 0, 1, 2 under its own topic"


def retry_to_dead_letters(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    consumer = lab.push(group, max_retries=1)
    attempts: list[int] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise RetryLater(1, "not yet")
        raise ValueError("no such account")

    consumer.start()
    _poison(lab, topic)
    row = _dead_letter(lab, group)
    consumer.stop()
    same([0, 1], attempts, "attempts")
    return _check_letter(row, topic, "ValueError", "no such account", 2)


def dead_letter_at_once(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    consumer = lab.push(group)
    attempts: list[int] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise DeadLetter("cannot be parsed")

    consumer.start()
    _poison(lab, topic)
    row = _dead_letter(lab, group)
    consumer.stop()
    same([0], attempts, "attempts")
    lab.check_no_lag(group, topic)
    return _check_letter(row, topic, "DeadLetter", "cannot be parsed", 1)


def retry_orderly_to_dead_letters(lab: Lab) -> str:
    topic, group = lab.topic(queues=1), lab.name("group")
    consumer = lab.push(group, orderly=True, max_retries=1, suspend_time="100ms")
    attempts: list[tuple[bytes, int]] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        attempts.append((message.body, message.reconsume_times))
        if message.body == b"poison":
            raise ValueError("no such account")

    _poison(lab, topic)
    lab.send(topic, ["after"])
    consumer.start()
    row = _dead_letter(lab, group)
    wait_for(lambda: (b"after", 0) in attempts, lambda: f"the queue is blocked: {attempts}")
    consumer.stop()
    same([(b"poison", 0), (b"poison", 1), (b"after", 0)], attempts, "attempts")
    return _check_letter(row, topic, "ValueError", "no such account", 2)
