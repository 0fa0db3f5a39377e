"""Everything a client can be told, checked before anything is started.

Times are seconds here; the public classes take text and ``timedelta`` as well and convert. Each
field names the Java setting it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.assignment import AssignmentStrategy, Average
from penstock.client.consuming.flow_control import FlowLimits
from penstock.client.producing.selection import CURRENT_LATENCIES, LatencyTable
from penstock.errors import ConfigError, IllegalName
from penstock.protocol.records.compression import Compression
from penstock.protocol.validation import check_group

DEFAULT_GROUPS = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})
CONCURRENT_RETRIES = 16
UNLIMITED = 2**31 - 1
SUSPEND_RANGE = (0.01, 30.0)

ProfileName = Literal["current", "documents"]
Model = Literal["clustering", "broadcasting"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Values on which releases differ; times are seconds."""

    name: str
    offset_repair_delay: float
    """Before an illegal pull offset is repaired."""
    pull_retry_delay: float
    """After a failed pull; pullTimeDelayMillsWhenException."""
    locked_when_created: bool
    """Whether a new orderly queue may be pulled before the periodic lock task has run."""
    first_pull_delay: float
    """Before the first pull of a newly assigned queue."""
    unlock_wait: float
    """How long giving up an orderly queue waits for its listener."""
    unlock_force_after: float
    """The same, since the last lock refresh, after which the queue is given up regardless."""
    unlock_later_when_cached: float
    """How much later the lock of a queue with cached messages is given back."""
    merge_local_offsets: bool
    """Whether the local file keeps offsets of queues that are not held at the moment."""
    skip_second_send_back: bool
    """Whether a message that timed out and left the queue is not sent back again."""
    instance_by_process: bool
    """Whether unnamed clients of one process share a session."""


PROFILES: Mapping[str, Profile] = {
    "current": Profile(
        name="current",
        offset_repair_delay=0.0,
        pull_retry_delay=1.0,
        locked_when_created=True,
        first_pull_delay=0.5,
        unlock_wait=0.5,
        unlock_force_after=20.0,
        unlock_later_when_cached=0.0,
        merge_local_offsets=True,
        skip_second_send_back=True,
        instance_by_process=False,
    ),
    "documents": Profile(
        name="documents",
        offset_repair_delay=10.0,
        pull_retry_delay=3.0,
        locked_when_created=False,
        first_pull_delay=0.0,
        unlock_wait=1.0,
        unlock_force_after=math.inf,
        unlock_later_when_cached=20.0,
        merge_local_offsets=False,
        skip_second_send_back=False,
        instance_by_process=True,
    ),
}


def profile(name: str) -> Profile:
    """The profile of that name."""
    found = PROFILES.get(name)
    if found is None:
        raise ConfigError(f"profile is {name!r}", expected=f"one of {', '.join(PROFILES)}")
    return found


def check_range(key: str, value: object, low: float, high: float) -> None:
    """Refuse a setting that is no number or outside its range, naming all three."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} is {value!r}", expected=f"a number, {low} to {high}")
    if not low <= value <= high:
        raise ConfigError(f"{key} is {value}", expected=f"{low} to {high}")


def check_count(key: str, value: object, low: int, high: int) -> None:
    """The same of a setting that counts something."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} is {value!r}", expected=f"a whole number, {low} to {high}")
    check_range(key, value, low, high)


