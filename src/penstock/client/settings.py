"""The settings of clients, checked before anything is started.

Durations are seconds here; the keywords of the public classes may also be text or ``timedelta``.
A field that is a keyword is declared as an option (`options`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.assignment import AssignmentStrategy, Average
from penstock.client.consuming.flow_control import FlowLimits
from penstock.client.options import Option, check_options, count, duration, flag, option
from penstock.client.producing.selection import CURRENT_LATENCIES, LatencyTable
from penstock.errors import ConfigError, IllegalName
from penstock.protocol.records.compression import Compression
from penstock.protocol.validation import check_group

DEFAULT_GROUPS = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})
CONCURRENT_RETRIES = 16
UNLIMITED = 2**31 - 1
SUSPEND_RANGE = (0.01, 30.0)
_INTERVAL = (0.001, 86_400)

ProfileName = Literal["current", "documents"]
Model = Literal["clustering", "broadcasting"]
Mode = Literal["pull", "pop", "auto"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a session reaches its cluster, and the intervals of its periodic work."""

    access: ClusterAccess
    client_id: str
    route_interval: float = duration(
        30.0, *_INTERVAL, "pollNameServerInterval", "how often routes are refreshed"
    )
    heartbeat_interval: float = duration(
        30.0, *_INTERVAL, "heartbeatBrokerInterval", "how often brokers get a heartbeat"
    )
    persist_interval: float = duration(
        5.0, *_INTERVAL, "persistConsumerOffsetInterval", "how often offsets are committed"
    )
    api_timeout: float = 3.0
    """mqClientApiTimeout"""
    connect_timeout: float = 3.0
    rebalance_interval: float = 20.0
    """rocketmq.client.rebalance.waitInterval"""
    rebalance_pause: float = 1.0
    """rocketmq.client.rebalance.minInterval"""
    profile: Profile = PROFILES["current"]

    def __post_init__(self) -> None:
        check_options(self)


