"""Settings of a broker: RocketMQ's names and defaults; an existing ``broker.conf`` loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError, InvalidArgument
from penstock.model.names import READ, WRITE
from penstock.protocol.delays import DEFAULT_DELAY_LEVELS
from penstock.protocol.validation import check_topic
from penstock.remoting.addresses import parse_address

ASYNC_MASTER = "ASYNC_MASTER"
SYNC_MASTER = "SYNC_MASTER"
SLAVE = "SLAVE"
VIP_PORT_DISTANCE = 2
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _setting(key: str, default: Any, doc: str) -> Any:
    return field(default=default, metadata={"key": key, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """How a broker names itself, where it listens and what it allows."""

    broker_cluster_name: str = _setting("brokerClusterName", "DefaultCluster", "cluster it is in")
    broker_name: str = _setting("brokerName", "broker-a", "its name; unique in the cluster")
    broker_id: int = _setting("brokerId", 0, "0 is a master, any other number a slave")
    broker_role: str = _setting("brokerRole", ASYNC_MASTER, "ASYNC_MASTER, SYNC_MASTER or SLAVE")
    bind_host: str = _setting("bindAddress", "127.0.0.1", "address it listens on")
    broker_ip1: str = _setting("brokerIP1", "", "address clients are told; empty: the one bound")
    listen_port: int = _setting("listenPort", 10911, "port; the VIP port is two below; 0 picks one")
    namesrv_addr: str = _setting("namesrvAddr", "", "name servers, host:port;host:port")

    broker_permission: int = _setting("brokerPermission", READ | WRITE, "4 read, 2 write")
    auto_create_topic_enable: bool = _setting(
        "autoCreateTopicEnable", True, "whether a send to an unknown topic makes it"
    )
    default_topic_queue_nums: int = _setting("defaultTopicQueueNums", 8, "queues of TBW102")
    auto_create_subscription_group: bool = _setting(
        "autoCreateSubscriptionGroup", True, "whether an unknown consumer group is made"
    )
    enable_property_filter: bool = _setting(
        "enablePropertyFilter", True, "whether consumers may filter by SQL92 (RocketMQ: false)"
    )
    lite_pull_message_enable: bool = _setting("litePullMessageEnable", True, "allow code 361")
    trace_topic_enable: bool = _setting("traceTopicEnable", False, "create RMQ_SYS_TRACE_TOPIC")
    region_id: str = _setting("regionId", "DefaultRegion", "written into each message")
    trace_on: bool = _setting("traceOn", True, "whether clients may trace")
    slave_read_enable: bool = _setting("slaveReadEnable", False, "send slow readers to a slave")

    long_polling_enable: bool = _setting("longPollingEnable", True, "hold pulls that find nothing")
    short_polling_time_ms: int = _setting(
        "shortPollingTimeMills", 1000, "hold without long polling"
    )
    notify_consumer_ids_changed_enable: bool = _setting(
        "notifyConsumerIdsChangedEnable", True, "tell members of a group when it changes"
    )
    use_server_side_reset_offset: bool = _setting(
        "useServerSideResetOffset", True, "reset offsets here; else clients are asked to"
    )
    store_reply_message_enable: bool = _setting("storeReplyMessageEnable", True, "keep replies")
    message_delay_level: str = _setting("messageDelayLevel", DEFAULT_DELAY_LEVELS, "delay levels")
    sync_flush_timeout_ms: int = _setting("syncFlushTimeout", 5000, "longest wait for the disk")
    register_broker_period_ms: int = _setting(
        "registerNameServerPeriod", 30_000, "between registrations; 10 to 60 s"
    )
    flush_consumer_offset_interval_ms: int = _setting(
        "flushConsumerOffsetInterval", 5000, "between two saves of offsets"
    )
    flush_delay_offset_interval_ms: int = _setting(
        "flushDelayOffsetInterval", 10_000, "between two saves of delay progress"
    )
    client_expiry_seconds: float = _setting("clientChannelExpiredTimeout", 120.0, "silence allowed")

    dead_letter_permission: int = _setting(
        "deadLetterTopicPerm", READ | WRITE, "perm of new dead-letter topics (2 before 4.9.2)"
    )
    check_origin_topic: bool = _setting(
        "sendBackChecksOriginTopic", False, "refuse a send-back of another topic, as 5.0.0 did"
    )
    max_pull_bytes: int = _setting("penstockMaxPullBytes", 8 << 20, "largest pull of our client")

    def __post_init__(self) -> None:
        for key, value, low, high in (
            ("brokerId", self.broker_id, 0, 1 << 31),
            ("listenPort", self.listen_port, 0, 65_535),
            ("brokerPermission", self.broker_permission, 0, 7),
            ("defaultTopicQueueNums", self.default_topic_queue_nums, 1, 1024),
            ("registerNameServerPeriod", self.register_broker_period_ms, 1, 1 << 31),
            ("flushConsumerOffsetInterval", self.flush_consumer_offset_interval_ms, 1, 1 << 31),
            ("syncFlushTimeout", self.sync_flush_timeout_ms, 1, 1 << 31),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{key} is {value}", expected=f"{low} to {high}")
        if 0 < self.listen_port <= VIP_PORT_DISTANCE:
            raise ConfigError(
                f"listenPort is {self.listen_port}",
                expected=f"0, or {VIP_PORT_DISTANCE + 1} to 65535: the VIP port is two below",
            )
        if self.broker_role not in (ASYNC_MASTER, SYNC_MASTER, SLAVE):
            raise ConfigError(
                f"brokerRole is {self.broker_role!r}",
                expected=f"{ASYNC_MASTER}, {SYNC_MASTER} or {SLAVE}",
            )
        for address in self.name_servers:
            # Registration goes on past failures, so a typing error has to be found here.
            try:
                parse_address(address)
            except InvalidArgument as error:
                raise ConfigError(
                    f"namesrvAddr (--namesrv) has {address!r}", expected=error.expected
                ) from error
        # Both become names of topics.
        check_topic(self.broker_name)
        check_topic(self.broker_cluster_name)

    @property
    def is_slave(self) -> bool:
        """Whether this broker only reads."""
        return self.broker_role == SLAVE or self.broker_id != 0

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of ``namesrvAddr``."""
        parts = map(str.strip, self.namesrv_addr.split(";"))
        return tuple(part for part in parts if part)

    @property
    def register_period_seconds(self) -> float:
        """Between two registrations, within what name servers expect."""
        return min(max(self.register_broker_period_ms, 10_000), 60_000) / 1000
