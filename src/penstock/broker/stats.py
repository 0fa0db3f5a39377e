"""What the broker counts: messages in and out, by queue, topic and group.

Counting happens on the hot paths, so it is done once, for the queue: two look-ups and three
additions. Everything that is worked out of the numbers (topics, totals, rates, averages, days) is
worked out when somebody asks, of samples that `rate_sampler` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Counter:
    """A number of messages, their bytes, and in how many goes they came."""

    __slots__ = ("calls", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.calls = 0

    def add(self, other: Counter) -> None:
        """Count what another one counted."""
        self.count += other.count
        self.size += other.size
        self.calls += other.calls

    def become_sum_of(self, parts: Iterable[Counter]) -> Counter:
        """Count what the parts did; itself, since whoever samples knows counters by identity."""
        self.count = self.size = self.calls = 0
        for part in parts:
            self.add(part)
        return self


class QueueCounter(Counter):
    """What went through one queue, and how long some of it took."""

    __slots__ = ("seconds", "timed")

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.timed = 0
        """How many goes ``seconds`` is the sum of."""

    def took(self, seconds: float) -> None:
        """One go was timed."""
        self.seconds += seconds
        self.timed += 1


class _Flow:
    """Counters by queue under one key, and their sums."""

    __slots__ = ("queues", "total")

    def __init__(self) -> None:
        self.queues: dict[int, QueueCounter] = {}
        self.total = Counter()

    def summed(self) -> Counter:
        return self.total.become_sum_of(self.queues.values())


class BrokerStats:
    """All counters of one broker."""

    def __init__(self) -> None:
        self._puts: dict[str, _Flow] = {}
        """By topic: what was stored."""
        self._gets: dict[tuple[str, str], _Flow] = {}
        """By topic and group: what was handed to consumers."""
        self.sent_backs: dict[tuple[str, str], Counter] = {}
        """By topic and group: what consumers could not handle."""
        self.dead_letters: dict[str, Counter] = {}
        """By group: what was given up."""
        self._put_total = Counter()
        self._get_total = Counter()
        self._gone_puts = Counter()
        self._gone_gets = Counter()

    # Counting

    def put(self, topic: str, queue_id: int, size: int, count: int = 1) -> None:
        """Messages were stored."""
        try:
            counter = self._puts[topic].queues[queue_id]
        except KeyError:
            counter = self._new_put(topic, queue_id)
        counter.count += count
        counter.size += size
        counter.calls += 1

    def queue_puts(self, topic: str, queue_id: int) -> QueueCounter:
        """What was stored in a queue, to be counted on until the topic is gone."""
        return self._new_put(topic, queue_id)

    def put_took(self, topic: str, queue_id: int, seconds: float) -> None:
        """From the moment a message was taken in until it may be acknowledged."""
        flow = self._puts.get(topic)
        counter = None if flow is None else flow.queues.get(queue_id)
        if counter is not None:
            counter.took(seconds)

    def get(
        self, group: str, topic: str, queue_id: int, count: int, size: int, seconds: float | None
    ) -> None:
        """Messages were handed to a consumer; finding them took so long, if that was timed."""
        try:
            counter = self._gets[topic, group].queues[queue_id]
        except KeyError:
            counter = self._new_get(topic, group, queue_id)
        counter.count += count
        counter.size += size
        counter.calls += 1
        if seconds is not None:
            counter.took(seconds)

    def _new_put(self, topic: str, queue_id: int) -> QueueCounter:
        flow = self._puts.setdefault(topic, _Flow())
        return flow.queues.setdefault(queue_id, QueueCounter())

    def _new_get(self, topic: str, group: str, queue_id: int) -> QueueCounter:
        flow = self._gets.setdefault((topic, group), _Flow())
        return flow.queues.setdefault(queue_id, QueueCounter())

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer could not handle a message."""
        _count(self.sent_backs.setdefault((topic, group), Counter()))

    def dead_letter(self, group: str) -> None:
        """A message was given up."""
        _count(self.dead_letters.setdefault(group, Counter()))

    # For everybody who reads the numbers

    def puts_of(self, topic: str) -> Counter:
        """What was stored in a topic."""
        flow = self._puts.get(topic)
        return Counter() if flow is None else flow.summed()

    @property
    def put_total(self) -> Counter:
        """Everything that was stored since the start."""
        total = self._put_total.become_sum_of(f.summed() for f in self._puts.values())
        total.add(self._gone_puts)
        return total

    @property
    def get_total(self) -> Counter:
        """Everything that was handed to consumers since the start."""
        total = self._get_total.become_sum_of(f.summed() for f in self._gets.values())
        total.add(self._gone_gets)
        return total

    def named(self, cluster: str) -> Iterator[tuple[str, str, Counter]]:
        """Counters of topics, groups and the broker with RocketMQ's names for them and their
        keys; sizes are named apart."""
        for topic, flow in self._puts.items():
            yield "TOPIC_PUT", topic, flow.summed()
        for (topic, group), flow in self._gets.items():
            yield "GROUP_GET", f"{topic}@{group}", flow.summed()
        for (topic, group), counter in self.sent_backs.items():
            yield "SNDBCK_PUT", f"{topic}@{group}", counter
        for group, counter in self.dead_letters.items():
            yield "DLQ_PUT", group, counter
        yield "BROKER_PUT", cluster, self.put_total
        yield "BROKER_GET", cluster, self.get_total

    def named_queues(self) -> Iterator[tuple[str, str, QueueCounter]]:
        """The same for single queues."""
        for topic, flow in self._puts.items():
            for queue_id, counter in flow.queues.items():
                yield "QUEUE_PUT", f"{topic}@{queue_id}", counter
        for (topic, group), flow in self._gets.items():
            for queue_id, counter in flow.queues.items():
                yield "QUEUE_GET", f"{topic}@{queue_id}@{group}", counter

    # Forgetting

    def forget_topic(self, topic: str) -> None:
        """A topic is gone."""
        flow = self._puts.pop(topic, None)
        if flow is not None:
            self._gone_puts.add(flow.summed())
        self._forget_gets([key for key in self._gets if key[0] == topic])
        for key in [key for key in self.sent_backs if key[0] == topic]:
            del self.sent_backs[key]

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.dead_letters.pop(group, None)
        self._forget_gets([key for key in self._gets if key[1] == group])
        for key in [key for key in self.sent_backs if key[1] == group]:
            del self.sent_backs[key]

    def _forget_gets(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._gone_gets.add(self._gets.pop(key).summed())


def _count(counter: Counter) -> None:
    counter.count += 1
    counter.calls += 1
