"""How far each group is behind in each topic, as the metrics of groups need it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.state import BrokerState
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from penstock.protocol.validation import is_system_group


class GroupLag(NamedTuple):
    """A group in a topic: sums over its queues, the longest of the latencies."""

    group: str
    topic: str
    behind: int
    in_flight: int
    """Pulled and not committed."""
    lag_ms: int
    """The age of the oldest message that is not committed; 0 without one."""
    queueing_ms: int
    """The age of the oldest message that was not pulled."""

    @property
    def ready(self) -> int:
        """Not pulled yet."""
        return self.behind - self.in_flight


def consumed_topics(broker: BrokerState) -> list[tuple[str, str]]:
    """Every group, connected or not, with each topic that it has offsets in, its retries included.

    Apache's brokers leave out groups without members and the retries of push consumers, so that an
    alert is silent when the consumers are gone.
    """
    topics = broker.offsets.topics_by_group()
    found: list[tuple[str, str]] = []
    for config in broker.groups:
        group = config.group_name
        names = dict.fromkeys(topics.get(group, ()))
        if (retries := retry_topic(group)) in broker.topics:
            names[retries] = None
        # Dead letters are counted by another metric.
        found += [(group, topic) for topic in names if not topic.startswith(DLQ_PREFIX)]
    return found


def group_lag(broker: BrokerState, group: str, topic: str) -> GroupLag | None:
    """A group in a topic; None if the topic is gone, or its members no longer subscribe to it."""
    if not _is_consumed(broker, group, topic):
        return None
    return _lag(broker, group, topic, broker.clock.time_ms())


def _is_consumed(broker: BrokerState, group: str, topic: str) -> bool:
    """Whether the topic exists and the members, if there are any, still subscribe to it."""
    members = broker.clients.consumer_group(group)
    return topic in broker.topics and (
        topic.startswith(RETRY_PREFIX)
        or members is None
        or not members.subscriptions
        or topic in members.subscriptions
    )


def _lag(broker: BrokerState, group: str, topic: str, now_ms: int) -> GroupLag:
    config, store, offsets = broker.topics.require(topic), broker.storage.store, broker.offsets
    behind = in_flight = lag_ms = queueing_ms = 0
    for queue_id in range(config.read_queue_nums):
        end = store.max_offset(topic, queue_id)
        committed = offsets.committed(group, topic, queue_id)
        if committed is None:
            # Retries without an offset are consumed from the first one.
            committed = store.min_offset(topic, queue_id) if topic.startswith(RETRY_PREFIX) else 0
        popped = broker.pop.points.find_queue(group, topic, queue_id)
        unfinished = 0 if popped is None else len(popped.receipts)
        if committed >= end and not unfinished:
            continue
        pulled = min(max(committed, offsets.pulled(group, topic, queue_id) or 0), end)
        behind += max(0, end - committed) + unfinished
        in_flight += max(0, pulled - committed) + unfinished
        # What was popped and is not finished lies before the committed offset.
        lowest = None if popped is None else popped.lowest
        first = committed if lowest is None else min(lowest, committed)
        lag_ms = max(lag_ms, _age(broker, topic, queue_id, first, now_ms))
        if pulled < end:
            queueing_ms = max(queueing_ms, _age(broker, topic, queue_id, pulled, now_ms))
    return GroupLag(group, topic, behind, in_flight, lag_ms, queueing_ms)


def _age(broker: BrokerState, topic: str, queue_id: int, offset: int, now_ms: int) -> int:
    store = broker.storage.store
    stored = store.store_time_at(topic, queue_id, max(offset, store.min_offset(topic, queue_id)))
    return max(0, now_ms - stored) if stored > 0 else 0


def is_system(broker: BrokerState, topic: str, group: str = "") -> bool:
    """Whether a series is about something of RocketMQ's own."""
    return broker.topics.is_system(topic) or (bool(group) and is_system_group(group))
