"""Progress of groups: offsets, lag, time spans; and copying offsets between groups."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Final

from penstock.broker.state import BrokerState
from penstock.errors import RequestRefused, TopicNotFound
from penstock.model import MessageQueue
from penstock.protocol.bodies.offsets import CorrectionOffsets
from penstock.protocol.bodies.stats import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumeOffset,
    ConsumeStats,
    ConsumeTimeSpans,
    QueueTimeSpan,
    StatsItem,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    ViewBrokerStats,
)
from penstock.protocol.headers.offsets import QueryCorrectionOffset
from penstock.protocol.validation import check_group
from penstock.remoting.dispatch import Reply, handles
from penstock.remoting.long_answers import STEP, Steps
from penstock.runtime.statistics import StatsData

_NEVER: Final = (1 << 63) - 1
"""Java's largest long: the compared group is behind all others in the queue."""


@handles(RequestCode.GET_CONSUME_STATS)
def get_consume_stats(broker: BrokerState, ask: GetConsumeStats) -> Steps:
    """The offsets of a group by queue: in one topic, in some, or in all it has offsets in."""
    if ask.topic:
        topics = [ask.topic]
    else:
        topics = list(broker.offsets.of_group(ask.consumer_group))
        wanted = {name for name in (ask.topic_list or "").split(";") if name}
        if wanted:
            topics = [topic for topic in topics if topic in wanted]
    table: dict[MessageQueue, ConsumeOffset] = {}
    tps = 0.0
    for topic in topics:
        stats = yield from _stats_of(broker, ask.consumer_group, topic)
        if stats is not None:
            table.update(stats.offset_table)
            tps += stats.consume_tps
    return Reply(body=ConsumeStats(table, tps))


@handles(RequestCode.GET_BROKER_CONSUME_STATS)
def get_broker_consume_stats(broker: BrokerState, ask: GetBrokerConsumeStats) -> Steps:
    """The offsets of all groups of this broker."""
    groups: list[dict[str, tuple[ConsumeStats, ...]]] = []
    behind = in_flight = 0
    topics = broker.offsets.topics_by_group()
    # A group may come or go between two steps.
    for group in list(broker.groups):
        found: list[ConsumeStats] = []
        for topic in topics.get(group.group_name, ()):
            config = broker.topics.get(topic)
            if config is None or (ask.is_order and not config.order):
                continue
            stats = yield from _stats_of(broker, group.group_name, topic)
            if stats is not None:
                found.append(stats)
                for offset in stats.offset_table.values():
                    behind += offset.broker_offset - offset.consumer_offset
                    in_flight += (offset.pull_offset or 0) - offset.consumer_offset
        groups.append({group.group_name: tuple(found)})
    return Reply(body=BrokerConsumeStats(tuple(groups), broker.address, behind, in_flight))


def _stats_of(
    broker: BrokerState, group: str, topic: str
) -> Generator[None, None, ConsumeStats | None]:
    """A group in a topic; None if the topic is unknown or no longer subscribed to."""
    config = broker.topics.get(topic)
    members = broker.clients.consumer_group(group)
    if config is None or (
        members is not None and members.subscriptions and topic not in members.subscriptions
    ):
        return None
    store, offsets = broker.storage.store, broker.offsets
    table: dict[MessageQueue, ConsumeOffset] = {}
    for queue_id in range(config.read_queue_nums):
        if queue_id % STEP == 0:
            yield None
        frontier = offsets.committed(group, topic, queue_id) or 0
        pulled = offsets.pulled(group, topic, queue_id) or 0
        popped = broker.pop.points.find_queue(group, topic, queue_id)
        in_flight = 0 if popped is None else len(popped.receipts)
        # What was popped and is not finished is behind the committed offset.
        lowest = popped.lowest if popped is not None and in_flight else None
        committed = frontier if lowest is None else min(lowest, frontier)
        # When the last consumed message was stored; 0 without one.
        last = store.store_time_at(topic, queue_id, committed - 1) if committed else 0
        table[MessageQueue(topic, broker.config.broker_name, queue_id)] = ConsumeOffset(
            store.max_offset(topic, queue_id),
            committed,
            max(frontier, pulled),
            max(0, last),
            in_flight or None,
        )
    return ConsumeStats(table, broker.rate_sampler.group_get_tps(group, topic))


@handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
def query_time_span(broker: BrokerState, ask: QueryConsumeTimeSpan) -> Steps:
    """The times of the first and last message of each queue, and the delay of the group."""
    config = broker.topics.get(ask.topic)
    if config is None:
        raise TopicNotFound(f"topic[{ask.topic}] not exist")
    spans: list[QueueTimeSpan] = []
    for queue_id in range(config.write_queue_nums):
        if queue_id % STEP == 0:
            yield None
        spans.append(_time_span(broker, ask.group, ask.topic, queue_id))
    return Reply(body=ConsumeTimeSpans(tuple(spans)))


def _time_span(broker: BrokerState, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
    store = broker.storage.store
    end = store.max_offset(topic, queue_id)
    first = store.earliest_store_time(topic, queue_id)
    last = store.store_time_at(topic, queue_id, end - 1)
    committed = broker.offsets.committed(group, topic, queue_id) or 0
    consumed = store.store_time_at(topic, queue_id, committed - 1) if committed else first
    delay = 0
    if committed < end:
        following = store.store_time_at(topic, queue_id, committed)
        delay = broker.clock.time_ms() - following if following > 0 else 0
    return QueueTimeSpan(
        MessageQueue(topic, broker.config.broker_name, queue_id),
        first,
        last,
        consumed,
        delay,
        _as_text(first),
        _as_text(last),
        _as_text(consumed),
    )


def _as_text(milliseconds: int) -> str:
    """Local time as RocketMQ's tools show it: ``2026-11-16#01:51:13:666``."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(seconds))}:{rest:03d}"


@handles(RequestCode.QUERY_CORRECTION_OFFSET)
def query_correction_offset(broker: BrokerState, ask: QueryCorrectionOffset) -> Reply:
    """The smallest offset of any other group in each queue of a topic.

    Where the compared group is behind all of them there is nothing to correct; the answer is then
    the largest number.
    """
    skipped = set((ask.filter_groups or "").split(","))
    smallest: dict[int, int] = {}
    for group in broker.offsets.groups_of_topic(ask.topic):
        if group in skipped:
            continue
        for queue_id, offset in broker.offsets.of_topic(group, ask.topic).items():
            if offset >= broker.storage.min_offset(ask.topic, queue_id):
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
    for queue_id, offset in broker.offsets.of_topic(ask.compare_group, ask.topic).items():
        if queue_id in smallest and smallest[queue_id] > offset:
            smallest[queue_id] = _NEVER
    return Reply(body=CorrectionOffsets(dict(sorted(smallest.items()))))


@handles(RequestCode.CLONE_GROUP_OFFSET)
def clone_group_offset(broker: BrokerState, ask: CloneGroupOffset) -> None:
    """Copy the offsets of one group to another."""
    check_group(ask.dest_group)
    topics = [ask.topic] if ask.topic else list(broker.offsets.of_group(ask.src_group))
    members = broker.clients.consumer_group(ask.src_group)
    for topic in topics:
        if topic not in broker.topics:
            continue
        if not ask.offline and members is not None and topic not in members.subscriptions:
            continue
        broker.offsets.clone(ask.src_group, ask.dest_group, topic)


@handles(RequestCode.VIEW_BROKER_STATS_DATA)
def view_stats(broker: BrokerState, ask: ViewBrokerStats) -> Reply:
    """One of RocketMQ's statistics over the last minute, hour and day."""
    item = broker.rate_sampler.find(ask.stats_name, ask.stats_key)
    if item is None:
        raise RequestRefused(f"The stats <{ask.stats_name}> <{ask.stats_key}> not exist")
    return Reply(
        body=BrokerStats(_figures(item.minute()), _figures(item.hour()), _figures(item.day()))
    )


def _figures(data: StatsData) -> StatsItem:
    return StatsItem(data.sum, data.tps, data.average)
