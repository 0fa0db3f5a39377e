"""How fast a consumer pulls and consumes, by topic, under RocketMQ's names.

For retried messages the topic is the group's retry topic: that is the queue they were pulled from.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from penstock.client.consuming.flow_control import Stop
from penstock.client.consuming.outcomes import Outcome, ReturnType
from penstock.client.consuming.retry_rules import reason_of
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import Failure
from penstock.protocol.bodies.running import ConsumeStatus
from penstock.runtime.clock import Clock
from penstock.runtime.statistics import Statistics, StatsItem

CONSUME_OK = "CONSUME_OK_TPS"
CONSUME_FAILED = "CONSUME_FAILED_TPS"
CONSUME_RT = "CONSUME_RT"
PULL_TPS = "PULL_TPS"
PULL_RT = "PULL_RT"


class LastFailure(NamedTuple):
    """The newest message whose handler failed."""

    queue: MessageQueue
    msg_id: str
    reason: str
    at_ms: int


class ConsumerStatistics(Statistics):
    """Counters of one consumer group; keys are ``topic@group``."""

    def __init__(self, clock: Clock, group: str) -> None:
        super().__init__(clock)
        self._group = group
        self._by_topic: dict[str, _TopicItems] = {}
        self.flow_stops: Counter[Stop] = Counter()
        """How often a limit kept a queue from being pulled."""
        self.returns: Counter[ReturnType] = Counter()
        """How listener calls ended."""
        self.sent_back = 0
        self.dead_letters = 0
        self.local_retries = 0
        self.results_ignored = 0
        """Listener calls whose queue was given up meanwhile."""
        self.last_failure: LastFailure | None = None

    def pulled(self, topic: str, count: int, seconds: float) -> None:
        """A pull brought ``count`` messages."""
        items = self._items(topic)
        items.pull_rt.add(round(seconds * 1000))
        if count:
            items.pull.add(count)

    def consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        """A listener call ended."""
        items = self._items(topic)
        items.consume_rt.add(round(seconds * 1000))
        if ok:
            items.ok.add(ok)
        if failed:
            items.failed.add(failed)

    def succeeded(self, topic: str, messages: int, calls: int, seconds: float) -> None:
        """A burst of listener calls ended, all of them well."""
        items = self._items(topic)
        items.consume_rt.add(round(seconds * 1000), calls)
        items.ok.add(messages, calls)
        self.returns[ReturnType.SUCCESS] += calls

    def failed(self, queue: MessageQueue, message: StoredMessage, outcome: Outcome) -> None:
        """Remember the last failure for running info; its error object is not kept."""
        reason = reason_of(message, outcome, "")
        said = filter(None, (reason.get(Failure.TYPE), reason.get(Failure.MESSAGE)))
        self.last_failure = LastFailure(
            queue, message.msg_id, ": ".join(said), self._clock.time_ms()
        )

    def totals(self, topic: str) -> tuple[int, int]:
        """Messages consumed and failed since the start."""
        items = self._items(topic)
        return items.ok.sum, items.failed.sum

    def status(self, topic: str) -> ConsumeStatus:
        """What running info says of a topic."""
        items = self._by_topic.get(topic)
        if items is None:
            return ConsumeStatus()
        return ConsumeStatus(
            pull_rt=items.pull_rt.minute().average,
            pull_tps=items.pull.minute().tps,
            # A slow topic may have had no call in the last minute.
            consume_rt=items.consume_rt.minute().average or items.consume_rt.hour().average,
            consume_ok_tps=items.ok.minute().tps,
            consume_failed_tps=items.failed.minute().tps,
            consume_failed_count=items.failed.hour().sum,
        )

    def _items(self, topic: str) -> _TopicItems:
        items = self._by_topic.get(topic)
        if items is None:
            key = f"{topic}@{self._group}"
            items = self._by_topic[topic] = _TopicItems(
                self.item(CONSUME_OK, key),
                self.item(CONSUME_FAILED, key),
                self.item(CONSUME_RT, key),
                self.item(PULL_TPS, key),
                self.item(PULL_RT, key),
            )
        return items


class _TopicItems:
    __slots__ = ("consume_rt", "failed", "ok", "pull", "pull_rt")

    def __init__(
        self,
        ok: StatsItem,
        failed: StatsItem,
        consume_rt: StatsItem,
        pull: StatsItem,
        pull_rt: StatsItem,
    ) -> None:
        self.ok = ok
        self.failed = failed
        self.consume_rt = consume_rt
        self.pull = pull
        self.pull_rt = pull_rt
