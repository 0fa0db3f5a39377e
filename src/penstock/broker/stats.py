"""Counters of the broker: messages stored and delivered, by queue, topic and group.

Counting is on the hot paths, so it is done only per queue: two look-ups and three additions.
Sums of topics and totals are computed on request, rates and averages from the samples of
`rate_sampler`.

Other counters are declared in `BrokerStats.__init__`, each in one line: its keys and the name that
RocketMQ has for it. The answers to admin tools, rates and removal follow from that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Counter:
    """A number of messages, their bytes, and the number of calls."""

    __slots__ = ("calls", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.calls = 0

    def add(self, other: Counter) -> None:
        """Add the numbers of another counter."""
        self.count += other.count
        self.size += other.size
        self.calls += other.calls

    def become_sum_of(self, parts: Iterable[Counter]) -> Counter:
        """Take the sums of ``parts``; the object stays, because samples are kept per counter."""
        self.count = self.size = self.calls = 0
        for part in parts:
            self.add(part)
        return self


class QueueCounter(Counter):
    """The counter of one queue, with the time that some of its calls took."""

    __slots__ = ("seconds", "timed")

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.timed = 0
        """The number of calls whose time is in ``seconds``."""

    def took(self, seconds: float) -> None:
        """Add the time of one call."""
        self.seconds += seconds
        self.timed += 1


class _Flow:
    """The counters of the queues of a topic, and their sum."""

    __slots__ = ("queues", "total")

    def __init__(self) -> None:
        self.queues: dict[int, QueueCounter] = {}
        self.total = Counter()

    def summed(self) -> Counter:
        return self.total.become_sum_of(self.queues.values())


class _GroupCounters(NamedTuple):
    """The counters of one kind, by group."""

    name: str
    counters: dict[str, Counter]


class _PairCounters(NamedTuple):
    """The counters of one kind, by topic and group."""

    name: str | None
    """None: for metrics only."""
    total_name: str | None
    counters: dict[tuple[str, str], Counter]
    total: Counter


class BrokerStats:
    """All counters of one broker."""

    def __init__(self) -> None:
        self._of_groups: list[_GroupCounters] = []
        self._of_pairs: list[_PairCounters] = []
        self._puts: dict[str, _Flow] = {}
        """By topic: stored messages."""
        self._gets: dict[tuple[str, str], _Flow] = {}
        """By topic and group: messages delivered to consumers."""
        self.sent_backs = self._by_topic_and_group("SNDBCK_PUT")
        """Messages that consumers sent back."""
        self.dead_letters = self._by_group("DLQ_PUT")
        self.dead_letter_origins = self._by_topic_and_group(None)
        """Dead letters by the topic that they came from."""
        self.expired_receipts = self._by_group("PENSTOCK_EXPIRED")
        """Popped messages that were not acknowledged in time."""
        self.late_acks = self._by_group("PENSTOCK_LATE_ACK")
        """Acknowledgements that came after the invisible time."""
        self.pops = self._by_topic_and_group("GROUP_CK", total="BROKER_CK")
        """Check-points of pop consumption."""
        self.acks = self._by_topic_and_group("GROUP_ACK", total="BROKER_ACK")
        """Messages that were popped and acknowledged."""
        self._put_total = Counter()
        self._get_total = Counter()
        self._gone_puts = Counter()
        self._gone_gets = Counter()

    def _by_group(self, name: str) -> dict[str, Counter]:
        counters: dict[str, Counter] = {}
        self._of_groups.append(_GroupCounters(name, counters))
        return counters

    def _by_topic_and_group(
        self, name: str | None, total: str | None = None
    ) -> dict[tuple[str, str], Counter]:
        counters: dict[tuple[str, str], Counter] = {}
        self._of_pairs.append(_PairCounters(name, total, counters, Counter()))
        return counters

    # Counting

    def put(self, topic: str, queue_id: int, size: int, count: int = 1) -> None:
        """Count stored messages."""
        try:
            counter = self._puts[topic].queues[queue_id]
        except KeyError:
            counter = self._new_put(topic, queue_id)
        counter.count += count
        counter.size += size
        counter.calls += 1

    def queue_puts(self, topic: str, queue_id: int) -> QueueCounter:
        """The counter of messages stored in a queue; valid until the topic is deleted."""
        return self._new_put(topic, queue_id)

    def put_took(self, topic: str, queue_id: int, seconds: float) -> None:
        """Add the time from the append of a message to its acknowledgement."""
        flow = self._puts.get(topic)
        counter = None if flow is None else flow.queues.get(queue_id)
        if counter is not None:
            counter.took(seconds)

    def get(
        self, group: str, topic: str, queue_id: int, count: int, size: int, seconds: float | None
    ) -> None:
        """Count delivered messages; ``seconds`` is the time of the read if it was measured."""
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
        """Count a message that a consumer sent back."""
        _count(self.sent_backs.setdefault((topic, group), Counter()))

    def dead_letter(self, group: str, topic: str) -> None:
        """Count a dead letter of a group, which came from ``topic``."""
        _count(self.dead_letters.setdefault(group, Counter()))
        _count(self.dead_letter_origins.setdefault((topic, group), Counter()))

    def check_points(self, group: str, topic: str, count: int) -> None:
        """Count the check-points of a pop."""
        _count(self.pops.setdefault((topic, group), Counter()), count)

    def acknowledged(self, group: str, topic: str, count: int) -> None:
        """Count popped messages that were acknowledged."""
        _count(self.acks.setdefault((topic, group), Counter()), count)

    def receipts_expired(self, group: str, count: int) -> None:
        """Count popped messages whose invisible time is up."""
        _count(self.expired_receipts.setdefault(group, Counter()), count)

    def late_ack(self, group: str) -> int:
        """Count an acknowledgement without effect; how many the group had before."""
        counter = self.late_acks.setdefault(group, Counter())
        _count(counter)
        return counter.count - 1

    # Reading

    def puts_of(self, topic: str) -> Counter:
        """The messages stored in a topic."""
        flow = self._puts.get(topic)
        return Counter() if flow is None else flow.summed()

    @property
    def put_total(self) -> Counter:
        """All messages stored since the start."""
        total = self._put_total.become_sum_of(f.summed() for f in self._puts.values())
        total.add(self._gone_puts)
        return total

    @property
    def get_total(self) -> Counter:
        """All messages delivered since the start."""
        total = self._get_total.become_sum_of(f.summed() for f in self._gets.values())
        total.add(self._gone_gets)
        return total

    def put_topics(self) -> list[str]:
        """The topics that messages were stored in."""
        return list(self._puts)

    def get_keys(self) -> list[tuple[str, str]]:
        """The topics and groups that messages were delivered to."""
        return list(self._gets)

    def gets_of(self, topic: str, group: str) -> Counter:
        """The messages of a topic that were delivered to a group."""
        flow = self._gets.get((topic, group))
        return Counter() if flow is None else flow.summed()

    def named(self, cluster: str) -> Iterator[tuple[str, str, Counter]]:
        """The counters of topics, groups and the broker with RocketMQ's names and keys."""
        for topic, flow in self._puts.items():
            yield "TOPIC_PUT", topic, flow.summed()
        for (topic, group), flow in self._gets.items():
            yield "GROUP_GET", f"{topic}@{group}", flow.summed()
        for name, of_group in self._of_groups:
            for group, counter in of_group.items():
                yield name, group, counter
        for pair in self._of_pairs:
            if pair.name is not None:
                for (topic, group), counter in pair.counters.items():
                    yield pair.name, f"{topic}@{group}", counter
            if pair.total_name is not None and pair.counters:
                total = pair.total.become_sum_of(pair.counters.values())
                yield pair.total_name, cluster, total
        yield "BROKER_PUT", cluster, self.put_total
        yield "BROKER_GET", cluster, self.get_total

    def named_queues(self) -> Iterator[tuple[str, str, QueueCounter]]:
        """The counters of queues with RocketMQ's names and keys."""
        for topic, flow in self._puts.items():
            for queue_id, counter in flow.queues.items():
                yield "QUEUE_PUT", f"{topic}@{queue_id}", counter
        for (topic, group), flow in self._gets.items():
            for queue_id, counter in flow.queues.items():
                yield "QUEUE_GET", f"{topic}@{queue_id}@{group}", counter

    # Removing

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic; the totals keep its numbers."""
        flow = self._puts.pop(topic, None)
        if flow is not None:
            self._gone_puts.add(flow.summed())
        self._forget_gets([key for key in self._gets if key[0] == topic])
        for pair in self._of_pairs:
            for key in [key for key in pair.counters if key[0] == topic]:
                del pair.counters[key]

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group; the totals keep its numbers."""
        self._forget_gets([key for key in self._gets if key[1] == group])
        for _, of_group in self._of_groups:
            of_group.pop(group, None)
        for pair in self._of_pairs:
            for key in [key for key in pair.counters if key[1] == group]:
                del pair.counters[key]

    def _forget_gets(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._gone_gets.add(self._gets.pop(key).summed())


def _count(counter: Counter, count: int = 1) -> None:
    counter.count += count
    counter.calls += 1
