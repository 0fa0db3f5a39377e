"""The environment of a client scenario: names, clients, and helpers to inspect and wait."""

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
    """The scenario found something other than expected."""


class NotApplicable(Exception):
    """This version of the broker lacks the feature; the text gives the reason."""


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
    """Wait until ``condition`` holds; ``what`` describes the failure."""
    deadline = time.monotonic() + wait
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"after {wait:.0f} s: {what()}")
        time.sleep(0.02)


class Seen:
    """Messages received by handlers, from any thread."""

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
        """Wait until all ``bodies`` have arrived."""
        wanted = set(bodies)
        wait_for(
            lambda: wanted <= set(self.bodies),
            lambda: (
                f"{len(wanted - set(self.bodies))} of {len(wanted)} messages never arrived,"
                f" such as {sorted(wanted - set(self.bodies))[:3]}"
            ),
            wait,
        )

    def check_once(self, bodies: Iterable[str]) -> None:
        """Check that each of ``bodies`` arrived exactly once, and nothing else."""
        counted = Counter(self.bodies)
        wanted = set(bodies)
        twice = [body for body, count in counted.items() if count > 1]
        check(not twice, f"{len(twice)} messages arrived more than once, such as {twice[:3]}")
        same(wanted, set(counted), "consumed messages")


class Lab:
    """The environment of one scenario; stops everything that the scenario started."""

    def __init__(self, cluster: Cluster, unique: str, **access: Any) -> None:
        self.cluster = cluster
        self._unique = unique
        self._access = access
        self._stops = ExitStack()
        self.place = self._stops.enter_context(tempfile.TemporaryDirectory())
        self.admin = Admin(namesrv=cluster.namesrv, timeout=10, **access)
        self._stops.callback(self.admin.close)

    def close(self) -> None:
        """Stop the clients in reverse order."""
        self._stops.close()

    def on_close(self, stop: Callable[[], object]) -> None:
        """Register something to stop with the scenario."""
        self._stops.callback(stop)

    def name(self, role: str) -> str:
        return f"{role}-{self._unique}"

    def topic(self, role: str = "topic", queues: int = 4) -> str:
        """Create a topic for this scenario."""
        topic = self.name(role)
        self.admin.create_topic(topic, queues)
        return topic

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for every client: its own session, and frequent route updates."""
        return {
            "namesrv": self.cluster.namesrv,
            "instance": f"i{next(_INSTANCES)}-{self._unique}",
            "route_interval": 1,
            **self._access,
        }

    def producer(self, **options: Any) -> Producer:
        """A started producer without retries, so that each refusal is visible."""
        options = {"send_timeout": 10, "retries": 0, **options}
        producer = Producer(self.name("producer"), **self.settings, **options)
        producer.start()
        self.on_close(producer.stop)
        return producer

    def push(self, group: str | None = None, **options: Any) -> PushConsumer:
        """A push consumer, from the first message; the scenario subscribes and starts it."""
        options = {"start_from": "first", "threads": 4, "offsets_dir": self.place, **options}
        consumer = PushConsumer(group or self.name("group"), **self.settings, **options)
        self.on_close(lambda: consumer.stop(5))
        return consumer

    def collect(
        self, topic: str, group: str | None = None, **options: Any
    ) -> tuple[PushConsumer, Seen]:
        """A started push consumer and the messages it receives."""
        consumer, seen = self.push(group, **options), Seen()
        consumer.on(topic)(seen.add)
        consumer.start()
        return consumer, seen

    def pull(self, group: str | None = None, **options: Any) -> PullConsumer:
        """A pull consumer, from the first message; the scenario subscribes and starts it."""
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
        """The queues of a topic according to the broker."""
        return sorted(
            MessageQueue(one.topic, one.broker_name, one.queue_id)
            for one in self.admin.topic_stats(topic)
        )

    def read(self, topic: str) -> list[StoredMessage]:
        """All messages in a topic, queue by queue."""
        found: list[StoredMessage] = []
        for one in self.admin.topic_stats(topic):
            queue = MessageQueue(one.topic, one.broker_name, one.queue_id)
            offset = one.min_offset
            while offset < one.max_offset:
                part = self.admin.messages(queue, offset)
                found.extend(part.messages)
                check(part.next_offset > offset, f"reading {queue} at {offset} made no progress")
                offset = part.next_offset
        return found

    def read_all(self, topic: str, count: int, wait: float = 20) -> list[StoredMessage]:
        """Wait until the topic contains this many messages, then read them."""
        found: list[StoredMessage] = []

        def enough() -> bool:
            try:
                found[:] = self.read(topic)
            except PenstockError:  # a dead-letter topic is created with its first message
                return False
            return len(found) >= count

        wait_for(enough, lambda: f"{len(found)} of {count} messages in {topic}", wait)
        same(count, len(found), f"messages in {topic}")
        return found

    def lag(self, group: str, topic: str) -> int:
        """The number of messages that the group has not consumed yet, according to the broker."""
        return sum(
            row.lag for row in self.admin.group_lag(group, topic=topic) if row.topic == topic
        )

    def check_no_lag(self, group: str, topic: str) -> None:
        """Check that the committed offsets reach the end (commits are sent every few seconds)."""
        rows = self.admin.group_lag(group, topic=topic)
        same(0, self.lag(group, topic), f"lag of {len(rows)} queues")


def texts(count: int, prefix: str = "m") -> list[str]:
    """Distinct bodies."""
    return [f"{prefix}-{number}" for number in range(count)]
