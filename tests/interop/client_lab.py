"""What a scenario of our own client works with: names, clients, ways to look and wait."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from tests.interop.servers import Cluster

from penstock import (
    Admin,
    Message,
    MessageQueue,
    PenstockError,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)

PATIENCE = 50.0
"""Seconds: a member that misses its first rebalance waits 20 s for the next one."""
_INSTANCES = itertools.count(1)


class Failed(Exception):
    """What was seen is not what must be."""


class NotApplicable(Exception):
    """This version of the broker has no such thing; the text says why."""


def check(holds: bool, otherwise: str) -> None:
    """Fail the scenario unless ``holds``."""
    if not holds:
        raise Failed(otherwise)


def same(expected: object, found: object, what: str) -> None:
    """Fail the scenario unless both are equal."""
    check(expected == found, f"{what}: expected {expected!r}, found {found!r}")


def wait_for(
    condition: Callable[[], bool], what: Callable[[], str], wait: float = PATIENCE
) -> None:
    """Wait until ``condition`` holds; ``what`` says what did not come true."""
    deadline = time.monotonic() + wait
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"after {wait:.0f} s: {what()}")
        time.sleep(0.02)


class Seen:
    """Messages as handlers got them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[StoredMessage] = []

    def add(self, *messages: StoredMessage) -> None:
        with self._lock:
            self.messages.extend(messages)

    @property
    def bodies(self) -> list[str]:
        with self._lock:
            return [message.body.decode() for message in self.messages]

    def __len__(self) -> int:
        return len(self.messages)

    def wait_for(self, bodies: Iterable[str], wait: float = PATIENCE) -> None:
        """Wait until all of ``bodies`` came."""
        wanted = set(bodies)
        wait_for(
            lambda: wanted <= set(self.bodies),
            lambda: (
                f"{len(wanted - set(self.bodies))} of {len(wanted)} messages never came,"
                f" such as {sorted(wanted - set(self.bodies))[:3]}"
            ),
            wait,
        )

    def check_once(self, bodies: Iterable[str]) -> None:
        """Every one of ``bodies`` came exactly once, and nothing else."""
        counted = Counter(self.bodies)
        wanted = set(bodies)
        twice = [body for body, count in counted.items() if count > 1]
        check(not twice, f"{len(twice)} messages came more than once, such as {twice[:3]}")
        same(wanted, set(counted), "what was consumed")


class Lab:
    """One scenario's workplace; everything it started is stopped with it."""

    def __init__(self, cluster: Cluster, unique: str, **access: Any) -> None:
        self.cluster = cluster
        self._unique = unique
        self._access = access
        self._stops = ExitStack()
        self.place = self._stops.enter_context(tempfile.TemporaryDirectory())
        self.admin = Admin(namesrv=cluster.namesrv, timeout=10, **access)
        self._stops.callback(self.admin.close)

    def close(self) -> None:
        """Stop the clients, the last one first."""
        self._stops.close()

    def on_close(self, stop: Callable[[], object]) -> None:
        """Have something stopped with the scenario."""
        self._stops.callback(stop)

    def name(self, role: str) -> str:
        return f"{role}-{self._unique}"

    def topic(self, role: str = "topic", queues: int = 4) -> str:
        """Create a topic of this scenario."""
        topic = self.name(role)
        self.admin.create_topic(topic, queues)
        return topic

    @property
    def settings(self) -> dict[str, Any]:
        """What every client is given: a session of its own that soon sees new topics."""
        return {
            "namesrv": self.cluster.namesrv,
            "instance": f"i{next(_INSTANCES)}-{self._unique}",
            "route_interval": 1,
            **self._access,
        }

    def producer(self, **options: Any) -> Producer:
        """A producer that runs; without retries, so that each refusal shows."""
        options = {"send_timeout": 10, "retries": 0, **options}
        producer = Producer(self.name("producer"), **self.settings, **options)
        producer.start()
        self.on_close(producer.stop)
        return producer

    def push(self, group: str | None = None, **options: Any) -> PushConsumer:
        """A push consumer from the first message on; the scenario subscribes and starts it."""
        options = {"start_from": "first", "threads": 4, "offsets_dir": self.place, **options}
        consumer = PushConsumer(group or self.name("group"), **self.settings, **options)
        self.on_close(lambda: consumer.stop(5))
        return consumer

    def collect(
        self, topic: str, group: str | None = None, **options: Any
    ) -> tuple[PushConsumer, Seen]:
        """A running push consumer and what it gets."""
        consumer, seen = self.push(group, **options), Seen()
        consumer.on(topic)(seen.add)
        consumer.start()
        return consumer, seen

    def pull(self, group: str | None = None, **options: Any) -> PullConsumer:
        """A pull consumer from the first message on; the scenario subscribes and starts it."""
        consumer = PullConsumer(
            group or self.name("group"), **self.settings, **{"start_from": "first", **options}
        )
        self.on_close(consumer.stop)
        return consumer

    def send(
        self, topic: str, bodies: Sequence[str], producer: Producer | None = None
    ) -> list[str]:
        """Send texts one after the other."""
        producer = producer or self.producer()
        for body in bodies:
            producer.send(Message(topic, body.encode()))
        return list(bodies)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic as the broker tells them."""
        return sorted(
            MessageQueue(one.topic, one.broker_name, one.queue_id)
            for one in self.admin.topic_stats(topic)
        )

    def read(self, topic: str) -> list[StoredMessage]:
        """Everything a topic holds now, queue by queue."""
        found: list[StoredMessage] = []
        for one in self.admin.topic_stats(topic):
            queue = MessageQueue(one.topic, one.broker_name, one.queue_id)
            offset = one.min_offset
            while offset < one.max_offset:
                part = self.admin.messages(queue, offset)
                found.extend(part.messages)
                check(part.next_offset > offset, f"reading {queue} at {offset} made no step")
                offset = part.next_offset
        return found

    def read_all(self, topic: str, count: int, wait: float = 20) -> list[StoredMessage]:
        """Wait until the topic holds this many messages and read them."""
        found: list[StoredMessage] = []

        def enough() -> bool:
            try:
                found[:] = self.read(topic)
            except PenstockError:  # dead-letter topics are made with their first message
                return False
            return len(found) >= count

        wait_for(enough, lambda: f"{len(found)} of {count} messages in {topic}", wait)
        same(count, len(found), f"messages in {topic}")
        return found

    def lag(self, group: str, topic: str) -> int:
        """What a group still has to get of a topic, as the broker counts it."""
        return sum(
            row.lag for row in self.admin.group_lag(group, topic=topic) if row.topic == topic
        )

    def check_no_lag(self, group: str, topic: str) -> None:
        """The group's committed offsets reach the end (commits go out every few seconds)."""
        rows = self.admin.group_lag(group, topic=topic)
        same(0, self.lag(group, topic), f"lag of {len(rows)} queues")


def texts(count: int, prefix: str = "m") -> list[str]:
    """Bodies that differ."""
    return [f"{prefix}-{number}" for number in range(count)]
