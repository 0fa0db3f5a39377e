"""Settings of a broker: RocketMQ's names and defaults; an existing ``broker.conf`` loads."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError, InvalidArgument
from penstock.model.names import READ, WRITE
from penstock.protocol.delays import DEFAULT_DELAY_LEVELS
from penstock.protocol.validation import check_topic
from penstock.remoting.addresses import parse_address
from penstock.runtime.config import check_settings, setting

ASYNC_MASTER = "ASYNC_MASTER"
SYNC_MASTER = "SYNC_MASTER"
SLAVE = "SLAVE"
VIP_PORT_DISTANCE = 2
_MAX_INT: Final = (1 << 31) - 1
_DAY_MS: Final = 86_400_000
_PRECISIONS: Final = (100, 200, 500, 1000)
_LONGEST_WINDOW: Final = 7 * 86_400 - 60
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_MAX_LABELS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """How a broker names itself, where it listens and what it allows."""

    broker_cluster_name: str = setting("DefaultCluster", doc="cluster the broker belongs to")
    broker_name: str = setting("broker-a", doc="name of the broker; unique in its cluster")
    broker_id: int = setting(
        0, least=0, most=_MAX_INT, doc="0 is a master, any other number a slave"
    )
    broker_role: str = setting(
        ASYNC_MASTER,
        choices=(ASYNC_MASTER, SYNC_MASTER, SLAVE),
        doc="a slave refuses sends; nothing is replicated",
    )
    bind_host: str = setting("127.0.0.1", key="bindAddress", doc="address to listen on")
    broker_ip1: str = setting(
        "", key="brokerIP1", doc="address that clients connect to; empty: the one it listens on"
    )
    listen_port: int = setting(
        10911, least=0, most=65_535, doc="port; the VIP port is two below; 0 picks a free one"
    )
    namesrv_addr: str = setting("", doc="name servers, host:port;host:port")

    broker_permission: int = setting(
        READ | WRITE, least=0, most=7, changeable=True, doc="what clients may do: 4 read, 2 write"
    )
    auto_create_topic_enable: bool = setting(
        True, changeable=True, doc="create an unknown topic when a message is sent to it"
    )
    default_topic_queue_nums: int = setting(
        8, least=1, most=1024, doc="queues of TBW102, the template of new topics"
    )
    auto_create_subscription_group: bool = setting(
        True, changeable=True, doc="create an unknown consumer group"
    )
    enable_property_filter: bool = setting(
        True, changeable=True, doc="consumers may filter by SQL92 (RocketMQ: false)"
    )
    lite_pull_message_enable: bool = setting(
        True, changeable=True, doc="serve LITE_PULL_MESSAGE (code 361)"
    )
    trace_topic_enable: bool = setting(False, doc="create RMQ_SYS_TRACE_TOPIC")
    region_id: str = setting("DefaultRegion", doc="region written into each message")
    trace_on: bool = setting(True, doc="clients may trace messages")
    slave_read_enable: bool = setting(False, changeable=True, doc="suggest a slave to slow readers")

    long_polling_enable: bool = setting(True, changeable=True, doc="hold pulls that find nothing")
    short_polling_time_ms: int = setting(
        1000,
        key="shortPollingTimeMills",
        least=0,
        most=_DAY_MS,
        changeable=True,
        doc="how long a pull is held without long polling",
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, changeable=True, doc="notify the members of a group when it changes"
    )
    use_server_side_reset_offset: bool = setting(
        True, changeable=True, doc="reset offsets in the broker, not in the clients"
    )
    store_reply_message_enable: bool = setting(True, changeable=True, doc="store replies")
    message_delay_level: str = setting(DEFAULT_DELAY_LEVELS, doc="delay of each level")
    reject_transaction_message: bool = setting(
        False, changeable=True, doc="refuse messages of transactions"
    )
    transaction_timeout_ms: int = setting(
        6000,
        key="transactionTimeOut",
        least=0,
        most=_DAY_MS,
        changeable=True,
        doc="age at which the producers of an open transaction are first asked about it",
    )
    transaction_check_interval_ms: int = setting(
        30_000,
        key="transactionCheckInterval",
        least=100,
        most=_DAY_MS,
        changeable=True,
        doc="pause between two rounds of questions about open transactions",
    )
    transaction_check_max: int = setting(
        15,
        least=1,
        most=_MAX_INT,
        changeable=True,
        doc="questions about a transaction before it is given up",
    )
    transaction_metrics_interval_ms: int = setting(
        10_000,
        key="transactionMetricFlushInterval",
        least=1,
        most=_MAX_INT,
        doc="between two saves of the numbers of open transactions",
    )
    sync_flush_timeout_ms: int = setting(
        5000,
        key="syncFlushTimeout",
        least=1,
        most=_MAX_INT,
        doc="longest wait of a send for the disk with sync flush",
    )
    register_broker_period_ms: int = setting(
        30_000,
        key="registerNameServerPeriod",
        least=1,
        most=_MAX_INT,
        doc="between two registrations, from 10 to 60 s",
    )
    flush_consumer_offset_interval_ms: int = setting(
        5000,
        key="flushConsumerOffsetInterval",
        least=1,
        most=_MAX_INT,
        doc="between two saves of committed offsets",
    )
    flush_delay_offset_interval_ms: int = setting(
        10_000,
        key="flushDelayOffsetInterval",
        least=1,
        most=_MAX_INT,
        doc="between two saves of delay progress",
    )
    client_expiry_seconds: float = setting(
        120.0,
        key="clientChannelExpiredTimeout",
        least=0,
        doc="time without a heartbeat after which a client is dropped",
    )

    pop_polling_size: int = setting(
        1024,
        least=0,
        most=_MAX_INT,
        changeable=True,
        doc="pops held for one topic, group and queue",
    )
    max_pop_polling_size: int = setting(
        100_000, least=0, most=_MAX_INT, changeable=True, doc="pops held in all"
    )
    pop_from_retry_probability: int = setting(
        20,
        least=0,
        most=100,
        changeable=True,
        doc="of 100 pops, how many look for retries before new messages",
    )
    pop_inflight_message_threshold: int = setting(
        10_000,
        least=1,
        most=_MAX_INT,
        changeable=True,
        doc="popped and unfinished messages of a group in a queue above which it gets no more",
    )
    enable_retry_topic_v2: bool = setting(
        False,
        changeable=True,
        doc="name new pop retry topics %RETRY%group+topic; both names are read",
    )
    default_message_request_mode: str = setting(
        "PULL",
        choices=("PULL", "POP"),
        doc="mode of groups that let the broker assign queues",
    )
    default_pop_share_queue_num: int = setting(
        -1,
        least=-1,
        most=_MAX_INT,
        changeable=True,
        doc="members that share a popped queue with its owner; below 1: all",
    )
    timer_wheel_enable: bool = setting(
        True, changeable=True, doc="take messages that are to be delivered at a time of their own"
    )
    timer_precision_ms: int = setting(
        1000, least=1, most=1000, doc="ticks of the timer wheel: 100, 200, 500 or 1000 ms"
    )
    timer_max_delay_sec: int = setting(
        259_200,
        least=1,
        most=7 * 86_400,
        changeable=True,
        doc="longest delay of a timer message; fileReservedTime must not be shorter",
    )
    timer_roll_window_slot: int = setting(
        172_800, doc="ticks after which a timer message that waits longer is stored again"
    )
    mapped_file_size_timer_log: int = setting(
        100 << 20, least=68, most=_MAX_INT, doc="bytes of a file of the timer log"
    )
    timer_congest_num_each_slot: int = setting(
        _MAX_INT,
        least=1,
        most=_MAX_INT,
        changeable=True,
        doc="timer messages of one tick from which on more are refused",
    )
    recall_message_enable: bool = setting(
        False, changeable=True, doc="timer messages can be recalled"
    )
    allow_recall_when_broker_not_writeable: bool = setting(
        True, changeable=True, doc="they can be recalled while brokerPermission forbids writing"
    )
    metrics_exporter_type: str = setting(
        "DISABLE",
        choices=("DISABLE", "PROM", "0", "2"),
        doc="PROM: serve /metrics, /healthz and /readyz; 0 and 2 are DISABLE and PROM",
    )
    metrics_prom_exporter_host: str = setting(
        "127.0.0.1", doc="address of the metrics, which need no user (RocketMQ: brokerIP1)"
    )
    metrics_prom_exporter_port: int = setting(
        5557, least=0, most=65_535, doc="port of the metrics; 0 picks a free one"
    )
    metrics_label: str = setting("", doc="labels of all metrics, name:value,name:value")
    metrics_detail: str = setting(
        "topic",
        choices=("broker", "topic", "all"),
        doc="broker: no names of topics and groups; topic: 2,000 series a metric; all: 10,000",
    )

    dead_letter_permission: int = setting(
        READ | WRITE,
        key="deadLetterTopicPerm",
        least=0,
        most=7,
        changeable=True,
        doc="permission of new dead-letter topics (2 before 4.9.2)",
    )
    check_origin_topic: bool = setting(
        False,
        key="sendBackChecksOriginTopic",
        changeable=True,
        doc="refuse a send-back that names another topic, as 5.0.0 did",
    )
    max_pull_bytes: int = setting(
        8 << 20,
        key="penstockMaxPullBytes",
        least=1,
        most=1 << 30,
        changeable=True,
        doc="largest pull of the Penstock client",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if 0 < self.listen_port <= VIP_PORT_DISTANCE:
            raise ConfigError(
                f"listenPort is {self.listen_port}",
                expected=f"0, or {VIP_PORT_DISTANCE + 1} to 65535: the VIP port is two below",
            )
        for address in self.name_servers:
            # The registrar retries after any failure, so a mistyped address has to be found here.
            try:
                parse_address(address)
            except InvalidArgument as error:
                raise ConfigError(
                    f"namesrvAddr (--namesrv) has {address!r}", expected=error.expected
                ) from error
        _parse_labels(self.metrics_label)
        # Both are also names of topics.
        check_topic(self.broker_name)
        check_topic(self.broker_cluster_name)

    @property
    def is_slave(self) -> bool:
        """Whether this broker only reads."""
        return self.broker_role == SLAVE or self.broker_id != 0

    @property
    def timer_precision(self) -> int:
        """`timer_precision_ms` as it is used: the next of the four values that is not greater."""
        return _precision(self.timer_precision_ms)

    @property
    def timer_roll_window(self) -> int:
        """`timer_roll_window_slot` as it is used: values that make no sense are the largest."""
        window = self.timer_roll_window_slot
        return window if 2 <= window <= _LONGEST_WINDOW else _LONGEST_WINDOW

    @property
    def exports_metrics(self) -> bool:
        """Whether metrics and health are served over HTTP."""
        return self.metrics_exporter_type in ("PROM", "2")

    @property
    def metrics_labels(self) -> dict[str, str]:
        """The labels of ``metricsLabel``."""
        return _parse_labels(self.metrics_label)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of ``namesrvAddr``."""
        parts = map(str.strip, self.namesrv_addr.split(";"))
        return tuple(part for part in parts if part)

    @property
    def register_period_seconds(self) -> float:
        """Between two registrations, within what name servers expect."""
        return min(max(self.register_broker_period_ms, 10_000), 60_000) / 1000


def _parse_labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition(":")
        if not separator or not _LABEL.fullmatch(name) or name in labels:
            raise ConfigError(
                f"metricsLabel has {part!r}",
                expected="name:value,name:value, each name once, of letters, digits and _",
            )
        labels[name] = value
    if len(labels) > _MAX_LABELS:
        raise ConfigError(
            f"metricsLabel has {len(labels)} labels", expected=f"at most {_MAX_LABELS}"
        )
    return labels


@functools.cache
def _precision(wanted_ms: int) -> int:
    # Asked for each timer message.
    return max((one for one in _PRECISIONS if one <= wanted_ms), default=_PRECISIONS[0])
