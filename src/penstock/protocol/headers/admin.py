"""What operators' tools ask of a broker: topics, groups, statistics."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header, Int32, Int64

# ---------------------------------------------------------------------------------------- topics


class UpdateTopic(Header):
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


class DeleteTopic(Header):
    topic: str


class GetAllTopicConfig(Header):
    """A page of the topic table; 4.9 asks without fields and gets it whole."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None


class GetAllTopicConfigResult(Header):
    total_topic_num: Int32 | None = None


class GetTopicConfig(Header):
    topic: str


class GetTopicStats(Header):
    topic: str


class QueryTopicConsumers(Header):
    """Which groups consume a topic."""

    topic: str


# ---------------------------------------------------------------------------------------- groups


class GetAllGroupConfig(Header):
    """A page of the group table; 4.9 asks without fields and gets it whole."""

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GetAllGroupConfigResult(Header):
    total_group_num: Int32 | None = None


class GetGroupConfig(Header):
    group: str


class DeleteGroup(Header):
    """Forget a group; 4.9 calls the second field ``removeOffset``."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class GetConsumerConnections(Header):
    consumer_group: str


class GetProducerConnections(Header):
    producer_group: str


class QueryTopicsByConsumer(Header):
    group: str


class QuerySubscription(Header):
    group: str
    topic: str


class CloneGroupOffset(Header):
    """Let one group start where another stands."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


# ------------------------------------------------------------------------------------ statistics


class GetConsumeStats(Header):
    """Offsets of a group, queue by queue; ``topic_list`` is joined by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetBrokerConsumeStats(Header):
    """Offsets of every group."""

    is_order: bool


class QueryConsumeTimeSpan(Header):
    topic: str
    group: str


class QueryConsumeQueue(Header):
    """The entries of a consume queue from ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ViewBrokerStats(Header):
    stats_name: str
    stats_key: str


class BrokerConfigResult(Header):
    """The data version of the broker's settings, as JSON text."""

    version: str | None = None
