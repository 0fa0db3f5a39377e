"""Settings of a name server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.runtime.config import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Where it listens and how long it believes a silent broker."""

    bind_host: str = setting("127.0.0.1", key="bindAddress", doc="address it listens on")
    listen_port: int = setting(9876, least=0, most=65_535, doc="port; 0 picks a free one")
    scan_not_active_broker_interval_ms: int = setting(
        5_000,
        key="scanNotActiveBrokerInterval",
        least=1,
        doc="between two looks for silent brokers",
    )
    order_message_enable: bool = setting(False, doc="whether routes carry the order configuration")
    delete_topic_with_broker_registration: bool = setting(
        False, doc="whether a registration also removes the topics it does not mention"
    )
    support_acting_master: bool = setting(False, doc="whether a slave may stand in for its master")

    def __post_init__(self) -> None:
        check_settings(self)
