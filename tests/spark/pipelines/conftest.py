"""What the tests of pipelines share: messages of a shop, and dead letters of its billing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

import pytest

from penstock import DeadLetter, Message, Producer, PushConsumer
from penstock.errors import GroupNotFound
from penstock.model import StoredMessage
from penstock.testing.embedded import Embedded
from penstock.testing.eventually import eventually


class Shop:
    """Sends orders and remembers what it sent."""

    def __init__(self, mq: Embedded) -> None:
        self.mq = mq
        self.sent: dict[str, bytes] = {}
        """Bodies by key."""

    def order(self, count: int, *, topic: str = "orders") -> list[str]:
        """Send so many orders: plain, compressed and in a batch."""
        first = len(self.sent)
        keys = [f"o-{number}" for number in range(first, first + count)]
        messages = []
        for number, key in enumerate(keys, first):
            body = json.dumps({"order": key, "amount": number}).encode()
            if number % 7 == 3:
                body += b" " * 5000
            self.sent[key] = body
            tag = "paid" if number % 2 else "created"
            messages.append(Message(topic, body, keys=[key], tag=tag, properties={"shop": "s1"}))
        with Producer("shop", namesrv=self.mq.namesrv) as producer:
            producer.send_batch([one for one in messages if len(one.body) < 100][: count // 3])
            batched = {one.body for one in [m for m in messages if len(m.body) < 100][: count // 3]}
            for message in messages:
                if message.body not in batched:
                    producer.send(message)
        return keys


def bury(mq: Embedded, group: str, keys: Iterable[str], *, topic: str = "orders") -> None:
    """Have a group give up the messages with these keys, and consume all others."""
    doomed = set(keys)
    handled: list[str] = []
    consumer = PushConsumer(group, namesrv=mq.namesrv, start_from="first")

    @consumer.on(topic)
    def bill(message: StoredMessage) -> None:
        handled.append(message.msg_id)
        if doomed.intersection(message.keys):
            raise DeadLetter(f"no price for {message.keys[0]}")

    behind = _behind(mq, group, topic)
    with consumer:
        wait_until(lambda: len(mq.admin.dead_letters(group)) >= len(doomed))
        wait_until(lambda: len(handled) >= behind)
    # It commits when it stops; the first commit by the clock would come after ten seconds.
    assert not _behind(mq, group, topic)


def _behind(mq: Embedded, group: str, topic: str) -> int:
    """How many messages of a topic the group has not consumed."""
    try:
        rows = mq.admin.group_lag(group, topic=topic)
    except GroupNotFound:
        rows = []
    stored = sum(row.max_offset for row in mq.admin.topic_stats(topic))
    return stored - sum(row.committed for row in rows)


def wait_until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """`penstock.testing.eventually` for tests that block."""
    asyncio.run(eventually(condition, timeout, interval=0.05))


@pytest.fixture
def shop(mq: Embedded) -> Shop:
    """A shop with a topic of two queues."""
    mq.admin.create_topic("orders", 2)
    return Shop(mq)
