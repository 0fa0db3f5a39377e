"""Figures for administrators: offsets and rates by topic, group and broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import wire
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.bodies.values import Int32


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The ends of a queue; the time is 0 for an empty one."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The ends of a topic's queues on one broker."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None


@dataclass(frozen=True, slots=True)
class ConsumeOffset:
    """Where a group stands in a queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int | None = None
    last_timestamp: int = 0
    penstock_in_flight: int | None = None
    """Popped and unfinished messages; a member of our own."""


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """Where a group stands in its queues on one broker."""

    offset_table: dict[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerConsumeStats:
    """Where every group of a broker stands."""

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int | None = None


@dataclass(frozen=True, slots=True)
class StatsItem:
    """A figure over a span of time."""

    sum: int = 0
    tps: float = 0.0
    average_time: float = field(default=0.0, metadata=wire("avgpt"))


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """A figure over the last minute, hour and day."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


@dataclass(frozen=True, slots=True)
class HaStatus:
    """How a master's replicas do; the connections are kept as they come."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: tuple[dict[str, object], ...] = ()
    ha_client_runtime_info: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """From when to when a queue has messages, and when the group's next one was stored."""

    message_queue: MessageQueue
    min_timestamp: int = field(default=0, metadata=wire("minTimeStamp"))
    max_timestamp: int = field(default=0, metadata=wire("maxTimeStamp"))
    consume_timestamp: int = field(default=0, metadata=wire("consumeTimeStamp"))
    delay_time: int = 0
    min_timestamp_text: str | None = field(default=None, metadata=wire("minTimeStampStr"))
    max_timestamp_text: str | None = field(default=None, metadata=wire("maxTimeStampStr"))
    consume_timestamp_text: str | None = field(default=None, metadata=wire("consumeTimeStampStr"))


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpans:
    """The time spans of a topic's queues."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueEntryInfo:
    """An entry of a consume queue; ``eval`` says whether the group's filter lets it through."""

    physic_offset: int = 0
    physic_size: Int32 = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntries:
    """A stretch of a consume queue, as QUERY_CONSUME_QUEUE shows it."""

    queue_data: tuple[QueueEntryInfo, ...] = ()
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
