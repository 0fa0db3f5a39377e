"""From the keywords of the public classes to settings."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.client.cluster_access import AccessKeywords, ClusterAccess, check_text
from penstock.client.consuming.assignment import AssignmentStrategy, strategy
from penstock.client.session.client_ids import DEFAULT_INSTANCE, client_id, local_ip, new_instance
from penstock.client.session.namespaces import wrap
from penstock.client.settings import (
    ConsumerSettings,
    Model,
    ProducerSettings,
    ProfileName,
    SessionSettings,
    StartFrom,
    profile,
)
from penstock.errors import ConfigError, InvalidArgument
from penstock.model.queue_ends import queue_end
from penstock.protocol.validation import check_group
from penstock.runtime.durations import Duration, seconds

Time = datetime | int | float | str
"""A moment: a datetime, epoch milliseconds, or text in ISO 8601 or ``yyyyMMddHHmmss``."""


class AccessOptions(AccessKeywords, total=False):
    """Keywords that all clients take."""

    unit: str | None
    """Third part of the client id. unitName"""
    client_ip: str | None
    """First part of the client id; found out by itself. clientIP"""
    profile: ProfileName
    """Which release's timings to follow where releases differ. Java: the release itself"""
    route_interval: Duration
    """How often routes are asked for. pollNameServerInterval"""
    heartbeat_interval: Duration
    """How often brokers hear of us. heartbeatBrokerInterval"""
    persist_interval: Duration
    """How often offsets are committed. persistConsumerOffsetInterval"""


_ACCESS_KEYS = AccessOptions.__optional_keys__


class ProducerOptions(AccessOptions, total=False):
    """Further keywords of producers."""

    retry_unless_stored: bool
    """Retry what was stored, but not safely. retryAnotherBrokerWhenNotStoreOK"""
    linger_bytes: int
    """Size at which a lingering batch leaves early. batchMaxBytes"""
    compression: str
    """zlib, lz4 or zstd. compressType"""
    compression_level: int
    """compressLevel"""
    max_message_bytes: int
    """maxMessageSize"""
    default_topic_queues: int
    """Queues of a topic that the first message creates. defaultTopicQueueNums"""
    avoid_slow_brokers: bool
    """sendLatencyFaultEnable"""
    max_in_flight: int
    """Unanswered sends; `submit` waits when there are more. backPressureForAsyncSendNum"""


class ConsumerOptions(AccessOptions, total=False):
    """Further keywords of push consumers."""

    max_threads: int | None
    """consumeThreadMax; only the minimum ever counts"""
    max_span: int
    """consumeConcurrentlyMaxSpan"""
    queue_limit: int
    """pullThresholdForQueue"""
    topic_limit: int | None
    """pullThresholdForTopic"""
    queue_limit_mib: int
    """pullThresholdSizeForQueue"""
    topic_limit_mib: int | None
    """pullThresholdSizeForTopic"""
    pull_interval: Duration
    """pullInterval"""
    pull_batch_size: int
    """pullBatchSize"""
    suspend_time: Duration
    """suspendCurrentQueueTimeMillis"""
    consume_timeout: Duration
    """consumeTimeout"""
    post_subscription: bool
    """postSubscriptionWhenPull"""
    unit_mode: bool
    """unitMode"""
    task_limit: int | None
    """Tasks that may wait for a thread. Java: consumeRequestQueue, without a bound"""
    offsets_dir: str | os.PathLike[str] | None
    """Where a broadcasting client keeps its offsets. rocketmq.client.localOffsetStoreDir"""


class PullConsumerOptions(AccessOptions, total=False):
    """Further keywords of pull consumers: how far they read ahead."""

    max_span: int
    """consumeMaxSpan"""
    queue_limit: int
    """pullThresholdForQueue"""
    queue_limit_mib: int
    """pullThresholdSizeForQueue"""
    pull_interval: Duration
    """pullInterval"""


_DURATIONS = frozenset(
    {
        "consume_timeout",
        "heartbeat_interval",
        "persist_interval",
        "pull_interval",
        "route_interval",
        "suspend_time",
    }
)