IDENTITY_OPTIONS: Mapping[str, Option] = {
    "unit": Option("unitName", "third part of the client id"),
    "client_ip": Option("clientIP", "first part of the client id; by default detected"),
    "profile": Option(
        "the release", "`current` or `documents`: the timings to use where releases differ"
    ),
}
"""Options that become the client id and the profile of a session."""


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
    send_timeout: float = duration(
        3.0,
        *_INTERVAL,
        "sendMsgTimeout",
        "time for all attempts of a send; so long brokers that are down are waited for",
    )
    retries: int = count(
        2, 0, 100, "retryTimesWhenSendFailed", "further attempts, on other brokers if possible"
    )
    retry_unless_stored: bool = flag(
        False,
        "retryAnotherBrokerWhenNotStoreOK",
        "retry a message that was stored but neither flushed nor replicated in time",
    )
    linger: float = duration(
        0.0, 0, 10, "autoBatch", "how long a single send may wait to share a request with others"
    )
    linger_bytes: int = count(
        32 * 1024, 1, 2**31 - 1, "batchMaxBytes", "size at which a lingering batch is sent early"
    )
    linger_pending: int = 32 * 1024 * 1024
    """Bytes that may wait in all batches together; totalBatchMaxBytes"""
    compress_over: int = count(
        4096,
        0,
        2**31 - 1,
        "compressMsgBodyOverHowmuch",
        "bodies of so many bytes and more are compressed; 0: none",
    )
    compression: Literal["zlib", "lz4", "zstd"] = option(
        "zlib", "compressType", "`zlib`, `lz4` or `zstd`"
    )
    compression_level: int = count(5, 0, 22, "compressLevel", "from fast to small")
    max_message_bytes: int = count(
        4 * 1024 * 1024, 1, 16 * 1024 * 1024, "maxMessageSize", "larger bodies are refused"
    )
    default_topic_queues: int = count(
        4, 1, 65_535, "defaultTopicQueueNums", "queues of a topic that its first message creates"
    )
    avoid_slow_brokers: bool = flag(
        False, "sendLatencyFaultEnable", "avoid slow and unreachable brokers for a while"
    )
    latencies: LatencyTable = CURRENT_LATENCIES
    """latencyMax and notAvailableDuration"""
    max_in_flight: int = count(
        10_000,
        1,
        1_000_000,
        "backPressureForAsyncSendNum",
        "unanswered sends at which `submit` waits",
    )
    namespace: str | None = None

    def __post_init__(self) -> None:
        _check_group(self.group)
        check_options(self)
        if not isinstance(self.compression, str):
            raise ConfigError(f"compression is {self.compression!r}", expected="zlib, lz4 or zstd")
        Compression.named(self.compression)


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
    """How a consumer consumes; the ranges are those the Java client enforces."""

    group: str
    model: Model = option("clustering", "messageModel", "`clustering` or `broadcasting`")
    start_from: StartFrom = option(
        StartFrom("last"), "consumeFromWhere", "where a group without an offset begins"
    )
    orderly: bool = flag(
        False, "MessageListenerOrderly", "call one handler at a time for each queue"
    )
    batch_size: int = count(
        1, 1, 1024, "consumeMessageBatchMaxSize", "messages in one call of a handler"
    )
    allocation: AssignmentStrategy = option(
        None,
        "allocateMessageQueueStrategy",
        "how queues are shared between members",
        default_factory=Average,
    )
    threads: int = count(
        20, 1, 1000, "consumeThreadMin", "handlers that run at once: threads, or coroutines"
    )
    max_threads: int | None = count(
        None, 1, 1000, "consumeThreadMax", "has no effect, as in Java: tasks wait without limit"
    )
    max_retries: int | None = count(
        None,
        0,
        UNLIMITED,
        "maxReconsumeTimes",
        "redeliveries before a dead letter; without it 16, or no limit when orderly",
    )
    max_span: int = count(
        2000,
        1,
        65_535,
        "consumeConcurrentlyMaxSpan",
        "queue offsets between the first and the last cached message of a queue",
    )
    queue_limit: int = count(
        1000, 1, 65_535, "pullThresholdForQueue", "messages cached for each queue"
    )
    topic_limit: int | None = count(
        None, 1, 6_553_500, "pullThresholdForTopic", "messages cached for each topic"
    )
    queue_limit_mib: int = count(
        100, 1, 1024, "pullThresholdSizeForQueue", "MiB cached for each queue"
    )
    topic_limit_mib: int | None = count(
        None, 1, 102_400, "pullThresholdSizeForTopic", "MiB cached for each topic"
    )
    pull_interval: float = duration(0.0, 0, 65.535, "pullInterval", "pause between two pulls")
    pull_batch_size: int = count(32, 1, 1024, "pullBatchSize", "messages in one pull")
    pull_batch_bytes: int = 256 * 1024
    """pullBatchSizeInBytes"""
    suspend_time: float = duration(
        1.0,
        0,
        math.inf,
        "suspendCurrentQueueTimeMillis",
        "pause before an orderly queue is retried",
    )
    consume_timeout: float = duration(
        15 * 60.0,
        0.001,
        7 * 86_400,
        "consumeTimeout",
        "time after which the message of a running handler is sent back",
    )
    post_subscription: bool = flag(
        False, "postSubscriptionWhenPull", "send the subscription with each pull"
    )
    unit_mode: bool = flag(False, "unitMode", "the group is one of several units")
    task_limit: int | None = count(
        None,
        1,
        10_000_000,
        "consumeRequestQueue",
        "tasks that may wait for a thread; without it only flow control limits them",
    )
    offsets_dir: Path | None = option(
        None,
        "rocketmq.client.localOffsetStoreDir",
        "directory of the offsets of a broadcasting client",
    )
    mode: Mode = option(
        "pull", "clientRebalance", "`pull`, `pop`, or `auto`: as the broker is set for the group"
    )
    invisible: float = duration(
        60.0, 1, 300, "popInvisibleTime", "how long popped messages stay invisible to others"
    )
    pop_batch_size: int = count(32, 1, 32, "popBatchNums", "messages in one pop")
    pop_limit: int = count(
        96,
        1,
        65_535,
        "popThresholdForQueue",
        "popped and unfinished messages above which no more are popped",
    )
    namespace: str | None = None

    def __post_init__(self) -> None:
        _check_group(self.group)
        if self.mode not in ("pull", "pop", "auto"):
            raise ConfigError(f"mode is {self.mode!r}", expected="pull, pop or auto")
        if self.mode != "pull" and (self.orderly or not self.is_clustering):
            raise ConfigError(
                f"mode is {self.mode!r} with {'orderly' if self.orderly else 'broadcasting'}",
                expected="a concurrent consumer of a clustering group",
                hint='mode="pull"',
            )
        if self.model not in ("clustering", "broadcasting"):
            raise ConfigError(f"model is {self.model!r}", expected="clustering or broadcasting")
        check_options(self)
        if self.max_threads is not None and self.threads > self.max_threads:
            raise ConfigError(
                f"threads is {self.threads}, max_threads is {self.max_threads}",
                expected="threads <= max_threads",
            )

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
