"""What the broker counts: messages in and out, by topic and group.

Counting happens on the hot paths, so it is one look-up and two additions; everything that is worked
out of the numbers (rates, averages, days) is worked out when somebody asks, of samples that
`sampling` takes.
"""

from __future__ import annotations

from collections.abc import Iterator


class Counter:
    """A number of messages, their bytes, and in how many goes they came."""

    __slots__ = ("calls", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.calls = 0


class BrokerStats:
    """All counters of one broker."""

    def __init__(self) -> None:
        self.puts: dict[str, Counter] = {}
        """By topic: what was stored."""
        self.gets: dict[tuple[str, str], Counter] = {}
        """By topic and group: what was handed to consumers."""
        self.sent_backs: dict[tuple[str, str], Counter] = {}
        """By topic and group: what consumers could not handle."""
        self.dead_letters: dict[str, Counter] = {}
        """By group: what was given up."""
        self.put_total = Counter()
        self.get_total = Counter()

    def put(self, topic: str, size: int, count: int = 1) -> None:
        """Messages were stored."""
        counter = self.puts.get(topic)
        if counter is None:
            counter = self.puts[topic] = Counter()
        counter.count += count
        counter.size += size
        counter.calls += 1
        self.put_total.count += count
        self.put_total.size += size

    def get(self, group: str, topic: str, count: int, size: int) -> None:
        """Messages were handed to a consumer."""
        counter = self.gets.get((topic, group))
        if counter is None:
            counter = self.gets[topic, group] = Counter()
        counter.count += count
        counter.size += size
        counter.calls += 1
        self.get_total.count += count
        self.get_total.size += size

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer could not handle a message."""
        _count(self.sent_backs.setdefault((topic, group), Counter()))

    def dead_letter(self, group: str) -> None:
        """A message was given up."""
        _count(self.dead_letters.setdefault(group, Counter()))

    # For everybody who reads the numbers

    def named(self, cluster: str) -> Iterator[tuple[str, str, Counter]]:
        """Every counter with RocketMQ's name for it and its key; sizes are named apart."""
        for topic, counter in self.puts.items():
            yield "TOPIC_PUT", topic, counter
        for (topic, group), counter in self.gets.items():
            yield "GROUP_GET", f"{topic}@{group}", counter
        for (topic, group), counter in self.sent_backs.items():
            yield "SNDBCK_PUT", f"{topic}@{group}", counter
        for group, counter in self.dead_letters.items():
            yield "DLQ_PUT", group, counter
        yield "BROKER_PUT", cluster, self.put_total
        yield "BROKER_GET", cluster, self.get_total

    def forget_topic(self, topic: str) -> None:
        """A topic is gone."""
        self.puts.pop(topic, None)
        for table in (self.gets, self.sent_backs):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """A group is gone."""
        self.dead_letters.pop(group, None)
        for table in (self.gets, self.sent_backs):
            for key in [key for key in table if key[1] == group]:
                del table[key]


def _count(counter: Counter) -> None:
    counter.count += 1
    counter.calls += 1
