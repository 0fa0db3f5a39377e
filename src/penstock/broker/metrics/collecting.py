"""The metrics of a broker, read from its tables when they are asked for.

Nothing is counted for metrics alone: what handlers count for RocketMQ's statistics is read here.
Names, types and labels are those that Apache's broker exposes; names that begin with ``penstock_``
are our own.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections import Counter as Tally
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from penstock.broker.metrics.exposition import Family, Labels, Number
from penstock.broker.metrics.lag import GroupLag, consumed_topics, group_lag, is_system
from penstock.broker.state import BrokerState
from penstock.broker.tables.clients import ClientChannel
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX, TIMER_TOPIC, TOOLS_GROUP
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.versions import version_text
from penstock.store.files import DiskSpace

_STORAGE: Final = ("storage_type", "storage_medium")
_LOCAL_DISK: Final = ("local", "disk")
_CLIENT: Final = ("language", "version")
_MAX_LABEL: Final = 64
_UNDECLARED: Final = TopicConfig()
_MODES: Final = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}

_R: Final = "rocketmq_"
_NOT_COUNTED: Final = (RETRY_PREFIX, DLQ_PREFIX)
_PER_TURN: Final = 250
_LAGS_PER_TURN: Final = 50
"""Groups in topics that are looked at between two turns of the loop; each has several queues."""

Rows = list[tuple[Labels, Number]]
_T = TypeVar("_T")


async def paced(items: Iterable[_T], every: int = _PER_TURN) -> AsyncIterator[_T]:
    """The items as they are now; the loop gets a turn after ``every`` of them."""
    for number, item in enumerate(list(items), start=1):
        yield item
        if number % every == 0:
            await asyncio.sleep(0)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def broker_families(broker: BrokerState, disk: DiskSpace | None) -> Iterator[Family]:
    """The broker as a whole: what ``metricsDetail=broker`` gives."""
    statistics = broker.storage.store.statistics()

    def one(name: str, help: str, value: Number, kind: str = "gauge") -> Family:
        return Family(name, "counter" if kind == "counter" else "gauge", help, (), [((), value)])

    def stored(name: str, help: str, value: Number) -> Family:
        return Family(name, "gauge", help, _STORAGE, [(_LOCAL_DISK, value)])

    yield one(
        "rocketmq_broker_permission",
        "What clients may do: 4 read, 2 write.",
        broker.config.broker_permission,
    )
    yield one("rocketmq_topic_number", "Topics of this broker.", len(broker.topics))
    yield one("rocketmq_consumer_group_number", "Consumer groups.", sum(1 for _ in broker.groups))
    if disk is not None:
        yield stored(
            "rocketmq_storage_size_bytes",
            "Used bytes of the file system of the store.",
            disk.total - disk.available,
        )
    yield stored(
        "rocketmq_storage_flush_behind_bytes",
        "Written and not flushed.",
        max(0, statistics.max_position - statistics.flushed_position),
    )
    yield stored(
        "rocketmq_storage_dispatch_behind_bytes",
        "Written and not in consume queues yet.",
        statistics.dispatch_behind_bytes,
    )
    earliest = statistics.earliest_timestamp
    yield stored(
        "rocketmq_storage_message_reserve_time_milliseconds",
        "Age of the oldest message.",
        max(0, broker.clock.time_ms() - earliest) if earliest > 0 else 0,
    )
    yield one("penstock_disk_used_ratio", "Used part of the disk.", statistics.disk_used_ratio)
    yield one(
        "rocketmq_pop_checkpoint_buffer_size",
        "Pops whose messages are not all acknowledged.",
        len(broker.pop.points),
    )
    yield stored(
        "rocketmq_timer_enqueue_lag",
        "Timer messages that are not in the wheel yet.",
        max(0, broker.storage.max_offset(TIMER_TOPIC, 0) - broker.timers.next_offset),
    )
    yield one("penstock_held_pulls", "Pulls that wait for messages.", len(broker.held))
    yield one(
        "penstock_put_refused_total", "Refused sends.", statistics.put_refused, kind="counter"
    )
    yield Family(
        "penstock_delayed_messages",
        "gauge",
        "Messages that wait in a delay level.",
        ("level",),
        [
            ((str(level),), end - position)
            for level, (position, end) in broker.delay_service.progress().items()
        ],
        named=("level",),
    )


def process_families(version: str) -> Iterator[Family]:
    """The process of the broker."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Family(
        "penstock_info", "gauge", "Versions.", ("version", "python"), [((version, python), 1)]
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    yield Family("penstock_process_cpu_seconds_total", "counter", "CPU time.", (), [((), used)])
    numbers = {
        "penstock_process_resident_bytes": ("Resident memory.", _resident()),
        "penstock_process_open_fds": ("Open file descriptors.", _open_files()),
    }
    for name, (help, value) in numbers.items():
        if value is not None:
            yield Family(name, "gauge", help, (), [((), value)])


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only, and there may be many
    except OSError:
        return None


def client_families(broker: BrokerState) -> Iterator[Family]:
    """Connected clients by language and version, never by client id."""
    producers: Tally[Labels] = Tally()
    for channels in broker.clients.producer_groups().values():
        producers.update((*_client(channel), "remoting") for channel in channels)
    yield Family(
        "rocketmq_producer_connections",
        "gauge",
        "Connected producers.",
        (*_CLIENT, "protocol_type"),
        list(producers.items()),
        named=_CLIENT,
    )
    consumers: Tally[Labels] = Tally()
    for config in broker.groups:
        members = broker.clients.consumer_group(config.group_name)
        if members is None:
            continue
        mode = _MODES.get(members.consume_type, "push")
        system = _flag(is_system(broker, "", members.name))
        for channel in members.channels.values():
            consumers[members.name, *_client(channel), mode, "remoting", system] += 1
    yield Family(
        "rocketmq_consumer_connections",
        "gauge",
        "Connected consumers.",
        ("consumer_group", *_CLIENT, "consume_mode", "protocol_type", "is_system"),
        list(consumers.items()),
        named=("consumer_group", *_CLIENT),
    )


