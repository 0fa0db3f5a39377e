"""What brokers say to a name server, and what they are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.topics import TopicConfigTable

DEFAULT_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """What a broker says about itself.

    ``enable_acting_master`` is None for brokers before 5.0, which do not say it. ``connection``
    is any object that stands for the connection; it is compared by identity. ``owner`` is the user
    that registers the broker, None at a name server without users.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    topics: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    zone_name: str | None = None
    connection: object = None
    owner: str | None = None

    @property
    def state_version(self) -> int:
        """Which term of the master this is; 4.9 has none."""
        return self.topics.data_version.state_version or 0


class RegisterOutcome(Enum):
    """What became of a registration."""

    APPLIED = "applied"
    IGNORED = "ignored"
    """Another address holds the broker id with a newer state; answered as a success."""
    REFUSED = "refused"
    """An increment from a broker that is not known; it must send all its topics first."""


class RegisterResult(NamedTuple):
    """The answer to a registration; the addresses are for slaves whose master is known."""

    outcome: RegisterOutcome
    master_address: str | None = None
    ha_address: str | None = None

    @property
    def accepted(self) -> bool:
        """Whether the broker gets a success."""
        return self.outcome is not RegisterOutcome.REFUSED


class LiveBroker(NamedTuple):
    """A broker that is known at the moment."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    heard_ms: int
    timeout_ms: int
    connection: object
    owner: str | None

    @classmethod
    def of(cls, registration: BrokerRegistration, now_ms: int) -> LiveBroker:
        """The broker that has just registered."""
        timeout_ms = registration.timeout_ms or 0
        return cls(
            registration.cluster,
            registration.broker_name,
            registration.broker_id,
            registration.address,
            registration.ha_address,
            registration.topics.data_version,
            now_ms,
            timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS,
            registration.connection,
            registration.owner,
        )

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other brokers."""
        return self.cluster, self.address

    @property
    def state_version(self) -> int:
        """Which term of the master it was in; 4.9 has none."""
        return self.version.state_version or 0


class VersionAnswer(NamedTuple):
    """The answer to QUERY_DATA_VERSION."""

    changed: bool
    stored: DataVersion | None