def check_flag(key: str, value: object) -> None:
    """Refuse a switch that is neither on nor off."""
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}", expected="True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session reaches its cluster, and how often it does what it does by the clock."""

    access: ClusterAccess
    client_id: str
    route_interval: float = 30.0
    """pollNameServerInterval"""
    heartbeat_interval: float = 30.0
    """heartbeatBrokerInterval"""
    persist_interval: float = 5.0
    """persistConsumerOffsetInterval"""
    api_timeout: float = 3.0
    """mqClientApiTimeout"""
    connect_timeout: float = 3.0
    rebalance_interval: float = 20.0
    """rocketmq.client.rebalance.waitInterval"""
    rebalance_pause: float = 1.0
    """rocketmq.client.rebalance.minInterval"""
    profile: Profile = PROFILES["current"]

    def __post_init__(self) -> None:
        for key in ("route_interval", "heartbeat_interval", "persist_interval"):
            check_range(key, getattr(self, key), 0.001, 86_400)


def difference(one: SessionSettings, other: SessionSettings) -> str | None:
    """The first keyword in which the settings of two clients differ that would share a session.

    Each client has its own namespace, so that may differ.
    """
    mine, theirs = _shared(one), _shared(other)
    return next((key for key in mine if mine[key] != theirs[key]), None)


def _shared(settings: SessionSettings) -> dict[str, object]:
    access: dict[str, object] = {**settings.access.as_keywords()}
    del access["namespace"]
    rest = {item.name: getattr(settings, item.name) for item in fields(settings)}
    del rest["access"]
    return access | rest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer sends."""

    group: str
    send_timeout: float = 3.0
    """sendMsgTimeout: covers all attempts"""
    retries: int = 2
    """retryTimesWhenSendFailed and retryTimesWhenSendAsyncFailed"""
    retry_unless_stored: bool = False
    """retryAnotherBrokerWhenNotStoreOK"""
    linger: float = 0.0
    """How long a single send may wait for company in one batch request; autoBatch"""
    linger_bytes: int = 32 * 1024
    """When a batch leaves before its time; autoBatch's 32 KiB"""
    linger_pending: int = 32 * 1024 * 1024
    """Bytes that may wait in all batches together; autoBatch's 32 MiB"""
    compress_over: int = 4096
    """compressMsgBodyOverHowmuch"""
    compression: Literal["zlib", "lz4", "zstd"] = "zlib"
    compression_level: int = 5
    max_message_bytes: int = 4 * 1024 * 1024
    """maxMessageSize"""
    default_topic_queues: int = 4
    """defaultTopicQueueNums"""
    avoid_slow_brokers: bool = False
    """sendLatencyFaultEnable"""
    latencies: LatencyTable = CURRENT_LATENCIES
    """latencyMax and notAvailableDuration"""
    max_in_flight: int = 10_000
    """Unanswered asynchronous sends; one more waits its turn"""
    namespace: str | None = None

    def __post_init__(self) -> None:
        _check_group(self.group)
        check_range("send_timeout", self.send_timeout, 0.001, 86_400)
        check_count("retries", self.retries, 0, 100)
        check_flag("retry_unless_stored", self.retry_unless_stored)
        check_range("linger", self.linger, 0, 10)
        check_count("linger_bytes", self.linger_bytes, 1, 2**31 - 1)
        check_count("compress_over", self.compress_over, 0, 2**31 - 1)
        if not isinstance(self.compression, str):
            raise ConfigError(f"compression is {self.compression!r}", expected="zlib, lz4 or zstd")
        Compression.named(self.compression)
        check_count("compression_level", self.compression_level, 0, 22)
        check_count("max_message_bytes", self.max_message_bytes, 1, 16 * 1024 * 1024)
        check_count("default_topic_queues", self.default_topic_queues, 1, 65_535)
        check_flag("avoid_slow_brokers", self.avoid_slow_brokers)
        check_count("max_in_flight", self.max_in_flight, 1, 1_000_000)


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where a group without an offset begins: ``last``, ``first`` or at a time in ms."""

    where: Literal["last", "first", "time"]
    timestamp_ms: int = 0

    @property
    def wire_name(self) -> str:
        return {
            "last": "CONSUME_FROM_LAST_OFFSET",
            "first": "CONSUME_FROM_FIRST_OFFSET",
            "time": "CONSUME_FROM_TIMESTAMP",
        }[self.where]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a push consumer consumes; the ranges are those the Java client enforces."""

    group: str
    model: Model = "clustering"
    """messageModel"""
    start_from: StartFrom = StartFrom("last")
    """consumeFromWhere, consumeTimestamp"""
    orderly: bool = False
    batch_size: int = 1
    """consumeMessageBatchMaxSize"""
    allocation: AssignmentStrategy = field(default_factory=Average)
    """allocateMessageQueueStrategy"""
    threads: int = 20
    """consumeThreadMin"""
    max_threads: int | None = None
    """consumeThreadMax; as the queue of tasks has no end, only the minimum ever counts"""
    max_retries: int | None = None
    """maxReconsumeTimes; None: 16 when concurrent, without end when orderly"""
    max_span: int = 2000
    """consumeConcurrentlyMaxSpan"""
    queue_limit: int = 1000
    """pullThresholdForQueue"""
    topic_limit: int | None = None
    """pullThresholdForTopic"""
    queue_limit_mib: int = 100
    """pullThresholdSizeForQueue"""
    topic_limit_mib: int | None = None
    """pullThresholdSizeForTopic"""
    pull_interval: float = 0.0
    """pullInterval"""
    pull_batch_size: int = 32
    """pullBatchSize"""
    pull_batch_bytes: int = 256 * 1024
    """pullBatchSizeInBytes"""
    suspend_time: float = 1.0
    """suspendCurrentQueueTimeMillis"""
    consume_timeout: float = 15 * 60.0
    """consumeTimeout"""
    post_subscription: bool = False
    """postSubscriptionWhenPull"""
    unit_mode: bool = False
    """unitMode"""
    task_limit: int | None = None
    """Tasks that may wait for a thread; None: flow control is the only bound, as in Java"""
    offsets_dir: Path | None = None
    """rocketmq.client.localOffsetStoreDir"""
    namespace: str | None = None

    def __post_init__(self) -> None:
        _check_group(self.group)
        if self.model not in ("clustering", "broadcasting"):
            raise ConfigError(f"model is {self.model!r}", expected="clustering or broadcasting")
        for key in ("orderly", "post_subscription", "unit_mode"):
            check_flag(key, getattr(self, key))
        check_count("threads", self.threads, 1, 1000)
        if self.max_threads is not None:
            check_count("max_threads", self.max_threads, 1, 1000)
            if self.threads > self.max_threads:
                raise ConfigError(
                    f"threads is {self.threads}, max_threads is {self.max_threads}",
                    expected="threads <= max_threads",
                )
        check_count("max_span", self.max_span, 1, 65_535)
        check_count("queue_limit", self.queue_limit, 1, 65_535)
        if self.topic_limit is not None:
            check_count("topic_limit", self.topic_limit, 1, 6_553_500)
        check_count("queue_limit_mib", self.queue_limit_mib, 1, 1024)
        if self.topic_limit_mib is not None:
            check_count("topic_limit_mib", self.topic_limit_mib, 1, 102_400)
        check_range("pull_interval", self.pull_interval, 0, 65.535)
        check_count("batch_size", self.batch_size, 1, 1024)
        check_count("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_count("pull_batch_bytes", self.pull_batch_bytes, 1, 2**31 - 1)
        check_range("consume_timeout", self.consume_timeout, 0.001, 7 * 86_400)
        if self.max_retries is not None:
            check_count("max_retries", self.max_retries, 0, UNLIMITED)
        if self.task_limit is not None:
            check_count("task_limit", self.task_limit, 1, 10_000_000)

    @property
    def is_clustering(self) -> bool:
        return self.model == "clustering"

    @property
    def max_reconsume_times(self) -> int:
        """How often a message may fail before it is a dead letter."""
        if self.max_retries is not None:
            return self.max_retries
        return UNLIMITED if self.orderly else CONCURRENT_RETRIES

    @property
    def limits(self) -> FlowLimits:
        """What may be cached of one queue when no topic has a limit of its own."""
        return FlowLimits(self.queue_limit, self.queue_limit_mib, self.max_span)


def _check_group(group: str) -> None:
    check_group(group)
    if group in DEFAULT_GROUPS:
        raise IllegalName(
            f"group {group!r} is reserved for clients that were given no group",
            expected="a group name of your own",
        )
