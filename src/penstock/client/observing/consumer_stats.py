"""The statistics of a consumer for its own program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.observing.running_info import calls_under_way
from penstock.model import MessageQueue

if TYPE_CHECKING:
    from penstock.client.consuming.push_consumer import PushConsumerCore


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Rates of the last minute (per second; times in ms) and totals since the start."""

    pull_tps: float
    pull_rt: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_rt: float
    consumed: int
    failed: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Where one queue stands.

    ``in_handlers`` counts the cached messages that handlers are at now; ``behind`` is how far the
    broker was ahead at the last pull.
    """

    committed: int
    cached: int
    cached_bytes: int
    in_handlers: int
    behind: int
    is_locked: bool


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer at one moment."""

    group: str
    topics: Mapping[str, TopicStats]
    queues: Mapping[MessageQueue, QueueStats]
    returns: Mapping[str, int]
    """How handler calls ended: SUCCESS, FAILED, EXCEPTION, RETURNNULL, TIME_OUT."""
    flow_stops: Mapping[str, int]
    """How often pulling waited: for count, size or span."""
    sent_back: int
    dead_letters: int
    local_retries: int
    results_ignored: int


def consumer_stats(consumer: PushConsumerCore) -> ConsumerStats:
    """Everything at one moment; called on the session's loop."""
    state = consumer.state
    statistics = state.statistics
    in_handlers: Counter[ProcessQueue] = Counter()
    for job in calls_under_way(consumer):
        in_handlers[job.process_queue] += job.batch.count
    offsets = state.offsets.snapshot()
    return ConsumerStats(
        group=state.group,
        topics={topic: _topic_stats(state, topic) for topic in state.subscriptions.topics},
        queues={
            queue: QueueStats(
                committed=offsets.get(queue, -1),
                cached=held.count,
                cached_bytes=held.body_bytes,
                in_handlers=in_handlers[held],
                # Counted from the last message that came, as RocketMQ does, which is here.
                behind=max(0, held.accumulated - 1),
                is_locked=held.is_locked,
            )
            for queue, held in state.queues.items()
        },
        returns={kind.value: count for kind, count in statistics.returns.items()},
        flow_stops={stop.value: count for stop, count in statistics.flow_stops.items()},
        sent_back=statistics.sent_back,
        dead_letters=statistics.dead_letters,
        local_retries=statistics.local_retries,
        results_ignored=statistics.results_ignored,
    )


def _topic_stats(state: ConsumerState, topic: str) -> TopicStats:
    status = state.statistics.status(topic)
    consumed, failed = state.statistics.totals(topic)
    return TopicStats(
        pull_tps=status.pull_tps,
        pull_rt=status.pull_rt,
        consume_ok_tps=status.consume_ok_tps,
        consume_failed_tps=status.consume_failed_tps,
        consume_rt=status.consume_rt,
        consumed=consumed,
        failed=failed,
    )