def check_keywords(
    init: Callable[..., None], options: Iterable[str], further: Collection[str]
) -> None:
    """Refuse keywords a class does not know: neither its ``init`` names them, nor ``further``."""
    unknown = [keyword for keyword in options if keyword not in further]
    if not unknown:
        return
    named = inspect.signature(init).parameters.values()
    known = sorted({*further, *(one.name for one in named if one.kind is one.KEYWORD_ONLY)})
    near = difflib.get_close_matches(unknown[0], known, n=1)
    raise ConfigError(
        f"unknown keyword: {unknown[0]!r}",
        hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}",
    )


def duration(key: str, value: Duration) -> float:
    """A duration in seconds; one that is none is an error that names its keyword."""
    try:
        return seconds(value)
    except InvalidArgument as error:
        raise ConfigError(f"{key}: {error.what}", expected=error.expected) from None


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords all clients take, and the rest; durations become seconds."""
    plain = {
        key: duration(key, value) if key in _DURATIONS else value for key, value in options.items()
    }
    access = {key: value for key, value in plain.items() if key in _ACCESS_KEYS}
    return access, {key: value for key, value in plain.items() if key not in _ACCESS_KEYS}


def session_settings(
    namesrv: str | Iterable[str] | None,
    instance: str | None,
    options: dict[str, Any],
    *,
    keeps_default_instance: bool = False,
) -> SessionSettings:
    """How a client reaches its cluster, and its client id there."""
    keywords = {key: options[key] for key in options if key in AccessKeywords.__optional_keys__}
    rest = {key: options[key] for key in options if key not in keywords}
    access = ClusterAccess.of(namesrv, **keywords)
    chosen = profile(rest.pop("profile", "current"))
    if instance is None:
        instance = (
            DEFAULT_INSTANCE
            if keeps_default_instance
            else new_instance(by_process=chosen.instance_by_process)
        )
    unit, ip = rest.pop("unit", None), rest.pop("client_ip", None)
    check_text("unit", unit)
    check_text("client_ip", ip)
    return SessionSettings(
        access=access,
        client_id=client_id(ip or local_ip(access.namesrv), instance, unit),
        profile=chosen,
        **rest,
    )


def producer_settings(
    group: str, namespace: str | None, options: dict[str, Any]
) -> ProducerSettings:
    """The settings of a producer."""
    group = wrap(namespace, check_group(group))
    return ProducerSettings(group=group, namespace=namespace, **options)


def consumer_settings(
    group: str,
    namespace: str | None,
    *,
    model: Model,
    start_from: StartFrom,
    allocation: str | AssignmentStrategy,
    options: dict[str, Any],
) -> ConsumerSettings:
    """The settings of a consumer."""
    if (directory := options.get("offsets_dir")) is not None:
        if not isinstance(directory, str | os.PathLike):
            raise ConfigError(f"offsets_dir is {directory!r}", expected="a path")
        options = {**options, "offsets_dir": Path(directory)}
    return ConsumerSettings(
        group=wrap(namespace, check_group(group)),
        namespace=namespace,
        model=model,
        start_from=start_from,
        allocation=strategy(allocation),
        **options,
    )


def start_from(where: str | Time) -> StartFrom:
    """Where a group without an offset begins."""
    end = queue_end(where)
    return StartFrom("time", timestamp_ms(where)) if end is None else StartFrom(end)


def timestamp_ms(time: Time) -> int:
    """A moment in epoch milliseconds; a time without a zone is local."""
    if isinstance(time, str):
        text = time.strip()
        try:
            if len(text) == 14 and text.isdigit():
                # Java's consumeTimestamp is local time, and so is this.
                time = datetime.strptime(text, "%Y%m%d%H%M%S")  # noqa: DTZ007
            else:
                time = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidArgument(
                f"{text!r} is no time",
                expected="'last', 'first', ISO 8601, yyyyMMddHHmmss or epoch milliseconds",
            ) from None
    if isinstance(time, datetime):
        return round(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, int | float) or time < 0:
        raise InvalidArgument(f"{time!r} is no time", expected="a datetime or epoch milliseconds")
    return int(time)
