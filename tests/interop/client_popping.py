"""Our pop consumers on a real broker: SimpleConsumer, and a push consumer that pops."""

from __future__ import annotations

import time
from typing import Any

from tests.interop.client_lab import Lab, Seen, check, same, texts, wait_for

from penstock import SimpleConsumer, StoredMessage
from penstock.errors import RequestCodeNotSupported


def _simple(lab: Lab, topic: str, group: str, **more: Any) -> SimpleConsumer:
    consumer = SimpleConsumer(group, **lab.settings, **{"start_from": "first", **more})
    consumer.subscribe(topic)
    return consumer


def _has_pop(consumer: SimpleConsumer) -> bool:
    try:
        consumer.receive(wait=0)
    except RequestCodeNotSupported as error:
        check("4.9 has no POP_MESSAGE" in str(error), f"the error says: {error}")
        return False
    return True


def pop_simple(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    with _simple(lab, topic, group, invisible="10s") as consumer:
        if not _has_pop(consumer):
            return "no pop here, and the error says so"
        bodies = set(lab.send(topic, texts(30)))
        got: list[StoredMessage] = []
        deadline = time.monotonic() + 60
        while len(got) < 30 and time.monotonic() < deadline:
            found = consumer.receive(32, wait="2s")
            got += found
            consumer.ack_all([one for one in found if one.body not in _kept(found)])
        same(bodies, {one.body.decode() for one in got}, "bodies")
        kept = [one for one in got if one.body in _kept(got)]
        again: list[StoredMessage] = []
        while len(again) < len(kept) and time.monotonic() < deadline:
            for message in consumer.receive(32, wait="2s"):
                same(1, message.reconsume_times, "reconsume_times")
                same(topic, message.topic, "topic")
                consumer.ack(message)
                again.append(message)
        same({one.body for one in kept}, {one.body for one in again}, "what came again")
    return f"30 received, {len(kept)} left and received again"


def _kept(messages: list[StoredMessage]) -> set[bytes]:
    """The messages that are not acknowledged at first."""
    return {one.body for one in messages if one.body.endswith((b"3", b"7"))}


def _receive(consumer: SimpleConsumer, into: list[StoredMessage], count: int) -> None:
    def enough() -> bool:
        into.extend(consumer.receive(wait="1s"))
        return len(into) >= count

    wait_for(enough, lambda: f"{len(into)} of {count} messages received")


def pop_extend_and_reject(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    with _simple(lab, topic, group, invisible="10s") as consumer:
        if not _has_pop(consumer):
            return "no pop here, and the error says so"
        lab.send(topic, texts(2))
        got: list[StoredMessage] = []
        _receive(consumer, got, 2)
        extended, rejected = got
        consumer.extend(extended, "40s")
        consumer.reject(rejected)
        again: list[StoredMessage] = []
        _receive(consumer, again, 1)
        same([rejected.body], [one.body for one in again], "what came again")
        consumer.ack_all(again)
        same([], consumer.receive(wait="15s"), "before the extended time is up")
        consumer.ack(extended)
    return "rejected: again at once; extended: kept"


def pop_push(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    seen = Seen()
    failed: set[str] = set()
    consumer = lab.push(group, mode="pop", invisible="15s")

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        text = message.body.decode()
        if text.endswith("5") and text not in failed:
            failed.add(text)
            raise RuntimeError("once")
        seen.add(message)

    bodies = lab.send(topic, texts(40))
    try:
        consumer.start()
    except RequestCodeNotSupported as error:
        check("4.9 has no pop" in str(error), f"the error says: {error}")
        return "no pop here, and the error says so"
    seen.wait_for(bodies)
    return f"40 messages, {len(failed)} after a failure"