def _client(channel: ClientChannel) -> tuple[str, str]:
    return channel.language.lower()[:_MAX_LABEL], version_text(channel.version).lower()


async def topic_families(broker: BrokerState) -> list[Family]:
    """Messages in and out; without retry and dead-letter topics, as in RocketMQ."""
    stats = broker.stats
    stored: Rows = []
    stored_bytes: Rows = []
    async for topic in paced(stats.put_topics()):
        if not topic.startswith(_NOT_COUNTED):
            labels = (topic, _message_type(broker, topic), _flag(is_system(broker, topic)))
            counter = stats.puts_of(topic)
            stored.append((labels, counter.count))
            stored_bytes.append((labels, counter.size))
    delivered: Rows = []
    delivered_bytes: Rows = []
    async for topic, group in paced(stats.get_keys()):
        if not topic.startswith(_NOT_COUNTED):
            labels = (topic, group, _flag(is_system(broker, topic, group)))
            counter = stats.gets_of(topic, group)
            delivered.append((labels, counter.count))
            delivered_bytes.append((labels, counter.size))
    dead: Rows = [
        ((group, topic, _flag(is_system(broker, topic, group))), counter.count)
        async for (topic, group), counter in paced(stats.dead_letter_origins.items())
    ]
    back: Rows = [
        ((group, topic), counter.count)
        async for (topic, group), counter in paced(stats.sent_backs.items())
    ]
    timers: Rows = [
        ((topic,), waiting.count)
        async for topic, waiting in paced(broker.timers.metrics.table().timing_count.items())
    ]
    halves: Rows = [
        ((topic,), count)
        async for topic, count in paced(broker.transactions.counters.open_by_topic().items())
    ]
    into = ("topic", "message_type", "is_system")
    out = ("topic", "consumer_group", "is_system")
    by_group = ("consumer_group", "topic", "is_system")
    return [
        Family(f"{_R}messages_in_total", "counter", "Stored messages.", into, stored),
        Family(f"{_R}throughput_in_total", "counter", "Stored bytes.", into, stored_bytes),
        Family(f"{_R}messages_out_total", "counter", "Delivered messages.", out, delivered),
        Family(f"{_R}throughput_out_total", "counter", "Delivered bytes.", out, delivered_bytes),
        Family(f"{_R}send_to_dlq_messages_total", "counter", "New dead letters.", by_group, dead),
        Family(
            "penstock_sent_back_total",
            "counter",
            "Messages that consumers returned to be retried.",
            by_group[:2],
            back,
        ),
        Family(f"{_R}timing_messages", "gauge", "Timer messages that wait.", into[:1], timers),
        Family(f"{_R}half_messages", "gauge", "Open transactions.", into[:1], halves),
    ]


def _message_type(broker: BrokerState, topic: str) -> str:
    """The type that the topic declares, for all of its messages."""
    config = broker.topics.get(topic)
    return (config or _UNDECLARED).message_type.lower()[:_MAX_LABEL]


async def lag_families(broker: BrokerState) -> list[Family]:
    """How far groups are behind."""
    labels = ("consumer_group", "topic", "is_retry", "is_system")
    keys: list[Labels] = []
    lags: list[GroupLag] = []
    async for group, topic in paced(consumed_topics(broker), every=_LAGS_PER_TURN):
        lag = group_lag(broker, group, topic)
        if lag is not None:
            is_retry = _flag(topic.startswith(RETRY_PREFIX))
            keys.append((group, topic, is_retry, _flag(is_system(broker, topic, group))))
            lags.append(lag)
    dead: Rows = [
        ((topic.removeprefix(DLQ_PREFIX),), _pending(broker, topic))
        async for topic in paced([str(config.topic_name) for config in broker.topics])
        if topic.startswith(DLQ_PREFIX) and topic in broker.topics
    ]

    def family(name: str, help: str, values: list[int], *, is_latency: bool = False) -> Family:
        rows: Rows = list(zip(keys, values, strict=True))
        name = f"{_R}consumer_{name}"
        return Family(name, "gauge", help, labels, rows, rest_is_largest=is_latency)

    return [
        family("lag_messages", "Messages not committed.", [lag.behind for lag in lags]),
        family(
            "lag_latency_milliseconds",
            "Age of the oldest message that is not committed.",
            [lag.lag_ms for lag in lags],
            is_latency=True,
        ),
        family(
            "inflight_messages",
            "Messages pulled and not committed.",
            [lag.in_flight for lag in lags],
        ),
        family(
            "queueing_latency_milliseconds",
            "Age of the oldest message that was not pulled.",
            [lag.queueing_ms for lag in lags],
            is_latency=True,
        ),
        family("ready_messages", "Messages not pulled.", [lag.ready for lag in lags]),
        Family(
            "penstock_dead_letters_pending",
            "gauge",
            "Dead letters that were neither redriven nor purged.",
            ("consumer_group",),
            dead,
        ),
    ]


def _pending(broker: BrokerState, topic: str) -> int:
    """What lies behind the mark that `penstock.admin.dead_letters` describes."""
    config, store = broker.topics.require(topic), broker.storage.store
    count = 0
    for queue_id in range(config.read_queue_nums):
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        mark = broker.offsets.committed(TOOLS_GROUP, topic, queue_id)
        count += high - (mark if mark is not None and low <= mark <= high else low)
    return count
