"""What operators' tools ask of a broker: topics, groups, statistics."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.headers.codec import Int32, Int64

# ---------------------------------------------------------------------------------------- topics


@dataclass(slots=True)
class UpdateTopic:
    """Create a topic or change it; ``attributes`` reads ``+k=v,+k2=v2,-k3``."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    force: bool | None = None


@dataclass(slots=True)
class DeleteTopic:
    topic: str


@dataclass(slots=True)
class GetAllTopicConfig:
    """A page of the topic table; 4.9 asks without fields and gets it whole."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


@dataclass(slots=True)
class GetAllTopicConfigResult:
    total_topic_num: Int32 | None = None


@dataclass(slots=True)
class GetTopicConfig:
    topic: str


@dataclass(slots=True)
class GetTopicStats:
    topic: str


@dataclass(slots=True)
class QueryTopicConsumers:
    """Which groups consume a topic."""

    topic: str


# ---------------------------------------------------------------------------------------- groups


@dataclass(slots=True)
class GetAllGroupConfig:
    """A page of the group table; 4.9 asks without fields and gets it whole."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


@dataclass(slots=True)
class GetAllGroupConfigResult:
    total_group_num: Int32 | None = None


@dataclass(slots=True)
class GetGroupConfig:
    group: str


@dataclass(slots=True)
class DeleteGroup:
    """Forget a group; 4.9 calls the second field ``removeOffset``."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


@dataclass(slots=True)
class GetConsumerConnections:
    consumer_group: str


@dataclass(slots=True)
class GetProducerConnections:
    producer_group: str


@dataclass(slots=True)
class QueryTopicsByConsumer:
    group: str


@dataclass(slots=True)
class QuerySubscription:
    group: str
    topic: str


@dataclass(slots=True)
class CloneGroupOffset:
    """Let one group start where another stands."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


# ------------------------------------------------------------------------------------ statistics


@dataclass(slots=True)
class GetConsumeStats:
    """Offsets of a group, queue by queue; ``topic_list`` is joined by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(slots=True)
class GetBrokerConsumeStats:
    """Offsets of every group."""

    is_order: bool


@dataclass(slots=True)
class QueryConsumeTimeSpan:
    topic: str
    group: str


@dataclass(slots=True)
class QueryConsumeQueue:
    """The entries of a consume queue from ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


@dataclass(slots=True)
class ViewBrokerStats:
    stats_name: str
    stats_key: str


@dataclass(slots=True)
class BrokerConfigResult:
    """The data version of the broker's settings, as JSON text."""

    version: str | None = None
