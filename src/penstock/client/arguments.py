"""From the keywords of the public classes to settings."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.client.cluster_access import AccessKeywords, ClusterAccess, check_text
from penstock.client.consuming.assignment import AssignmentStrategy, strategy
from penstock.client.options import Option, as_seconds, options_of
from penstock.client.session.client_ids import DEFAULT_INSTANCE, client_id, local_ip, new_instance
from penstock.client.session.namespaces import wrap
from penstock.client.settings import (
    ConsumerSettings,
    Mode,
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
from penstock.runtime.durations import Duration

Time = datetime | int | float | str
"""A moment: a datetime, epoch milliseconds, or text in ISO 8601 or ``yyyyMMddHHmmss``."""


class AccessOptions(AccessKeywords, total=False):
    """Keywords that all clients take; `settings.SessionSettings` declares them."""

    unit: str | None
    client_ip: str | None
    profile: ProfileName
    route_interval: Duration
    heartbeat_interval: Duration
    persist_interval: Duration


class ProducerOptions(AccessOptions, total=False):
    """Further keywords of producers; `settings.ProducerSettings` declares them."""

    retry_unless_stored: bool
    linger_bytes: int
    compression: str
    compression_level: int
    max_message_bytes: int
    default_topic_queues: int
    avoid_slow_brokers: bool
    max_in_flight: int


class ConsumerOptions(AccessOptions, total=False):
    """Further keywords of push consumers; `settings.ConsumerSettings` declares them."""

    max_threads: int | None
    max_span: int
    queue_limit: int
    topic_limit: int | None
    queue_limit_mib: int
    topic_limit_mib: int | None
    pull_interval: Duration
    pull_batch_size: int
    suspend_time: Duration
    consume_timeout: Duration
    post_subscription: bool
    unit_mode: bool
    task_limit: int | None
    offsets_dir: str | os.PathLike[str] | None
    mode: Mode
    invisible: Duration
    pop_batch_size: int
    pop_limit: int


class PullConsumerOptions(AccessOptions, total=False):
    """Further keywords of pull consumers: how far they read ahead."""

    max_span: int
    queue_limit: int
    queue_limit_mib: int
    pull_interval: Duration


class SimpleConsumerOptions(AccessOptions, total=False):
    """Further keywords of simple consumers: how they reach the cluster."""


_OPTIONS: Mapping[str, Option] = {
    **options_of(SessionSettings),
    **options_of(ProducerSettings),
    **options_of(ConsumerSettings),
}


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


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keywords all clients take, and the rest; durations become seconds."""
    shared: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in options.items():
        if (known := _OPTIONS.get(key)) is not None and known.is_duration:
            value = as_seconds(key, value)
        (shared if key in AccessOptions.__optional_keys__ else rest)[key] = value
    return shared, rest


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
                f"{text!r} is not a time",
                expected="'last', 'first', ISO 8601, yyyyMMddHHmmss or epoch milliseconds",
            ) from None
    if isinstance(time, datetime):
        return round(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, int | float) or time < 0:
        raise InvalidArgument(
            f"{time!r} is not a time", expected="a datetime or epoch milliseconds"
        )
    return int(time)
